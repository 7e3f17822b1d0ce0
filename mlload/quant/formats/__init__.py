"""What quantized weights look like on disk: one module a format, the same names in each.

Nothing here imports torch, and numpy only where arrays are touched. Entry points:

detect(checkpoint)             what a checkpoint's quantization is, from config and content
assume("awq:g128")             what it would be, for a model that is not quantized yet
get(name)                      the module of a format
spec(scheme, n, k)             the stored tensors of a linear; `tensors.shape` and `tensors.cut` work on them
roles(scheme), effective_bits(scheme)
"""

from __future__ import annotations

from mlload.quant.formats.assume import assume
from mlload.quant.formats.detection import detect
from mlload.quant.formats.facts import effective_bits, kernel_only, roles, spec
from mlload.quant.formats.kv import kv_scale_names
from mlload.quant.formats.registry import get

__all__ = ["assume", "detect", "effective_bits", "get", "kernel_only", "kv_scale_names", "roles", "spec"]
