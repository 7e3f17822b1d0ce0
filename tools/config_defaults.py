"""Write mlload/checkpoint/config_defaults.json: what each config class of transformers fills in.

    PYTHONPATH=. python tools/config_defaults.py

Model types are those that mlload has tables for, and the types nested in them. Recorded are the
declared defaults of the fields that sizes and verdicts hang on; what a class computes from other
fields (head_dim = hidden_size // heads) is the business of the code that asks.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING

from mlload.checkpoint.config import ALIASES
from mlload.plan.architectures import model_types

TARGET = Path(__file__).parents[1] / "mlload" / "checkpoint" / "config_defaults.json"

# Fields that no size or verdict hangs on.
DULL = re.compile(
    r"_token_id$|_token_index$|initializer|dropout|_drop$|pdrop|_eps$|epsilon|_act$|activation|^hidden_act|aux_loss|"
    r"return_dict|^output_|id2label|label2id|problem_type|chunk_size_feed_forward|architectures|transformers_version|"
    r"use_cache|summary_|scale_attn|jitter|_std$|_factor$|pretraining_tp|classifier|^dtype$|is_encoder_decoder|"
    r"loss|mask_|apply_|median|multiplier|scaling$|softcap"
)
CANONICAL = {alias: name for name, aliases in ALIASES.items() for alias in aliases}


def declared(config_class: Any) -> dict[str, Any]:
    """Canonical name -> declared default, of one config class."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        value = field.default
        if DULL.search(field.name) or not isinstance(value, (bool, int, float, str, list, tuple)):
            continue
        found[CANONICAL.get(field.name, field.name)] = list(value) if isinstance(value, tuple) else value
    tie = getattr(config_class, "tie_word_embeddings", None)
    if isinstance(tie, bool):
        found["tie_word_embeddings"] = tie
    return found


def nested_type(config_class: Any) -> dict[str, Any]:
    """The type of a composite's language model where its config does not say."""
    if "text_config" not in config_class.sub_configs:
        return {}
    return {"text_model_type": config_class().text_config.model_type}


def main() -> None:
    table: dict[str, dict[str, Any]] = {}
    waiting = [CONFIG_MAPPING[t] for t in model_types() if t in CONFIG_MAPPING]
    while waiting:
        config_class = waiting.pop()
        name = config_class.model_type
        if not name or name in table:
            continue
        table[name] = dict(sorted((declared(config_class) | nested_type(config_class)).items()))
        waiting.extend(sub for sub in config_class.sub_configs.values() if dataclasses.is_dataclass(sub))
    lines = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(table.items()))
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(table)} types from transformers {transformers.__version__} -> {TARGET}")


if __name__ == "__main__":
    main()
