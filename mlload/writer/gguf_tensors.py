"""A GGUF file's tensors as those of a Hugging Face checkpoint: other names, other row order, plain numbers.

Letters: N = rows, K = values of a row, E = experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.gguf_names import hf_module
from mlload.checkpoint.gguf_types import BY_NAME
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.model import Model
from mlload.writer import gguf_kept
from mlload.writer.numbers import float_array, need_numpy

# Of float32 values at once; several arrays of that size live on the way.
PIECE = 16 * 1024 * 1024
# llama.cpp stores the norms of these types with the 1 that the model class adds (its Gemma converters).
ONE_MORE = frozenset({"gemma", "gemma2", "gemma3_text"})
# Frequencies that are no weights: they become a part of the config (rope_freqs), or are one (rope_factors_*).
ROTARY = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})


@dataclass(frozen=True, slots=True)
class Converted:
    """One tensor to write.

    name, shape: as Hugging Face has it
    dtype:       of the file
    source:      the GGUF tensor it comes from
    expert:      the slice of its first dim, where experts are stacked there
    head:        rows of a head whose halves are to be put one after another again, 0 for none
    shift:       to add to each value
    matrix:      [N, K] of the source, or of one of its experts
    part, bits:  of a weight that is kept: what it is of it, and how wide its codes are
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: TensorRef
    expert: int | None = None
    head: int = 0
    shift: float = 0.0
    matrix: tuple[int, ...] = ()
    part: str = ""
    bits: int = 0


def converted(model: Model, dtype: str, kept: Mapping[str, int]) -> Iterator[Converted]:
    """Every tensor of the checkpoint under its new name. kept: GGUF tensor -> bits. Raises MlloadError for a tensor
    that has no counterpart."""
    kind = model.config.text_type
    heads = _heads(model)
    for name, ref in model.checkpoint.tensors.items():
        if name in ROTARY:
            continue
        base, _, suffix = name.rpartition(".")
        module = hf_module(base, kind)
        if module is None or suffix not in ("weight", "bias"):
            raise MlloadError(f"{name} has no counterpart in a {kind} checkpoint, so that it cannot be converted")
        shift = -1.0 if kind in ONE_MORE and base.endswith("norm") else 0.0
        head = heads.get(base, 0)
        experts: tuple[int | None, ...] = (None,)
        shape = ref.shape
        if "{expert}" in module:
            experts, shape = tuple(range(ref.shape[0])), ref.shape[1:]
        for expert in experts:
            path = module.replace("{expert}", str(expert))
            plain = Converted(f"{path}.{suffix}", shape, dtype, ref, expert, head, shift, shape)
            if name not in kept:
                yield plain
                continue
            for part, part_dtype in gguf_kept.PARTS.items():
                sides = gguf_kept.part_shape(part, shape[0], shape[1], kept[name])
                yield replace(plain, name=f"{path}.{part}", shape=sides, dtype=part_dtype, part=part, bits=kept[name])


def _heads(model: Model) -> dict[str, int]:
    """GGUF module -> rows of a head, where the plan says that rotary pairs lie side by side."""
    found: dict[str, int] = {}
    for param in model.params:
        for transform in param.spec.transforms:
            if transform.startswith("unpair_rope:"):
                found |= dict.fromkeys(param.modules(), int(transform.partition(":")[2]))
    return found


def contents(checkpoint: Checkpoint, tensor: Converted) -> Iterator[bytes]:
    """The bytes of a tensor in order, in pieces."""
    if tensor.part == "weight_shape":
        yield gguf_kept.shape_content(tensor.matrix[0], tensor.matrix[1])
        return
    kind = tensor.source.dtype
    for raw in _rows(checkpoint, tensor):
        if tensor.part:
            from mlload.quant.formats import gguf_blocks

            blocks = gguf_blocks.blocks_of(kind, raw.reshape(-1), len(raw))
            wanted = tensor.part == "weight_packed"
            yield gguf_kept.packed(kind, blocks, tensor.bits) if wanted else gguf_kept.scales(kind, blocks)
        else:
            yield encoded(_numbers(raw, kind, tensor), tensor.dtype)


