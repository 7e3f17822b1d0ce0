"""Facts about a scheme that follow from its stored tensors, whatever the format."""

from __future__ import annotations

from typing import NamedTuple

from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.quant.formats.registry import get
from mlload.quant.formats.tensors import shape
from mlload.quant.spec import Scheme, TensorSpec

# A size at which whatever is stored once per row or column weighs nothing.
LARGE = 1 << 20

# Scales of an open dtype: what writers of the format use.
SCALE_BITS = {"fp8": 32, "modelopt": 32, "quark": 32}

KERNEL_LAYOUTS = frozenset(
    {"marlin", "bitblas", "exllama", "gemv", "gemv_fast", "marlin-24", "sparse-bitmask", "sparse-24-bitmask", "opaque"}
)


class Roles(NamedTuple):
    """required, optional: suffixes of a linear's tensors; of: suffix -> role ("weight", "scale", ...)."""

    required: frozenset[str]
    optional: frozenset[str]
    of: dict[str, str]


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    """The tensors that stand for an [n, k] linear (`experts` of them stacked) under a scheme."""
    return get(scheme.format).spec(scheme, n, k, bias=bias, experts=experts)


def roles(scheme: Scheme) -> Roles:
    """Which tensors a linear consists of, so that completeness can be checked."""
    specs = spec(scheme, 4096, 4096)
    return Roles(
        required=frozenset(s.suffix for s in specs if not s.optional),
        optional=frozenset(s.suffix for s in specs if s.optional),
        of={s.suffix: s.role for s in specs},
    )


def effective_bits(scheme: Scheme, n: int = LARGE, k: int = LARGE) -> float:
    """Stored bits per weight, scales and zero points included, group indices and biases not."""
    total = 0.0
    for tensor in spec(scheme, n, k):
        if tensor.role in ("g_idx", "shape", "bias", "input_scale", "aux"):
            continue
        if tensor.optional and tensor.role == "zero" and scheme.format == "awq":
            continue
        elements = 1
        for length in shape(tensor, n, k):
            elements *= length
        total += elements * _bits(scheme, tensor)
    return total / (n * k)


def _bits(scheme: Scheme, tensor: TensorSpec) -> int:
    if tensor.dtype in BY_NAME and tensor.dtype not in DTYPE_BITS:
        return 8
    if tensor.dtype is not None:
        return DTYPE_BITS[tensor.dtype]
    return 16 if tensor.role == "weight" else SCALE_BITS.get(scheme.format, 16)


def kernel_only(scheme: Scheme) -> bool:
    """Whether a layout is shuffled for one kernel, so that nothing else reads it."""
    return scheme.layout in KERNEL_LAYOUTS
