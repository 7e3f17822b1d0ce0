"""Copies of the real model to damage: weights are links to the cache until something rewrites them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.acceptance.twins import Tensors, twin

SHARDS = 6
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"


def base(model: Path, name: str) -> Path:
    """The healthy folder that a damage starts from: "plain", "sharded", or a quantized twin by its format."""
    if name == "plain":
        return model
    return sharded(model) if name == "sharded" else twin(model, name)


def sharded(source: Path) -> Path:
    """The same weights in several files with an index, beside `source`; made once."""
    folder = source.with_name(f"{source.name}-sharded")
    if folder.is_dir():
        return folder
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        tensors = load_file(source / WHOLE)
        names = sorted(tensors)
        files = [f"model-{number:05}-of-{SHARDS:05}.safetensors" for number in range(1, SHARDS + 1)]
        weight_map = {name: files[position * SHARDS // len(names)] for position, name in enumerate(names)}
        for file in files:
            own = {name: tensors[name] for name in names if weight_map[name] == file}
            save_file(own, beside / file, metadata={"format": "pt"})
        total = sum(tensor.nbytes for tensor in tensors.values())
        (beside / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
        for path in source.iterdir():
            if path.is_file() and path.name != WHOLE:
                shutil.copy(path, beside)
        beside.chmod(0o755)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def link(source: Path, folder: Path) -> None:
    """`source` again at `folder`: small files copied, weights linked."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path.resolve())
        elif path.is_file():
            shutil.copy(path, folder)


def edit_json(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content, indent=2))


def file_of(folder: Path, tensor: str) -> str:
    """The file that holds a tensor."""
    if not (folder / INDEX).exists():
        return WHOLE
    return str(json.loads((folder / INDEX).read_text())["weight_map"][tensor])


def rewrite(folder: Path, tensor: str, change: Callable[[Tensors], Any]) -> None:
    """The file that holds `tensor`, written again after `change`; the index is left as it is."""
    path = folder / file_of(folder, tensor)
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata={"format": "pt"})


def forget(folder: Path, tensor: str) -> None:
    """A tensor that is in no file and in no index."""
    rewrite(folder, tensor, lambda tensors: tensors.pop(tensor))
    if (folder / INDEX).exists():
        edit_json(folder, INDEX, lambda index: index["weight_map"].pop(tensor))


def replace_file(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def cut_file(folder: Path, name: str, keep: float) -> None:
    """The first part of a file."""
    content = (folder / name).read_bytes()
    replace_file(folder, name, content[: int(len(content) * keep)])


def constant(shape: tuple[int, ...], value: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)
