"""Triton's interpreter as these tests need it. Imported before any kernel runs.

The interpreter multiplies the raw bits of bf16 in `tl.dot`, loses bits of bf16's subnormals, and cuts fp32 off on its
way to bf16 and e4m3 where a GPU rounds to nearest even. Mended here, so that what a test sees is the kernel's
arithmetic and not the interpreter's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar == tl.bfloat16:
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)
    return handle


_dot = interpreter.InterpreterBuilder.create_dot
_extend = interpreter.InterpreterBuilder.create_fp_ext
_truncate = interpreter.InterpreterBuilder.create_fp_trunc
_convert = interpreter.InterpreterBuilder.create_fp_to_fp


def _create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    return _dot(self, _widened(a), _widened(b), *rest)


def _create_fp_ext(self: Any, source: Any, to: Any) -> Any:
    bf16 = source.dtype.scalar == tl.bfloat16 and to.scalar == tl.float32
    return _widened(source) if bf16 else _extend(self, source, to)


def _create_fp_trunc(self: Any, source: Any, to: Any) -> Any:
    if to.scalar == tl.bfloat16 and source.dtype.scalar == tl.float32:
        bits = np.ascontiguousarray(source.data).view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        rounded = np.where(np.isnan(source.data), np.uint16(0x7FC0), rounded)
        return interpreter.TensorHandle(rounded.reshape(source.data.shape), tl.bfloat16)
    return _truncate(self, source, to)


def _create_fp_to_fp(self: Any, source: Any, to: Any, rounding: Any) -> Any:
    if to.scalar == tl.float8e4nv and source.dtype.scalar == tl.float32:
        values = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.float8_e4m3fn)
        return interpreter.TensorHandle(values.view(torch.uint8).numpy().reshape(source.data.shape), tl.float8e4nv)
    return _convert(self, source, to, rounding)


interpreter.InterpreterBuilder.create_dot = _create_dot
interpreter.InterpreterBuilder.create_fp_ext = _create_fp_ext
interpreter.InterpreterBuilder.create_fp_to_fp = _create_fp_to_fp
interpreter.InterpreterBuilder.create_fp_trunc = _create_fp_trunc
