"""The tensors that stand for one module on disk, quantized or not."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.params import ParamSpec
from mlload.quant.formats.tensors import stored_length
from mlload.quant.spec import Dim, Scheme, TensorSpec


class Stored(NamedTuple):
    """One tensor of every module of a family, as it lies on disk.

    suffix: as written after the module path, with its dot (".qweight"; "" for a bare parameter)
    dtype:  as found in the headers, or as expected where there are no files
    dims:   each stored dim in terms of the module's axes
    shape:  stored elements
    role:   "weight", "scale", "zero", "bias", ... as in `TensorSpec`
    """

    suffix: str
    dtype: str
    dims: tuple[Dim, ...]
    shape: tuple[int, ...]
    role: str

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, self.shape)


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in a file; sub-byte dtypes round up."""
    return (prod(shape) * DTYPE_BITS.get(dtype, 8) + 7) // 8


def axis_length(spec: ParamSpec, axis: str) -> int:
    """Values along an axis over all ranks (of one expert, for experts stored apart)."""
    return spec.shape[spec.axes.index(axis)] if axis in spec.axes else 1


def stored_shape(spec: ParamSpec, dims: tuple[Dim, ...]) -> tuple[int, ...]:
    return tuple(stored_length(dim, axis_length(spec, dim.axis)) if dim.axis else dim.size for dim in dims)


def plain_dims(spec: ParamSpec) -> tuple[Dim, ...]:
    """Dims of the unquantized weight. An axis letter that comes twice is cut in its first dim only."""
    dims: list[Dim] = []
    for axis, size in zip(spec.axes, spec.shape, strict=True):
        known = axis in ("N", "K", "E") and all(dim.axis != axis for dim in dims)
        dims.append(Dim(axis) if known else Dim("", size=size))  # type: ignore[arg-type]
    return tuple(dims)


def plain_tensors(spec: ParamSpec) -> tuple[TensorSpec, ...]:
    """The weight and the bias of an unquantized module."""
    tensors = [TensorSpec(spec.weight, spec.dtype, plain_dims(spec))]
    if spec.bias is not None:
        dims = (Dim("E"), Dim("N")) if "E" in spec.axes else (Dim("N"),)
        tensors.append(TensorSpec(spec.bias, None, dims, role="bias"))
    return tuple(tensors)


def expected_tensors(spec: ParamSpec, scheme: Scheme | None) -> tuple[TensorSpec, ...]:
    """What one module of a family looks like on disk."""
    if scheme is None:
        return plain_tensors(spec)
    from mlload.quant.formats import registry

    stacked = spec.shape[spec.axes.index("E")] if "E" in spec.axes else None
    tensors = list(
        registry.get(scheme.format).spec(scheme, spec.n, spec.k, bias=spec.bias is not None, experts=stacked)
    )
    if spec.bias is not None and all(tensor.role != "bias" for tensor in tensors):
        tensors.append(plain_tensors(spec)[1])
    return tuple(tensors)
