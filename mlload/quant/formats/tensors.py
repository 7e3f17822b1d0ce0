"""Shapes and cuts of the stored tensors that stand for a linear, by arithmetic on their `Dim`s.

Letters: N = out_features, K = in_features, E = experts.
"""

from __future__ import annotations

from math import gcd
from typing import Literal, NamedTuple

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.spec import Dim, TensorSpec

CutAxis = Literal["N", "K", "E"]


class Piece(NamedTuple):
    """What a cut of a linear takes of one stored tensor.

    dim:   the stored dim that is cut, None where the tensor is taken whole
    start: first stored element along it
    stop:  past the last one
    """

    dim: int | None
    start: int
    stop: int


class Misaligned(NamedTuple):
    """A cut that falls inside a stored unit.

    suffix: of the tensor
    axis:   of the cut
    values: how many logical values share a unit; 0 where no cut of this axis is a slice
    start, stop: the cut asked for, in logical values
    """

    suffix: str
    axis: CutAxis
    values: int
    start: int
    stop: int

    @property
    def offender(self) -> int:
        """The end of the cut that is not a multiple."""
        return self.start if self.values and self.start % self.values else self.stop

    def __str__(self) -> str:
        if not self.values:
            return f"{self.suffix} holds the flattened matrix: no part of {self.axis} is a slice of it"
        rest = self.offender % self.values
        return f"{self.suffix} holds {self.axis} in units of {self.values}: {self.offender} % {self.values} = {rest}"


def stored_length(dim: Dim, length: int) -> int:
    """Stored elements for `length` logical values along `dim`."""
    if dim.dense:
        return -(-length * dim.items // dim.values)
    return -(-length // dim.values) * dim.items


def shape(spec: TensorSpec, n: int, k: int, experts: int | None = None) -> tuple[int, ...]:
    """Stored shape of one tensor of an [n, k] linear (of `experts` stacked ones)."""
    lengths = {"N": n, "K": k, "E": experts or 1}
    return tuple(stored_length(dim, lengths[dim.axis]) if dim.axis else dim.size for dim in spec.dims)


def cut(spec: TensorSpec, axis: CutAxis, start: int, stop: int, length: int) -> Piece | Misaligned:
    """Which stored elements hold the logical values [start, stop) of an axis `length` long.

    A tensor without that axis is whole (per-tensor scales, scales along the other axis). Two roles need more
    than a slice and say so by their `role`: "g_idx", whose values count groups from the first row of the
    whole matrix (unless act-order keeps the scales whole), and "shape", which holds the logical sizes.
    """
    if spec.flat and axis == "K" and (start, stop) != (0, length):
        return Misaligned(spec.suffix, axis, 0, start, stop)
    for position, dim in enumerate(spec.dims):
        if dim.axis != axis:
            continue
        if start % dim.values or (stop % dim.values and stop != length):
            return Misaligned(spec.suffix, axis, dim.values, start, stop)
        return Piece(position, start // dim.values * dim.items, stored_length(dim, stop))
    return Piece(None, 0, 0)


def unit(specs: tuple[TensorSpec, ...], axis: CutAxis) -> int:
    """The smallest run of `axis` that every tensor of a linear can be cut at; 0 where none is."""
    least = 1
    for spec in specs:
        if spec.flat and axis == "K":
            return 0
        for dim in spec.dims:
            if dim.axis == axis:
                least = least * dim.values // gcd(least, dim.values)
    return least


def tensor_name(path: str, suffix: str) -> str:
    """Name of a stored tensor of the linear at `path`."""
    return path + suffix if is_joined(suffix) else f"{path}.{suffix}"


def is_joined(suffix: str) -> bool:
    """Whether a suffix follows the path without a dot: gpt-oss's "_blocks" does, torchao's "_weight_qdata" does not."""
    return not suffix or (suffix.startswith("_") and not suffix.startswith("_weight_"))


def stored_shape(ref: TensorRef) -> tuple[int, ...]:
    """Shape in stored elements: GGUF block types count bytes along their last dim, as `Dim` does."""
    from mlload.checkpoint.gguf_types import BY_NAME

    block = BY_NAME.get(ref.dtype)
    if block is None or block.elements == 1 or not ref.shape:
        return ref.shape
    return (*ref.shape[:-1], -(-ref.shape[-1] // block.elements) * block.nbytes)


def fits(spec: TensorSpec, ref: TensorRef, n: int, k: int, experts: int | None = None) -> bool:
    """Whether a tensor has the shape that the format wants; one element may be [] or [1]."""
    want = shape(spec, n, k, experts)
    have = stored_shape(ref)
    if have == want:
        return True
    return spec.scalar_ok and want in ((), (1,)) and have in ((), (1,))


def group_dim(axis: CutAxis, length: int, group: int | None) -> Dim:
    """A dim with one element for each `group` values of an axis; one element in all (never cut) where a
    group covers the axis, which is written as -1, 0 or None."""
    if group is None or group <= 0 or group >= length:
        return Dim("", size=1)
    return Dim(axis, values=group)


def words(axis: CutAxis, bits: int, *, dense: bool = False) -> Dim:
    """A dim of 32-bit words that holds `bits`-wide values one after another: 8 values of 4 bits in 1 word,
    32 values of 3 bits in 3 words."""
    common = gcd(bits, 32)
    return Dim(axis, values=32 // common, items=bits // common, dense=dense)


def stacked(specs: tuple[TensorSpec, ...], experts: int | None) -> tuple[TensorSpec, ...]:
    """The same tensors with the experts of a layer stacked along a first dim."""
    if experts is None:
        return specs
    return tuple(
        spec._replace(dims=(Dim("E"), *(d for d in spec.dims if spec.dims != (Dim("", size=1),)))) for spec in specs
    )
