"""How tensors are dealt out to files of a given size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from mlload.checkpoint.finding import MlloadError
from mlload.writer.layout import OutputTensor

# Hugging Face's spelling: GB is 10^9, GiB is 2^30.
UNITS = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
DEFAULT = 5 * 10**9
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(text: str, option: str) -> int:
    """ "5GB" -> 5,000,000,000."""
    match = _SIZE.fullmatch(text)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise MlloadError(f"{option} takes a size such as 5GB, 500MB or 2GiB, not {text!r}")
    return int(float(match[1]) * unit)


def dealt(
    tensors: Iterable[OutputTensor], limit: int | None, group_of: Callable[[str], str]
) -> Iterator[list[OutputTensor]]:
    """Tensors in files of at most `limit` bytes, in order; those of one group (the parts of a weight) stay together,
    so that a group larger than the limit is a file of its own."""
    if limit is None:
        everything = list(tensors)
        if everything:
            yield everything
        return
    groups: dict[str, list[OutputTensor]] = {}
    for tensor in tensors:
        groups.setdefault(group_of(tensor.name), []).append(tensor)
    held: list[OutputTensor] = []
    size = 0
    for group in groups.values():
        nbytes = sum(tensor.nbytes for tensor in group)
        if held and size + nbytes > limit:
            yield held
            held, size = [], 0
        held += group
        size += nbytes
    if held:
        yield held


def weight_of(name: str) -> str:
    """The weight that a tensor is a part of, by its name alone: "m.q_proj" of "m.q_proj.qzeros"."""
    head, found, _ = name.partition(".weight.")
    return head if found else name.rpartition(".")[0] or name
