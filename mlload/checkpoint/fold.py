"""Many names in few words: "model.layers.0-79.mlp.down_proj.weight" for eighty tensors."""

from __future__ import annotations

from collections.abc import Iterable

from mlload.checkpoint.json_text import quote

LONGEST = 120  # characters of a name that anybody would read


def ranges(numbers: Iterable[int]) -> str:
    """ "0-3, 7" for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def fold_names(names: Iterable[str], limit: int = 4) -> str:
    """The layers that tensor names belong to, then what belongs to no layer, at most `limit` items."""
    layers: dict[str, set[int]] = {}
    single: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        for position, part in enumerate(parts):
            if part.isascii() and part.isdigit() and len(part) < 9:
                layers.setdefault(".".join(parts[:position]), set()).add(int(part))
                break
        else:
            single[name] = None
    shown = [f"{prefix}.{ranges(numbers)}" if prefix else ranges(numbers) for prefix, numbers in layers.items()]
    shown += single
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    safe = (text if text.isprintable() and len(text) <= LONGEST else quote(text, LONGEST) for text in shown[:limit])
    return ", ".join(safe) + more
