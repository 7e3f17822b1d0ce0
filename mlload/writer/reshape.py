"""A checkpoint in files of another size: the same tensors, under Hugging Face's names for files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mlload.writer.holdings import Holdings
from mlload.writer.layout import Layout, OutputFile, OutputTensor, index_of, output_file, whole_tensor
from mlload.writer.sizes import dealt

INDEX = "model.safetensors.index.json"


def reshape(holdings: Holdings, limit: int | None, group_of: Callable[[str], str]) -> Layout:
    """Every tensor whole, in files of at most `limit` bytes (None: one file), with an index where there are several."""
    ordered = sorted(holdings.tensors.items(), key=lambda item: (item[1].stored[0].file, item[1].stored[0].offset))
    files = numbered((whole_tensor(name, held.dtype, held.shape) for name, held in ordered), limit, group_of)
    return Layout(files, {INDEX: index_of(files)} if len(files) > 1 else {})


def numbered(
    tensors: Iterable[OutputTensor], limit: int | None, group_of: Callable[[str], str], folder: str = ""
) -> tuple[OutputFile, ...]:
    """`model.safetensors`, or `model-00001-of-0000n.safetensors` and so on."""
    parts = list(dealt(tensors, limit, group_of))
    if len(parts) == 1:
        return (output_file(folder + "model.safetensors", parts[0]),)
    return tuple(
        output_file(f"{folder}model-{number:05d}-of-{len(parts):05d}.safetensors", part)
        for number, part in enumerate(parts, 1)
    )
