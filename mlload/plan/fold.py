"""Many names that differ in numbers, said as one: "model.layers.0-79.mlp.down_proj"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def fold_numbers(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 -> "0-2,5"."""
    pieces: list[str] = []
    start = last = -2
    for number in sorted(set(numbers)):
        if number != last + 1:
            if last >= 0:
                pieces.append(f"{start}-{last}" if last > start else f"{start}")
            start = number
        last = number
    if last >= 0:
        pieces.append(f"{start}-{last}" if last > start else f"{start}")
    return ",".join(pieces)


def fold_path(template: str, layers: Sequence[int] | None, experts: Iterable[int] | None = None) -> str:
    """A family's path with its layer and expert ranges in place of the placeholders."""
    path = template
    if layers is not None:
        path = path.replace("{layer}", fold_numbers(layers))
    if experts is not None:
        path = path.replace("{expert}", fold_numbers(experts))
    return path


def fold_names(names: Iterable[str]) -> list[tuple[str, int]]:
    """Names grouped by what is left when their numbers are taken out: (folded name, count), in order met."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        numbers = tuple(int(n) if len(n) < 9 else 0 for n in _NUMBER.findall(name))
        groups.setdefault(_NUMBER.sub("#", name), []).append(numbers)
    folded: list[tuple[str, int]] = []
    for shape, found in groups.items():
        pieces = shape.split("#")
        text = pieces[0]
        for place, piece in enumerate(pieces[1:]):
            text += fold_numbers(n[place] for n in found if len(n) > place) + piece
        folded.append((text, len(found)))
    return folded


def counted(where: str, count: int) -> str:
    """A folded name with the number of tensors that it stands for."""
    return where if count == 1 else f"{where} ({count:,} tensors)"
