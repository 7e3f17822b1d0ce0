"""What a run of the real engine was asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlload.engine.judge import CONTINUATION, PASSAGE, PROMPT, TEXTS

TOP = 20  # tokens of each position that a record keeps
COMPARED = 200  # tokens asked of each position when comparing with a record: what is not among them counts as rest
START_SECONDS = 1800.0
INSIDE = Path(__file__).with_name("inside")
# For the engine of this run alone. Functions travel to its workers by pickle, between its own processes.
VARIABLES = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_COLOR": "0"}
# Of mlload's own environment, which is not the engine's.
NOT_PASSED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MLLOAD_")


@dataclass(frozen=True)
class Asked:
    """source:    what the engine is given as its model: a folder, a file, a Hub id
    words:       flags after `vllm serve MODEL`; variables: NAME=value words before it
    batches:     of the sweep; prompt_len and decode in tokens
    recorded:    token ids of a record to compare with, None where there is none
    record:      keep what fixed prompts are answered with
    log:         file that the engine's output goes to
    start_seconds: until it must be up
    """

    source: str
    words: tuple[str, ...]
    log: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    batches: tuple[int, ...] = (1, 8, 32)
    prompt_len: int = 512
    decode: int = 128
    weights_only: bool = False
    record: bool = False
    recorded: tuple[tuple[int, ...], ...] | None = None
    speak: bool = True
    start_seconds: float = START_SECONDS

    def as_json(self) -> dict[str, Any]:
        """What `inside/start.py` reads."""
        positions = COMPARED if self.recorded is not None else TOP if self.record else 0
        return {
            "words": ["--model", self.source, *self.words],
            "variables": {**VARIABLES, **self.variables},
            "weights_only": self.weights_only,
            "speak": self.speak,
            "passage": PASSAGE,
            "prompt": PROMPT,
            "continuation": CONTINUATION,
            "positions": positions,
            "logprobs": positions,
            "recorded": None if self.recorded is None else [list(ids) for ids in self.recorded],
            "texts": list(TEXTS),
            "batches": list(self.batches),
            "prompt_len": self.prompt_len,
            "decode": self.decode,
        }


def environment() -> dict[str, str]:
    """The engine's environment: ours without what is about our own python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED)}
