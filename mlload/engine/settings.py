"""What a load test was asked for: plain values, so that every rank's process can be given them as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Settings:
    """source:       as typed; revision: of a Hub repository
    tp, device:     ranks, and "cpu" or "cuda"
    ep:             experts are dealt out whole to the ranks
    load_format:    one of them
    dtype:          "auto" is the checkpoint's own
    kv_cache_dtype: "auto" is the checkpoint's scheme, else dtype
    batches:        of the sweep; prompt_len and decode in tokens
    typed:          which of prompt_len and decode a person typed: those are not shortened
    weights_only:   build, load and repack, nothing more
    cold:           drop the source's files from the page cache first
    repeat:         loads, of which the last one is kept
    towers:         of vision and audio: "load", "skip" or "lazy" (last of all)
    record:         keep log-probabilities of the fixed prompts
    perplexity:     text file to measure it on, "" for none; windows of window tokens each
    threads:        of torch on a CPU, 0 for torch's own choice
    """

    source: str
    revision: str | None = None
    tp: int = 1
    ep: bool = False
    device: str = "cpu"
    load_format: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    batches: tuple[int, ...] = (1, 8, 32)
    prompt_len: int = 512
    decode: int = 128
    typed: tuple[str, ...] = ()
    weights_only: bool = False
    cold: bool = False
    repeat: int = 1
    towers: str = "load"
    record: bool = False
    perplexity: str = ""
    windows: int = 16
    window: int = 256
    threads: int = 0

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> Settings:
        fields = json.loads(text)
        fields |= {key: tuple(fields[key]) for key in ("batches", "typed")}
        return Settings(**fields)
