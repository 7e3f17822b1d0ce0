"""tensorizer files, one for each rank, as vLLM's `--load-format tensorizer` takes them.

vLLM puts every entry into the module that its name says and runs no further step on the layers
(vllm/model_executor/model_loader/tensorizer.py `deserialize_tensorizer_model`), so that a file holds the state as it
is when loading has ended. For plain linears, tables and norms on a GPU that is what `sharded_state` holds; experts
get their kernel in the step that is left out, and are refused.

The container (tensorizer/serialization.py of tensorizer 2.12) begins with the table that
`mlload.checkpoint.tensorizer` reads. In front of each tensor's data stands a header of its own:

    u64   length of this header
    u16   number of the module, u8 kind (0 parameter, 1 buffer)
    name (u16 length), dtype (u8 length), shape (u8 count, u32 each)
    u16   length of the hashes: u8 count; per hash u8 kind (0 CRC32, 1 SHA256), u8 length, value
    i64   bytes of data

Hashes cover this header, with zeros in their own places, and the data. A u64 of zero ends the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensorizer import MAGIC, MARKER
from mlload.plan.plan import Plan
from mlload.writer.holdings import Holdings
from mlload.writer.layout import Layout, OutputFile, OutputTensor
from mlload.writer.sharded_state import EXPERTS, SCALES, tied_names, vllm_tensors

# The lowest version that knows entries without data, which the marker is.
VERSION = 4
PARAMETER, BUFFER = 0, 1
# safetensors' dtype -> numpy's, and torch's where numpy has none of that kind.
DTYPES = {
    "F64": b"<f8", "F32": b"<f4", "F16": b"<f2", "BF16": b"<V2\0torch.bfloat16",
    "I64": b"<i8", "I32": b"<i4", "I16": b"<i2", "I8": b"|i1", "U8": b"|u1", "BOOL": b"|b1",
}  # fmt: skip
HASHES = struct.Struct("<HBBBIBB32s")  # length, count, CRC32, SHA256
NO_HASHES = struct.pack("<HB", 1, 0)
HEADER = struct.Struct("<I32sQ8xQQ")
PLACES = struct.Struct("<3Q")
TAIL = struct.Struct("<q")
PIECE = 8 * 1024 * 1024


def tensorizer_layout(plan: Plan, holdings: Holdings, *, hashed: bool) -> Layout:
    """`model.tensors`, or `model-rank-000.tensors` and so on.

    hashed: CRC32 and SHA256 of every tensor, which are added when the data is there (not into a bucket)
    """
    label = plan.model.checkpoint.label
    if plan.mesh.pp > 1:
        raise MlloadError(
            f"{label}: vLLM names tensorizer files by the tensor-parallel rank alone, so that the stages of --pp "
            f"{plan.mesh.pp} would share one",
            hint="--layout vllm writes files for every stage",
            exit_code=1,
        )
    if any(param.spec.kind == EXPERTS and param.stored and not param.spec.draft for param in plan.view.params):
        raise MlloadError(
            f"{label} has routed experts: vLLM makes their kernel in the step after loading, which its tensorizer "
            "loader leaves out",
            hint="--layout vllm writes them for --load-format sharded_state",
            exit_code=1,
        )
    names = ["model.tensors"] if plan.mesh.tp == 1 else [f"model-rank-{rank:03d}.tensors" for rank in plan.mesh.ranks]
    return Layout(
        tuple(
            tensorizer_file(name, list(_entries(plan, rank, holdings)), hashed=hashed)
            for name, rank in zip(names, plan.mesh.ranks, strict=True)
        )
    )


def _entries(plan: Plan, rank: int, holdings: Holdings) -> Iterator[OutputTensor]:
    """A worker's parameters and buffers; a parameter of two modules under both names, since each gets its own."""
    for tensor in vllm_tensors(plan, rank, holdings):
        for name in tied_names(plan, tensor.name) or (tensor.name,):
            yield replace(tensor, name=name)


def tensorizer_file(name: str, tensors: Sequence[OutputTensor], *, hashed: bool, marked: bool = True) -> OutputFile:
    """One file. marked: with the entry that tells vLLM that the names are its own"""
    modules = {
        module: number for number, module in enumerate(dict.fromkeys(t.name.rpartition(".")[0] for t in tensors))
    }
    described = [(tensor, _described(tensor, modules, hashed)) for tensor in tensors]
    marker = OutputTensor(MARKER, "I64", (0,), ())
    if marked:
        described.append((marker, _described(marker, {"": 0}, hashed, shape=(1,))))
    table = sum(len(head) + PLACES.size for _, (head, _) in described)
    at = len(MAGIC) + HEADER.size + table
    entries: list[bytes] = []
    placed: list[OutputTensor] = []
    for tensor, (head, own) in described:
        entries.append(head + PLACES.pack(at, at + len(own), tensor.nbytes))
        placed.append(replace(tensor, before=own))
        at += len(own) + tensor.nbytes
    total = sum(tensor.nbytes for tensor in placed)
    header = MAGIC + HEADER.pack(VERSION, b"", total, len(placed), table) + b"".join(entries)
    file = OutputFile(name, header, tuple(placed), at + 8)
    return replace(file, seal=partial(add_hashes, file)) if hashed else file


def _described(
    tensor: OutputTensor, modules: dict[str, int], hashed: bool, shape: tuple[int, ...] | None = None
) -> tuple[bytes, bytes]:
    """A tensor's entry of the table without its three places, and its own header."""
    shape = tensor.shape if shape is None else shape
    text = tensor.name.encode("utf-8", "surrogatepass")
    kind = BUFFER if tensor.name.rpartition(".")[2] in SCALES else PARAMETER
    dtype = DTYPES[tensor.dtype]
    form = struct.pack(f"<B{len(dtype)}sB{len(shape)}I", len(dtype), dtype, len(shape), *shape)
    head = struct.pack(f"<H{len(text)}sB", len(text), text, kind) + form
    module = modules[tensor.name.rpartition(".")[0]] & 0xFFFF
    hashes = HASHES.pack(HASHES.size - 2, 2, 0, 4, 0, 1, 32, b"") if hashed else NO_HASHES
    body = struct.pack(f"<HBH{len(text)}s", module, kind, len(text), text) + form + hashes + TAIL.pack(tensor.nbytes)
    return head, struct.pack("<Q", len(body) + 8) + body


def add_hashes(file: OutputFile, descriptor: int) -> None:
    """CRC32 and SHA256 of each header and its data, read back from the file."""
    from hashlib import sha256
    from zlib import crc32

    for tensor, offset in file.places():
        cyclic, secure = crc32(tensor.before), sha256(tensor.before)
        for start in range(0, tensor.nbytes, PIECE):
            piece = os.pread(descriptor, min(PIECE, tensor.nbytes - start), offset + start)
            cyclic = crc32(piece, cyclic)
            secure.update(piece)
        hashes = HASHES.pack(HASHES.size - 2, 2, 0, 4, cyclic, 1, 32, secure.digest())
        os.pwrite(descriptor, hashes, offset - TAIL.size - HASHES.size)
