"""What a vLLM's log says: which step it is at, and the numbers in it. Formats of 0.32 and 0.33, any platform.

A line is "(Worker_TP1 pid=17) INFO 11-29 21:55:53 [default_loader.py:501] Loading weights took 1.48 seconds"; what
native code and progress bars print stands between such lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

PREFIX = re.compile(
    r"^(?:\((?P<process>[^()]*?)(?: pid=\d+)?(?:, ip=[^)]*)?\) )?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<when>\d\d-\d\d \d\d:\d\d:\d\d) \[(?P<place>[^\]]+)\] )?"
)
# What a line means for where the engine is; the first that is found in it.
STEPS = (
    ("processes", re.compile(r"Initializing a V1 LLM engine")),
    ("distributed", re.compile(r"world_size=\d+ rank=\d+ local_rank=")),
    ("build", re.compile(r"Starting to load model ")),
    ("read", re.compile(r"Initializing model took |Loading \S+ checkpoint shards:|Loading \S+ using ")),
    ("repack", re.compile(r"Loading weights took ")),
    ("compile", re.compile(r"Start compiling function|Dynamo bytecode transform time|Compiling a graph for|"
                           r"Warming up model for the compilation|Cache the graph of")),
    ("profile", re.compile(r"Model loading took |torch\.compile took |Using \w+ KV cache layout")),
    ("cache", re.compile(r"Available KV cache memory: |GiB for KV cache on node")),
    ("warm_up", re.compile(r" KV cache size: [\d,]+ tokens|Capturing CUDA graphs|Graph capturing finished")),
    ("serve", re.compile(r"init engine \(")),
)  # fmt: skip
WORDS = {
    "import": "importing vllm",
    "config": "reading the config",
    "processes": "starting its processes",
    "distributed": "connecting its ranks",
    "build": "building the model",
    "read": "reading weights",
    "repack": "repacking weights",
    "compile": "compiling",
    "profile": "measuring its memory",
    "cache": "allocating the KV cache",
    "warm_up": "warming up",
    "serve": "finishing its start",
}
SHARDS = re.compile(r"Loading \S+ checkpoint shards:\s*(\d+)% Completed \| (\d+)/(\d+)")
NUMBERS = {
    "build_seconds": re.compile(r"Initializing model took ([\d.]+) seconds"),
    "read_seconds": re.compile(r"Loading weights took ([\d.]+) seconds"),
    "loaded_gib": re.compile(r"Model loading took ([\d.]+) (?:GiB memory|GiB)"),
    "loading_seconds": re.compile(r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    "file_gib": re.compile(r"Checkpoint size: ([\d.]+) GiB"),
    "cache_gib": re.compile(r"Available KV cache memory: (-?[\d.]+) GiB|\(([\d.]+)/[\d.]+\) GiB for KV cache on node"),
    "init_seconds": re.compile(r"init engine \([^)]*\) took ([\d.]+) s"),
    "graph_gib": re.compile(r"Graph capturing finished in [\d.]+ secs, took ([\d.]+) GiB"),
    "compile_seconds": re.compile(r"torch\.compile took ([\d.]+) s in total|torch\.compile takes ([\d.]+) s in total"),
    "kv_tokens": re.compile(r" KV cache size: ([\d,]+) tokens"),
    "concurrency": re.compile(r"tokens per request: ([\d.]+)x"),
}
KERNELS = (
    re.compile(r"(?:Selected|Using) (?P<kernel>\w+Kernel) for (?P<layer>[\w ().-]+?)\s*$"),
    re.compile(r"Using '?(?P<kernel>[\w-]+)'? (?P<layer>[\w ]*M[oO]E) backend"),
    re.compile(r"Using (?P<kernel>\w+) (?P<layer>attention) backend"),
)


class Line(NamedTuple):
    """process: "EngineCore", "Worker_TP0", "" where the line does not say; level: "" for what is no log record"""

    process: str
    level: str
    text: str


def read_line(line: str) -> Line:
    found = PREFIX.match(line)
    assert found is not None  # every part of it may be absent
    return Line(found["process"] or "", found["level"] or "", line[found.end() :].rstrip())


@dataclass
class Log:
    """What lines said so far.

    step:     one of WORDS
    detail:   how far that step is, "" where the log does not tell
    last:     the last record, for whoever waits
    numbers:  by NUMBERS; the largest of all ranks
    kernels:  (kernel, what it runs) as the engine announced them, once each
    """

    step: str = "import"
    detail: str = ""
    last: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    kernels: list[tuple[str, str]] = field(default_factory=list)

    def take(self, lines: Iterable[str]) -> None:
        for line in lines:
            # A progress bar rewrites its line: the last state counts.
            for piece in line.split("\r")[-1:]:
                self._take(read_line(piece))

    def _take(self, line: Line) -> None:
        if line.level:
            self.last = line.text
        for step, pattern in STEPS:
            if pattern.search(line.text):
                if step != self.step:
                    self.step, self.detail = step, ""
                break
        if shards := SHARDS.search(line.text):
            self.detail = f"{shards[2]} of {shards[3]} files"
        for name, pattern in NUMBERS.items():
            if found := pattern.search(line.text):
                value = float(next(filter(None, found.groups())).replace(",", ""))
                self.numbers[name] = max(value, self.numbers.get(name, value))
        for pattern in KERNELS:
            if found := pattern.search(line.text):
                pair = (found["kernel"], found["layer"])
                if pair not in self.kernels:
                    self.kernels.append(pair)
                break

    @property
    def doing(self) -> str:
        """What it is at, in words."""
        return WORDS[self.step] + (f", {self.detail}" if self.detail else "")
