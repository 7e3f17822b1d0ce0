#!/usr/bin/env python3
"""Which fields of a config transformers takes in one type only, and of which model types, as data for the rule CF015.

    .venv/bin/python tools/config_types.py        writes mlload/validators/config_types.json

Read from the annotations of the config classes that are installed: transformers 5 checks them when it reads a config.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

PATH = Path(__file__).resolve().parent.parent / "mlload" / "validators" / "config_types.json"
FIELDS = {
    "rms_norm_eps": float,
    "layer_norm_eps": float,
    "initializer_range": float,
    "use_cache": bool,
    "tie_word_embeddings": bool,
    "attention_bias": bool,
    "mlp_bias": bool,
    "hidden_act": str,
    "max_position_embeddings": int,
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
}


def annotation(config_class: type, name: str) -> object:
    """What the nearest class in the line of inheritance says of a field; a type or its name."""
    for each in config_class.__mro__:
        found = inspect.get_annotations(each).get(name)
        if found is not None:
            return found
    return None


def main() -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    declared: dict[str, dict[str, object]] = {
        name: {"type": kind.__name__, "model_types": []} for name, kind in FIELDS.items()
    }
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            config_class = CONFIG_MAPPING[model_type]
        except (ImportError, AttributeError):
            continue
        for name, kind in FIELDS.items():
            if annotation(config_class, name) in (kind, kind.__name__):
                listed = declared[name]["model_types"]
                assert isinstance(listed, list)
                listed.append(model_type)
    content = {"source": f"transformers {transformers.__version__}", "fields": declared}
    PATH.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    print(PATH, {name: len(entry["model_types"]) for name, entry in declared.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
