"""The one error that matters, out of a log in which every process of an engine tells of the same failure.

A worker fails, the process above it says that a worker failed, and the one above that says that its core failed. The
cause is the first traceback that does not only point to another one; of exceptions that were raised from one another,
the one that they began with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mlload.engine.vllm.log import Line, read_line

LONGEST = 600
TRACEBACK = "Traceback (most recent call last):"
DIRECT = "The above exception was the direct cause of the following exception:"
MEANWHILE = "During handling of the above exception, another exception occurred:"
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: |:?$)")
# What only says that another process has told the cause, or that it went down with the others.
POINTERS = (
    "See root cause above",
    "See stack trace for root cause",
    "Engine core initialization failed",
    "EngineCore encountered an issue",
    "EngineDeadError",
    "RPC call to ",
    "cancelled",
)
DIED = re.compile(r"(?P<who>Worker proc \S+|\S*EngineCore\S*|RayWorkerProc rank=\S+) died unexpectedly"
                  r"(?: \(exit code: (?P<code>-?\d+)\))?")  # fmt: skip
USAGE = re.compile(r"^[\w. -]*: error: (?P<said>.+)")


class Fault(NamedTuple):
    """type: the exception's class, "" where there was none; message: one line; process: who met it, "" unknown"""

    type: str
    message: str
    process: str

    @property
    def sentence(self) -> str:
        return f"{self.type}: {self.message}" if self.type and self.message else self.type or self.message


class Raised(NamedTuple):
    """One exception with the process whose traceback it ends, and how it came from the one before it."""

    process: str
    type: str
    message: str
    link: str


def reduce(log: Iterable[str], failed: dict[str, Any] | None) -> Fault | None:
    """The cause. `failed`: the event of the starting process, which met the failure last; None where it left none.
    None where neither says anything."""
    lines = [read_line(line.split("\r")[-1]) for line in log]
    if failed is not None and failed.get("usage"):
        said = [found["said"] for line in lines if (found := USAGE.match(line.text))]
        return Fault("", said[-1] if said else "its parser refused the flags", "")
    for chain in chains(lines):
        if not any(points(raised) for raised in chain):
            return Fault(*_cause(chain))
    told = None if failed is None else Raised("", failed["type"], failed["message"], "")
    if told is not None and not points(told):
        return Fault(told.type, one_line(told.type, told.message), "")
    for line in lines:
        if found := DIED.search(line.text):
            return Fault("", died(found["who"], found["code"]), line.process)
    return None if told is None else Fault(told.type, one_line(told.type, told.message), "")


def died(who: str, code: str | None) -> str:
    how = "" if code is None else f" by signal {code[1:]}" if code.startswith("-") else f" with code {code}"
    memory = ", which is what the kernel does when memory runs out" if code == "-9" else ""
    return f"{who} ended{how} without a word{memory}"


def _cause(chain: Sequence[Raised]) -> tuple[str, str, str]:
    """Back from the last exception to what it was raised from; what merely happened before is no cause."""
    at = len(chain) - 1
    while at and chain[at].link == DIRECT:
        at -= 1
    raised = chain[at]
    return raised.type.rpartition(".")[2], one_line(raised.type, raised.message), raised.process


def points(raised: Raised) -> bool:
    return any(word in f"{raised.type}: {raised.message}" for word in POINTERS)


def chains(lines: Sequence[Line]) -> Iterator[list[Raised]]:
    """Exceptions of each traceback with those that were raised on its way. Processes write at the same time: each is
    followed by itself."""
    streams: dict[str, list[Line]] = {}
    starts: list[tuple[str, int]] = []
    for line in lines:
        stream = streams.setdefault(line.process, [])
        if line.text.strip() == TRACEBACK:
            starts.append((line.process, len(stream)))
        stream.append(line)
    taken: dict[str, int] = {}
    for process, start in starts:
        if start < taken.get(process, 0):
            continue
        chain, taken[process] = _chain(streams[process], start)
        if chain:
            yield chain


def _chain(lines: Sequence[Line], at: int) -> tuple[list[Raised], int]:
    chain: list[Raised] = []
    link = ""
    while at < len(lines) and lines[at].text.strip() == TRACEBACK:
        raised, at = _raised(lines, at + 1, link)
        if raised is not None:
            chain.append(raised)
        after = at
        while after < len(lines) and not lines[after].text.strip():
            after += 1
        if after >= len(lines) or lines[after].text.strip() not in (DIRECT, MEANWHILE):
            break
        link = lines[after].text.strip()
        at = after + 1
        while at < len(lines) and not lines[at].text.strip():
            at += 1
    return chain, at


def _raised(lines: Sequence[Line], at: int, link: str) -> tuple[Raised | None, int]:
    """Over the frames to the exception, and its message to its end."""
    while at < len(lines) and (lines[at].text.startswith((" ", "\t")) or not lines[at].text):
        at += 1
    if at >= len(lines):
        return None, at
    first = lines[at]
    found = EXCEPTION.match(first.text)
    if found is None:
        return None, at
    message = [first.text[found.end() :]]
    at += 1
    while at < len(lines) and lines[at].text.strip() not in (TRACEBACK, DIRECT, MEANWHILE):
        # A record of the log carries the level on every line of its traceback; bare output has none.
        if lines[at].level != first.level or not lines[at].text.strip() or len(message) > 40:
            break
        message.append(lines[at].text)
        at += 1
    return Raised(first.process, found["type"], "\n".join(message), link), at


def one_line(kind: str, message: str) -> str:
    """Of pydantic's report the sentence, of another message its first line with what belongs to it."""
    if kind.endswith("ValidationError"):
        said = [line.strip() for line in message.splitlines() if line.startswith("  ") and "[type=" in line]
        said = [re.sub(r"\s*\[type=.*", "", line).removeprefix("Value error, ") for line in said]
        message = "; ".join(said) or message
    text = " ".join(line.strip() for line in message.splitlines() if line.strip())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
