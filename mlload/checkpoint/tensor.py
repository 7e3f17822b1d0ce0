"""One tensor of a checkpoint as its file's header describes it, and the dtypes there are.

Dtype names are those of safetensors headers ("BF16", "F8_E4M3", ...); GGUF block types keep
their own names ("Q4_K"), see `mlload.checkpoint.gguf`.
"""

from __future__ import annotations

from typing import NamedTuple

# Bits per element, as safetensors defines them (safetensors/src/tensor.rs, `Dtype::bitsize`).
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class TensorRef(NamedTuple):
    """Where one tensor lies.

    name:   as stored
    dtype:  safetensors' name, or a GGUF type name
    shape:  in torch's order ([N, K] for a linear), also for GGUF, whose files reverse it
    file:   index into `Checkpoint.files`
    offset: first byte, counted from the start of the file
    nbytes: bytes occupied in the file

    A NamedTuple and not a dataclass: a large checkpoint has 100,000 of them, and they are made
    on the way to an answer that should take a fraction of a second.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int
