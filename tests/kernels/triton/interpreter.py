"""Triton's interpreter as these tests need it. Imported before any kernel runs.

The interpreter multiplies the raw bits of bf16 in `tl.dot`, and cuts fp32 off where a GPU rounds to nearest even.
Both are mended here, so that what a test sees is the kernel's arithmetic and not the interpreter's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar == tl.bfloat16:
        wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)
    return handle


_dot = interpreter.InterpreterBuilder.create_dot
_truncate = interpreter.InterpreterBuilder.create_fp_trunc


def _create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    return _dot(self, _widened(a), _widened(b), *rest)


def _create_fp_trunc(self: Any, source: Any, to: Any) -> Any:
    if to.scalar == tl.bfloat16 and source.dtype.scalar == tl.float32:
        bits = np.ascontiguousarray(source.data).view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        rounded = np.where(np.isnan(source.data), np.uint16(0x7FC0), rounded)
        return interpreter.TensorHandle(rounded.reshape(source.data.shape), tl.bfloat16)
    return _truncate(self, source, to)


interpreter.InterpreterBuilder.create_dot = _create_dot
interpreter.InterpreterBuilder.create_fp_trunc = _create_fp_trunc
