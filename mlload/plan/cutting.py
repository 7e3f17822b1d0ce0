"""How an axis is cut for one rank: runs of the axis, part by part.

Everything here is arithmetic on one axis. Positions count logical values (channels), not stored
elements; `stored_run` turns one into the other.
"""

from __future__ import annotations

from typing import NamedTuple

from mlload.plan.params import ParamSpec, Part
from mlload.quant.formats.tensors import stored_length
from mlload.quant.spec import Dim


class Run(NamedTuple):
    """[start, stop) of the whole axis, which becomes [to, to + stop - start) of the rank's own."""

    start: int
    stop: int
    to: int
    role: str = ""


class Share(NamedTuple):
    """[start, stop) of one part that a rank holds, and the length that an engine allocates for it
    (longer where it pads)."""

    start: int
    stop: int
    allocated: int


def ceil_to(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def share(part: Part, size: int, rank: int, vocab_padding: int = 64) -> Share:
    """What rank `rank` of `size` holds of one part.

    Where the count of units does not divide (a violation) the first ranks hold one more, so that
    the slices still cover the part once and sizes stay meaningful.
    """
    length, unit = part.length, part.unit or 1
    if not length or (size == 1 and part.cut != "vocab"):
        return Share(0, length, length)
    if part.cut == "replicate":
        return Share(0, length, length)
    if part.cut == "vocab":
        per = -(-ceil_to(length, vocab_padding) // size)
        return Share(min(rank * per, length), min((rank + 1) * per, length), per)
    count = -(-length // unit)
    if part.cut == "kv" and size > count:
        index = min(rank * count // size, count - 1)
        return Share(index * unit, (index + 1) * unit, unit)
    if length % (unit * size) == 0:
        per = length // size
        return Share(rank * per, (rank + 1) * per, per)
    if length % size == 0 and part.cut == "split":
        # Units do not divide but channels do: engines cut channels.
        per = length // size
        return Share(rank * per, (rank + 1) * per, per)
    base, spare = divmod(count, size)
    start = (rank * base + min(rank, spare)) * unit
    stop = min(start + (base + (1 if rank < spare else 0)) * unit, length)
    return Share(start, stop, -(-count // size) * unit)


def cut_axis(spec: ParamSpec) -> str:
    """The letter of the axis that tensor parallelism cuts, "" for none."""
    if spec.style == "replicated":
        return ""
    return "K" if spec.style == "row" else "N"


def parts_of(spec: ParamSpec) -> tuple[Part, ...]:
    """The parts of the cut axis; a single part where the row names none."""
    if spec.parts or spec.style == "replicated":
        return spec.parts
    if spec.style == "vocab":
        return (Part("", spec.n, 1, "vocab"),)
    return (Part("", spec.k if spec.style == "row" else spec.n),)


def runs(spec: ParamSpec, size: int, rank: int, vocab_padding: int = 64) -> tuple[Run, ...]:
    """The runs of the cut axis that a rank holds, in the order of the whole axis.

    The rank's own tensor keeps the layout of the whole one: parts one after another, or group by
    group. With groups a part is spread over all of them: group g holds the g-th share of each.
    """
    parts = parts_of(spec)
    shares = [share(part, size, rank, vocab_padding) for part in parts]
    if spec.groups == 1:
        return _sequential(parts, shares)
    return _grouped(parts, shares, spec.groups)


def _sequential(parts: tuple[Part, ...], shares: list[Share]) -> tuple[Run, ...]:
    found: list[Run] = []
    base = to = 0
    for part, held in zip(parts, shares, strict=True):
        length = held.stop - held.start
        if length:
            found.append(Run(base + held.start, base + held.stop, to, part.role))
        to += length
        base += part.length
    return tuple(found)


def _grouped(parts: tuple[Part, ...], shares: list[Share], groups: int) -> tuple[Run, ...]:
    widths = [part.length // groups for part in parts]
    width = sum(widths)
    spans = {(held.start // w, held.stop // w) for held, w in zip(shares, widths, strict=True)}
    whole = all(held.start % w == 0 and held.stop % w == 0 for held, w in zip(shares, widths, strict=True))
    if whole and len(spans) == 1:
        first, last = spans.pop()
        return (Run(first * width, last * width, 0),) if last > first else ()
    found: list[Run] = []
    to = 0
    for group in range(groups):
        base = group * width
        for part, held, w in zip(parts, shares, widths, strict=True):
            start, stop = max(held.start, group * w), min(held.stop, (group + 1) * w)
            if start < stop:
                at = base + start - group * w
                if found and found[-1].stop == at:
                    found[-1] = found[-1]._replace(stop=at + stop - start, role="")
                else:
                    found.append(Run(at, at + stop - start, to, part.role))
                to += stop - start
            base += w
    return tuple(found)


def held_length(spec: ParamSpec, size: int, rank: int, vocab_padding: int = 64) -> int:
    """Channels of the cut axis that a rank holds of the source's own."""
    return sum(s.stop - s.start for s in (share(p, size, rank, vocab_padding) for p in parts_of(spec)))


def allocated_length(spec: ParamSpec, size: int, vocab_padding: int = 64) -> int:
    """Channels of the cut axis that an engine allocates on a rank, padding included."""
    return sum(share(p, size, 0, vocab_padding).allocated for p in parts_of(spec))


def stored_run(dim: Dim, start: int, stop: int) -> tuple[int, int]:
    """[start, stop) of an axis as stored elements; a block that a cut straddles is held by both sides."""
    return start // dim.values * dim.items, stored_length(dim, stop)
