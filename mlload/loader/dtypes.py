"""File dtypes as torch's. Block types of GGUF and packed 4-bit elements are bytes to torch."""

from __future__ import annotations

import torch

TORCH: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "C64": torch.complex64,
}


def torch_dtype(name: str) -> torch.dtype:
    """Of a stored tensor; uint8 for what torch has no elements of ("Q4_K", "F4")."""
    return TORCH.get(name, torch.uint8)


def name_of(dtype: torch.dtype) -> str:
    """The safetensors name of a torch dtype."""
    return next(name for name, known in TORCH.items() if known == dtype)
