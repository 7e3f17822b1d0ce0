"""The pass itself: every weight of a checkpoint once, measured, and hashed where there is something to compare with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.streaming import Job, Streamed, spans, stream
from mlload.checkpoint.tensor import TensorRef
from mlload.validators.deep.layout import FileLayout
from mlload.validators.deep.roles import Role
from mlload.validators.deep.seen import Seen

if TYPE_CHECKING:
    from mlload.validators.deep.measure import How

SPAN = 64 << 20  # bytes of a file that one thread takes at a time, where order does not matter
QUANTA = {name: block.nbytes for name, block in BY_NAME.items() if block.elements > 1}


class FileSeen(NamedTuple):
    """nbytes: that were to be read; sha256: of the whole file, None where it was not hashed; problem: why it was not
    read to its end; changed: it was another file at the end of the pass than at its beginning"""

    name: str
    nbytes: int
    sha256: str | None = None
    problem: str | None = None
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """files:    that were read, by name
    tensors:  what was seen of each tensor; empty where only digests were asked for
    hows:     how each was looked at
    roles:    what each is for
    hidden:   tensors that share bytes with others and were not looked at for themselves
    streamed: bytes, seconds, threads
    """

    files: tuple[FileSeen, ...]
    tensors: dict[str, Seen]
    hows: dict[str, How]
    roles: dict[str, Role]
    hidden: tuple[str, ...]
    streamed: Streamed


class Asked(NamedTuple):
    """contents: look at the numbers (needs numpy); hashed: names of the files whose digest is wanted"""

    contents: bool
    hashed: frozenset[str]


class Whole(NamedTuple):
    """What a job's tag says: where its tensors lie, and whether the job is a whole file to hash."""

    layout: FileLayout
    hashed: bool


def scan(
    checkpoint: Checkpoint,
    roles: Mapping[str, Role],
    asked: Asked,
    *,
    threads: int | None = None,
    tick: Callable[[int, float, int], None] | None = None,
) -> Scan:
    """Read what was asked for, once. tick: told bytes, seconds and all bytes, a few times a second."""
    if asked.contents:
        needs_numpy()
    wanted = files_to_read(checkpoint, asked)
    layouts = layouts_of(checkpoint, wanted if asked.contents else {})
    jobs = list(jobs_of(wanted, layouts, asked.hashed))
    total = sum(job.stop - job.start for job in jobs)
    hows = hows_of(checkpoint, roles) if asked.contents else {}
    watchers: list[Watcher] = []

    def watcher() -> Watcher:
        made = Watcher(hows)
        watchers.append(made)
        return made

    streamed = stream(
        checkpoint.source,
        jobs,
        watcher,
        threads=threads,
        tick=None if tick is None else lambda done, seconds: tick(done, seconds, total),
    )
    return Scan(
        files_seen(wanted, watchers, streamed),
        merged(watchers, layouts),
        hows,
        dict(roles),
        tuple(name for layout in layouts.values() for name in layout.hidden),
        streamed,
    )


def needs_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise no_numpy() from None


def no_numpy() -> MlloadError:
    return MlloadError(
        '--deep needs numpy, which is not installed here:  pip install "mlload[deep]"',
        hint="--manifest FILE alone compares digests without it",
    )


def files_to_read(checkpoint: Checkpoint, asked: Asked) -> dict[str, int]:
    """name -> bytes: files with weights, for their contents, and those to hash."""
    used = {ref.file for ref in checkpoint.tensors.values()} if asked.contents else set()
    return {
        file.name: file.size
        for number, file in enumerate(checkpoint.files)
        if (number in used or file.name in asked.hashed)
    }


def bytes_to_read(checkpoint: Checkpoint, asked: Asked) -> int:
    return sum(files_to_read(checkpoint, asked).values())


def layouts_of(checkpoint: Checkpoint, wanted: Mapping[str, int]) -> dict[str, FileLayout]:
    by_file: dict[int, list[TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        # Where every rank holds the same names, the key tells them apart.
        by_file.setdefault(ref.file, []).append(ref if ref.name == name else ref._replace(name=name))
    return {
        file.name: FileLayout(by_file.get(number, ()), file.size, QUANTA)
        for number, file in enumerate(checkpoint.files)
        if file.name in wanted
    }


def jobs_of(wanted: Mapping[str, int], layouts: Mapping[str, FileLayout], hashed: frozenset[str]) -> Iterator[Job]:
    """Whole files first, the largest first, as one thread must hash a file; then the others in parts."""
    for name in sorted(hashed & wanted.keys(), key=lambda name: -wanted[name]):
        layout = layouts.get(name) or FileLayout((), wanted[name], QUANTA)
        yield Job(name, 0, wanted[name], layout.ends, layout.phase, Whole(layout, True))
    for name in sorted(wanted.keys() - hashed):
        layout = layouts[name]
        for start, stop in spans(0, wanted[name], SPAN, layout.ends):
            yield Job(name, start, stop, layout.ends, layout.phase, Whole(layout, False))


def hows_of(checkpoint: Checkpoint, roles: Mapping[str, Role]) -> dict[str, How]:
    from mlload.validators.deep.gptq import stores_less_one
    from mlload.validators.deep.measure import how

    return {
        name: how(ref, role := roles[name], zeros_less_one=role.role == "zero" and stores_less_one(role))
        for name, ref in checkpoint.tensors.items()
    }


class Watcher:
    """One thread's share: what it saw of each tensor, and the digests of the files that it read."""

    def __init__(self, hows: Mapping[str, How]) -> None:
        self.hows = hows
        self.tensors: dict[str, Seen] = {}
        self.digests: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self._hash = hashlib.sha256()

    def begin(self, job: Job) -> None:
        self._hash = hashlib.sha256()

    def block(self, job: Job, start: int, data: memoryview) -> None:
        assert isinstance(job.tag, Whole)
        if job.tag.hashed:
            self._hash.update(data)
        if not self.hows:
            return
        from mlload.validators.deep.measure import measure

        for tensor, begin, end, at in job.tag.layout.pieces(start, start + len(data)):
            seen = self.tensors.get(tensor.name)
            if seen is None:
                seen = self.tensors[tensor.name] = Seen()
            measure(seen, data[at : at + end - begin], begin, self.hows[tensor.name])

    def end(self, job: Job, problem: str | None) -> None:
        assert isinstance(job.tag, Whole)
        if problem is not None:
            self.problems.setdefault(job.name, problem)
        elif job.tag.hashed:
            self.digests[job.name] = self._hash.hexdigest()


def files_seen(wanted: Mapping[str, int], watchers: list[Watcher], streamed: Streamed) -> tuple[FileSeen, ...]:
    digests = {name: digest for watcher in watchers for name, digest in watcher.digests.items()}
    problems = {name: problem for watcher in watchers for name, problem in watcher.problems.items()}
    changed = set(streamed.changed)
    return tuple(
        FileSeen(name, wanted[name], digests.get(name), problems.get(name), name in changed) for name in sorted(wanted)
    )


def merged(watchers: list[Watcher], layouts: Mapping[str, FileLayout]) -> dict[str, Seen]:
    """All threads' findings on each tensor, in the order of the files; the same bytes under two names count as both."""
    found: dict[str, Seen] = {}
    for layout in layouts.values():
        for tensor in layout.tensors:
            parts = [part for watcher in watchers if (part := watcher.tensors.get(tensor.name)) is not None]
            if parts:
                found[tensor.name] = parts[0]
                for part in parts[1:]:
                    parts[0].add(part)
        for name, other in layout.aliases.items():
            if other in found:
                found[name] = found[other]
    return found
