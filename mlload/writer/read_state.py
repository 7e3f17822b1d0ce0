"""The `mlload` layout read back: whole tensors again, each with the ranks' shares that it consists of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mlload.checkpoint import json_text
from mlload.checkpoint.checkpoint import Checkpoint, Cut
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.headers import read_headers
from mlload.checkpoint.json_text import BadJson
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.plan.segments import Box
from mlload.writer.boxes import bytes_shape, extent, whole
from mlload.writer.holdings import Held, Holdings, Stored, uncovered
from mlload.writer.state import LAYOUT, MANIFEST, UNASSIGNED, VERSION

_RANK = re.compile(r"rank-\d{5}", re.ASCII)


def is_state(checkpoint: Checkpoint) -> bool:
    """Whether the folder was written by `mlload shard --layout mlload`."""
    names = {file.name for file in checkpoint.files}
    return MANIFEST in names and any(of_state(name) for name in names - {MANIFEST})


def of_state(name: str) -> bool:
    """Whether a file belongs to the layout: the manifest, and what lies in the ranks' folders."""
    folder = name.split("/")[0] if "/" in name else ""
    return name == MANIFEST or folder == UNASSIGNED or _RANK.fullmatch(folder) is not None


def read_state(checkpoint: Checkpoint) -> tuple[Checkpoint, Holdings]:
    """A checkpoint of whole tensors, and where their bytes lie. Raises MlloadError where the folder is not what its
    manifest says."""
    manifest = read_manifest(checkpoint)
    names = [file.name for file in checkpoint.files if file.name.endswith(".safetensors") and of_state(file.name)]
    listing = checkpoint.source.files()
    numbers = {file.name: position for position, file in enumerate(listing)}
    headers = read_headers(checkpoint.source, names, listing, numbers, None)
    if headers.findings:
        raise MlloadError(f"{checkpoint.label}: {headers.findings[0].message}", exit_code=1)
    shares: dict[tuple[str, str], tuple[str, TensorRef]] = {
        (file.split("/")[0], ref.name): (file, ref) for file, refs in headers.by_file.items() for ref in refs
    }
    tensors: dict[str, Held] = {}
    judged: set[int] = set()
    for name, number in manifest["tensors"].items():
        held = _held(name, manifest["cuts"][number], shares, checkpoint.label)
        if number not in judged:
            judged.add(number)
            problem = uncovered(name, held)
            if problem is not None:
                raise problem
        tensors[name] = held
    whole_refs = {name: TensorRef(name, held.dtype, held.shape, 0, 0, _nbytes(held)) for name, held in tensors.items()}
    used = set(names)
    files = tuple(file._replace(used=file.name in used) for file in checkpoint.files if file.name != MANIFEST)
    return (
        replace(
            checkpoint,
            tensors=whole_refs,
            format="safetensors",
            files=files,
            index=None,
            problems=(),
            cut=Cut("mlload", manifest["tp"], manifest["pp"], manifest["ep"]),
        ),
        Holdings(checkpoint.source, tensors, _fingerprint(checkpoint, headers.fingerprint)),
    )


def read_manifest(checkpoint: Checkpoint) -> dict[str, Any]:
    """The manifest, checked for what a reader relies on."""
    try:
        value = json_text.parse_object(checkpoint.source.read(MANIFEST))
    except BadJson as cause:
        raise MlloadError(f"{checkpoint.label}: {MANIFEST} {cause}", exit_code=1) from None
    if value.get("layout") != LAYOUT:
        raise MlloadError(f"{checkpoint.label}: {MANIFEST} is not that of an mlload layout", exit_code=1)
    if value.get("layout_version") != VERSION:
        raise MlloadError(
            f"{checkpoint.label} has layout version {value.get('layout_version')!r}; this mlload reads {VERSION}",
            exit_code=3,
        )
    cuts, tensors = value.get("cuts"), value.get("tensors")
    sound = (
        all(type(value.get(size)) is int and value[size] > 0 for size in ("tp", "pp"))
        and type(value.get("ep")) is bool
        and isinstance(cuts, list)
        and isinstance(tensors, dict)
        and all(type(number) is int and 0 <= number < len(cuts) for number in tensors.values())
        and all(_is_cut(cut) for cut in cuts)
    )
    if not sound:
        raise MlloadError(f"{checkpoint.label}: {MANIFEST} does not say how its tensors were cut", exit_code=1)
    return value


def _is_cut(cut: Any) -> bool:
    if not isinstance(cut, dict) or cut.get("dtype") not in DTYPE_BITS or not isinstance(cut.get("shares"), dict):
        return False
    shape = cut.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        return False
    return all(
        boxes is None or (isinstance(boxes, list) and all(_is_pair(pair, shape) for pair in boxes))
        for boxes in cut["shares"].values()
    )


def _is_pair(pair: Any, shape: list[int]) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    for box in pair:
        if not isinstance(box, list) or len(box) != len(shape):
            return False
        for span in box:
            if not isinstance(span, list) or len(span) != 2 or not all(type(at) is int for at in span):
                return False
            if not 0 <= span[0] <= span[1]:
                return False
    return all(stop <= size for (_, stop), size in zip(pair[0], shape, strict=True))


def _held(name: str, cut: dict[str, Any], shares: dict[tuple[str, str], tuple[str, TensorRef]], label: str) -> Held:
    shape = tuple(cut["shape"])
    stored: list[Stored] = []
    for folder, boxes in cut["shares"].items():
        found = shares.get((folder, name))
        if found is None:
            raise MlloadError(f"{label}: {folder} has no {name}, which the manifest puts there", exit_code=1)
        file, ref = found
        held = ((whole(shape), whole(shape)),) if boxes is None else tuple(_pairs(boxes))
        fits = ref.dtype == cut["dtype"] and all(
            extent(box) == extent(place)
            and len(place) == len(ref.shape)
            and all(stop <= size for (_, stop), size in zip(place, ref.shape, strict=True))
            for box, place in held
        )
        if not fits:
            raise MlloadError(
                f"{label}: {name} in {file} is {ref.dtype} {list(ref.shape)}, which is not what the manifest says",
                exit_code=1,
            )
        stored.append(Stored(file, ref.offset, ref.shape, held))
    return Held(cut["dtype"], shape, tuple(stored))


def _pairs(boxes: list[Any]) -> Iterator[tuple[Box, Box]]:
    for box, place in boxes:
        yield tuple((a, b) for a, b in box), tuple((a, b) for a, b in place)


def _nbytes(held: Held) -> int:
    from math import prod

    return prod(bytes_shape(held.shape, held.dtype))


def _fingerprint(checkpoint: Checkpoint, headers: str) -> str:
    """Of all files: an edit of one of them makes another source."""
    from mlload.writer.holdings import fingerprint

    used = tuple(file._replace(used=True) for file in checkpoint.files if of_state(file.name))
    return fingerprint(replace(checkpoint, files=used, fingerprint=headers))
