"""`--speculative` as typed: vLLM's speculative_config, and the draft model that it names.

What vLLM fills in is filled in here the same way (config/speculative.py:1226, 0.33.0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError

# Methods without a draft model of their own.
WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "extract_hidden_states", "custom_class", "mtp")
HEADS = ("eagle", "eagle3", "dflash", "dspark")
METHODS = ("draft_model", *WITHOUT_MODEL, *HEADS)


@dataclass(frozen=True, slots=True)
class Speculative:
    """config: the JSON object, or {"model": what was typed}; complete: it was JSON, so that what it lacks is lacking
    (False for a bare path, where only the draft's fit is asked); draft: the checkpoint that "model" names, opened."""

    config: Mapping[str, Any]
    complete: bool
    draft: Checkpoint | None = None

    @property
    def method(self) -> str:
        """As vLLM understands it. Names of draft heads are looked for in the path, as it does."""
        given, model = self.config.get("method"), self.config.get("model")
        if isinstance(given, str):
            return "mtp" if given.endswith("_mtp") else given.strip("[]")
        name = model.lower() if isinstance(model, str) else ""
        if name in ("ngram", "[ngram]"):
            return "ngram"
        for mark, method in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")):
            if mark in name:
                return method
        kind = self.draft.config.get("model_type") if self.draft is not None else None
        return "mtp" if isinstance(kind, str) and kind.endswith("_mtp") else "draft_model"


def parse_speculative(typed: str, revision: str | None = None) -> Speculative:
    """A JSON object, or the path or name of a draft model.

    Raises:
        MlloadError: the JSON is none, or there is no such draft.
    """
    if not typed.lstrip().startswith("{"):
        if typed in ("ngram", "[ngram]"):
            return Speculative({"method": "ngram"}, complete=False)
        return Speculative({"model": typed}, complete=False, draft=Checkpoint.open(typed, revision=revision))
    try:
        config = json.loads(typed)
    except (ValueError, RecursionError) as error:
        raise MlloadError(f"--speculative is no valid JSON: {str(error)[:120]}") from None
    model, method = config.get("model"), config.get("method")
    draft = None
    if isinstance(model, str) and model and method not in WITHOUT_MODEL and model not in ("ngram", "[ngram]"):
        wanted = config.get("revision")
        draft = Checkpoint.open(model, revision=wanted if isinstance(wanted, str) else None)
    return Speculative(config, complete=True, draft=draft)
