"""One weight, quantized and packed as the tensors that its scheme stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlload.quant.algorithms import float4, float8, int8, integer
from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.registry import get
from mlload.quant.formats.tensors import Misaligned, unit
from mlload.quant.formats.tensors import shape as stored_shape
from mlload.quant.spec import Scheme

# dtype of scales where a format allows several: what its readers allocate.
SCALE_DTYPES = {"awq": "F16", "gptq": "F16"}
PACKED = 1 << 20  # elements of a weight that are packed together
TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


class StoredTensor(NamedTuple):
    """suffix after the module's path, safetensors dtype, shape"""

    suffix: str
    dtype: str
    shape: tuple[int, ...]


def scale_dtype(scheme: Scheme, weight_dtype: str) -> str:
    if scheme.format in SCALE_DTYPES:
        return SCALE_DTYPES[scheme.format]
    return weight_dtype if scheme.layout == "pack-quantized" else "F32"


def stored(scheme: Scheme, n: int, k: int, weight_dtype: str) -> tuple[StoredTensor, ...]:
    """Every tensor that stands for an [n, k] linear, in the order in which they are written."""
    found = []
    for tensor in stored_spec(scheme, n, k):
        if tensor.optional and tensor.suffix == "input_zero_point":
            continue
        dtype = tensor.dtype or scale_dtype(scheme, weight_dtype)
        found.append(StoredTensor(tensor.suffix, dtype, stored_shape(tensor, n, k)))
    return tuple(found)


def round_to_nearest(
    weight: Tensor, scheme: Scheme, dtype: str, *, largest: float | None = None, clip: bool = True
) -> dict[str, Tensor]:
    """What `quant.formats.pack` takes. largest: greatest magnitude of the whole fused set, where its parts share a
    scale."""
    if scheme.layout == "int-quantized":
        scale = int8.scales(weight)
        return {"weight": int8.quantize(weight, scale), "scale": scale}
    if scheme.bits == 8 and scheme.kind == "float":
        return _float8(weight, scheme, largest)
    if scheme.kind == "mx":
        codes, scale = float4.mx_quantize(weight)
        return {"weight": codes, "scale": scale}
    if scheme.kind == "float":
        divisor = float4.nv_global(float(weight.abs().max()) if largest is None else largest)
        codes, scale = float4.nv_quantize(weight, divisor)
        return {"weight": codes, "scale": scale, "global_scale": divisor}
    grid = integer.fit(
        weight,
        scheme.bits,
        -1 if scheme.group_size is None else scheme.group_size,
        symmetric=scheme.symmetric,
        dtype=TORCH[scale_dtype(scheme, dtype)],
        clip=clip,
    )
    return stored_integers(integer.quantize(weight, grid), grid, scheme, dtype)


def _float8(weight: Tensor, scheme: Scheme, largest: float | None) -> dict[str, Tensor]:
    block = scheme.block or (0, 0)
    if scheme.strategy == "tensor" and largest is not None:
        scale = torch.tensor([largest / float8.LARGEST]).clamp(min=float8.TINY)
    else:
        strategy: Any = scheme.strategy
        scale = float8.scales(weight, strategy, block)
    return {"weight": float8.quantize(weight, scale, block), "scale": scale}


def stored_integers(codes: Tensor, grid: integer.Grid, scheme: Scheme, dtype: str) -> dict[str, Tensor]:
    """Codes and grid as the scheme's format takes them: compressed-tensors counts from -2**(b-1)."""
    scale = grid.scale.to(TORCH[scale_dtype(scheme, dtype)])
    if scheme.format == "compressed_tensors":
        half = 1 << (scheme.bits - 1)
        parts = {"weight": (codes.to(torch.int16) - half).to(torch.int8), "scale": scale}
        if not scheme.symmetric:
            parts["zero"] = (grid.zero - half).to(torch.int8)
        return parts
    return {"weight": codes, "scale": scale, "zero": grid.zero.to(torch.uint8)}


def packed(scheme: Scheme, parts: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Suffix -> bytes as they lie in the file."""
    arrays = get(scheme.format).pack(scheme, {name: as_array(tensor) for name, tensor in parts.items()})
    return {suffix: array.tobytes() for suffix, array in arrays.items()}


def packed_rows(scheme: Scheme, codes: Tensor, grid: integer.Grid, dtype: str) -> dict[str, bytes]:
    """The same of whole integer weights, packed a few rows at a time: what packing takes is several times a weight."""
    form, (n, k) = get(scheme.format), codes.shape
    specs = {tensor.suffix: tensor for tensor in stored_spec(scheme, n, k)}
    least = unit(tuple(specs.values()), "N")
    step = max(least, PACKED // k // least * least) if least else n
    whole: dict[str, Any] = {}
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        part = integer.Grid(grid.scale[rows], grid.zero[rows], grid.bits, grid.group)
        parts = stored_integers(codes[rows], part, scheme, dtype)
        arrays = form.pack(scheme, {name: as_array(tensor) for name, tensor in parts.items()})
        for suffix, array in arrays.items():
            tensor = specs[suffix]
            if suffix not in whole:
                whole[suffix] = np.empty(stored_shape(tensor, n, k), array.dtype)
            piece = form.cut(tensor, "N", rows.start, rows.stop, n)
            assert not isinstance(piece, Misaligned), "slabs are multiples of what can be cut"
            if tensor.role == "shape":
                whole[suffix] = np.array([n, k], array.dtype)
            elif piece.dim is None:
                whole[suffix] = array
            else:
                whole[suffix][(slice(None),) * piece.dim + (slice(piece.start, piece.stop),)] = array
    return {suffix: array.tobytes() for suffix, array in whole.items()}


def as_array(tensor: Tensor) -> Any:
    """numpy, with raw bits for the dtypes that it lacks."""
    tensor = tensor.contiguous().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16")
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy()
    return tensor.numpy()