def values(checkpoint: Checkpoint, tensor: Converted) -> Iterator[Any]:
    """float32 pieces of a tensor that is not kept, in order, flat."""
    for raw in _rows(checkpoint, tensor):
        yield _numbers(raw, tensor.source.dtype, tensor)


def _numbers(raw: Any, kind: str, tensor: Converted) -> Any:
    np = need_numpy()
    block = BY_NAME[kind]
    width = raw.shape[1] // block.nbytes * block.elements
    array = dequantized(kind, raw.tobytes(), len(raw), width)
    return np.ascontiguousarray(array).reshape(-1) + np.float32(tensor.shift)


def _rows(checkpoint: Checkpoint, tensor: Converted) -> Iterator[Any]:
    """uint8 [n, bytes of a row]: stored rows in the order of the converted tensor."""
    np = need_numpy()
    ref = tensor.source
    shape = tensor.matrix
    rows, width = (1, shape[0]) if len(shape) == 1 else (prod(shape[:-1]), shape[-1])
    block = BY_NAME[ref.dtype]
    row_bytes = width // block.elements * block.nbytes
    base = ref.offset + (tensor.expert or 0) * rows * row_bytes
    if tensor.head and len(shape) == 1:
        rows, width, row_bytes = width, 1, block.nbytes
    unit = tensor.head or 1
    step = max(1, PIECE // (4 * width) // unit) * unit
    file = checkpoint.files[ref.file].name
    for start in range(0, rows, step):
        count = min(step, rows - start)
        raw = checkpoint.source.read(file, base + start * row_bytes, count * row_bytes)
        if len(raw) != count * row_bytes:
            raise MlloadError(f"{file} ends before {ref.name} does", exit_code=3)
        array = np.frombuffer(raw, np.uint8).reshape(count, row_bytes)
        if tensor.head:
            halves = array.reshape(count // tensor.head, tensor.head // 2, 2, row_bytes)
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(count, row_bytes)
        yield array


def dequantized(kind: str, raw: bytes, n: int, k: int) -> Any:
    """float32 [n, k] of n stored rows."""
    from mlload.quant.formats import gguf_blocks

    if BY_NAME[kind].elements == 1:
        return float_array(raw, kind).astype("float32").reshape(n, k)
    if kind not in gguf_blocks.READABLE:
        raise MlloadError(
            f"GGUF type {kind} cannot be read yet; readable: {', '.join(sorted(gguf_blocks.READABLE))}", exit_code=1
        )
    np = need_numpy()
    parts = gguf_blocks.decode(kind, gguf_blocks.blocks_of(kind, np.frombuffer(raw, np.uint8), n))
    return gguf_blocks.values(kind, parts).reshape(n, k)


def encoded(array: Any, dtype: str) -> bytes:
    """float32 values in a file's dtype, rounded to nearest, ties to even."""
    np = need_numpy()
    if dtype == "F32":
        raw: bytes = array.astype("<f4").tobytes()
        return raw
    if dtype == "F16":
        with np.errstate(over="ignore"):
            half: bytes = array.astype("<f2").tobytes()
        return half
    bits = array.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
    bf16: bytes = rounded.astype("<u2").tobytes()
    return bf16


def factors(checkpoint: Checkpoint, names: Mapping[str, TensorRef]) -> dict[str, list[float]]:
    """Values of the rotary tensors by their names."""
    return {
        name: [float(x) for piece in values(checkpoint, _as_it_is(ref)) for x in piece]
        for name, ref in names.items()
        if name in ROTARY
    }


def _as_it_is(ref: TensorRef) -> Converted:
    return Converted(ref.name, ref.shape, "F32", ref, matrix=ref.shape)
