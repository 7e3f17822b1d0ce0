"""Small checkpoints made byte by byte, without any of the code that is tested."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "F64": 8, "I64": 8, "F8_E8M0": 1}


def entries(tensors: Mapping[str, tuple[str, list[int]]]) -> dict[str, Any]:
    """A header's entries for name -> (dtype, shape), one behind the other."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in tensors.items():
        nbytes = BYTES[dtype]
        for size in shape:
            nbytes *= size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    return header


def data_length(header: Mapping[str, Any]) -> int:
    return max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)


def raw_safetensors(header: bytes, data: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def safetensors_bytes(header: Mapping[str, Any], data: bytes | None = None) -> bytes:
    """A file for a header (as `entries` makes it), padded as safetensors pads, with counting bytes as data."""
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    if data is None:
        data = bytes(i % 251 for i in range(data_length(header)))
    return raw_safetensors(raw, data)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int]]], metadata: Any = None) -> Path:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    header.update(entries(tensors))
    path.write_bytes(safetensors_bytes(header))
    return path


def write_index(folder: Path, weight_map: Mapping[str, str], total: Any = None, name: str | None = None) -> Path:
    path = folder / (name or "model.safetensors.index.json")
    path.write_text(json.dumps({"metadata": {} if total is None else {"total_size": total}, "weight_map": weight_map}))
    return path


def layer(number: int, width: int = 4) -> dict[str, tuple[str, list[int]]]:
    """Two weights of one decoder layer."""
    prefix = f"model.layers.{number}."
    return {
        prefix + "self_attn.q_proj.weight": ("F32", [width, width]),
        prefix + "mlp.down_proj.weight": ("F32", [width, 2 * width]),
    }


def write_sharded(folder: Path, shards: int = 4, layers_each: int = 2) -> dict[str, str]:
    """A folder of numbered files with an index and a config; returns the weight_map."""
    weight_map: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        tensors: dict[str, tuple[str, list[int]]] = {}
        for number in range(shard * layers_each, (shard + 1) * layers_each):
            tensors.update(layer(number))
        write_safetensors(folder / name, tensors, {"format": "pt"})
        total += data_length(entries(tensors))
        weight_map.update(dict.fromkeys(tensors, name))
    write_index(folder, weight_map, total)
    write_config(folder)
    return weight_map


def write_config(folder: Path, **fields: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **fields}))


# GGUF

GGUF_TYPES = {"uint32": 4, "string": 8, "array": 9, "uint64": 10, "uint16": 2, "bool": 7, "float32": 6}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key_value(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def string_key(key: str, value: str) -> bytes:
    return key_value(key, 8, text(value))


def uint32_key(key: str, value: int) -> bytes:
    return key_value(key, 4, struct.pack("<I", value))


def string_array(key: str, values: list[str]) -> bytes:
    return key_value(key, 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(text, values)))


def tensor_info(name: str | bytes, dims: list[int], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_bytes(
    keys: list[bytes],
    tensors: list[bytes],
    data: bytes,
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """counts: (tensors, keys) to claim, where they are to lie."""
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data
