"""Where the bytes of a checkpoint's tensors lie: in one piece each, or in the shares of many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.plan.segments import Box
from mlload.writer.boxes import Shape, whole


class Stored(NamedTuple):
    """One tensor in one file: where it lies, and which boxes of the whole tensor it holds.

    file:   name in the source
    offset: bytes from the start of the file
    shape:  of the stored tensor
    held:   (box of the whole tensor, its place in the stored one)
    """

    file: str
    offset: int
    shape: Shape
    held: tuple[tuple[Box, Box], ...]


class Held(NamedTuple):
    """A whole tensor and all its shares, the preferred ones first."""

    dtype: str
    shape: Shape
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Holdings:
    """source: to read from; tensors: by name; fingerprint: changes when the source does"""

    source: Source
    tensors: dict[str, Held]
    fingerprint: str

    def __getitem__(self, name: str) -> Held:
        return self.tensors[name]


def holdings_of(checkpoint: Checkpoint) -> Holdings:
    """Those of a checkpoint of safetensors files. Raises MlloadError for other kinds."""
    refuse_foreign(checkpoint)
    return whole_holdings(checkpoint)


def whole_holdings(checkpoint: Checkpoint) -> Holdings:
    """Those of a checkpoint whose tensors lie in one piece each, as plain elements."""
    names = [file.name for file in checkpoint.files]
    tensors = {name: _whole(ref, names) for name, ref in checkpoint.tensors.items()}
    return Holdings(checkpoint.source, tensors, fingerprint(checkpoint))


def _whole(ref: TensorRef, names: list[str]) -> Held:
    box = whole(ref.shape)
    return Held(ref.dtype, ref.shape, (Stored(names[ref.file], ref.offset, ref.shape, ((box, box),)),))


def fingerprint(checkpoint: Checkpoint) -> str:
    """Of headers and files: names, sizes, digests or times of change, and the headers' own digest."""
    import hashlib
    import os

    digest = hashlib.blake2b(checkpoint.fingerprint.encode(), digest_size=16)
    path = getattr(checkpoint.source, "path", None)
    for file in checkpoint.files:
        if not file.used:
            continue
        stamp = file.digest or checkpoint.revision or ""
        if path is not None and not stamp:
            try:
                stamp = str(os.stat(path(file.name)).st_mtime_ns)
            except OSError as error:
                raise MlloadError(f"{file.name} is gone since it was listed: {error.strerror}", exit_code=3) from error
        digest.update(f"{file.name}\0{file.size}\0{stamp}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def refuse_foreign(checkpoint: Checkpoint) -> None:
    """Only whole safetensors tensors can be copied byte by byte into safetensors files."""
    label = checkpoint.label
    if checkpoint.format in ("gguf", "torch"):
        what = "a GGUF" if checkpoint.format == "gguf" else "a torch.save"
        raise MlloadError(
            f"{label} is {what} file; its tensors are not those of a Hugging Face folder",
            hint=f"mlload convert {label} -o FOLDER, then go on with that",
        )
    if checkpoint.format == "sharded_state":
        raise MlloadError(
            f"{label} holds vLLM's sharded_state: tensors fused and padded per rank",
            hint=f"mlload shard {label} -o FOLDER --merge makes a checkpoint of it",
        )
    if checkpoint.format not in ("safetensors", "adapter") or not checkpoint.tensors:
        fault = next((one.message for one in checkpoint.problems if one.severity == "error"), "")
        raise MlloadError(fault or f"{label} holds no safetensors weights", exit_code=3 if fault else 2)
    broken = [p for p in checkpoint.problems if p.severity == "error" and p.question == "starts"]
    if broken:
        raise MlloadError(
            f"{label} is not whole: {broken[0].message}", hint=f"mlload inspect {label} shows all of it", exit_code=1
        )
    unknown = sorted({ref.dtype for ref in checkpoint.tensors.values()} - set(DTYPE_BITS))
    if unknown:
        raise MlloadError(f"{label} has tensors of an unknown dtype: {', '.join(unknown)}", exit_code=1)


def overlaps(held: Held) -> Iterator[tuple[Stored, Box, Stored, Box]]:
    """Boxes that two shares both hold, as (one, its box, other, its box): replicas that must be equal.

    Each box is compared with the first share that holds it.
    """
    from mlload.writer.boxes import intersect, moved

    seen: list[tuple[Stored, Box, Box]] = []
    for stored in held.stored:
        for box, place in stored.held:
            for other, other_box, other_place in seen:
                common = intersect(box, other_box)
                if common is not None:
                    yield other, moved(common, other_box, other_place), stored, moved(common, box, place)
        seen += [(stored, box, place) for box, place in stored.held]


def uncovered(name: str, held: Held) -> MlloadError | None:
    """The sentence for a whole tensor that its shares do not fill, None where they do."""
    from mlload.writer.boxes import volume

    total = volume(whole(held.shape))
    if sum(volume(part) for part in _disjoint(held.stored)) == total:
        return None
    return MlloadError(f"{name}: the ranks do not hold all of it", exit_code=1)


def _disjoint(stored: Iterable[Stored]) -> list[Box]:
    from mlload.writer.boxes import intersect

    found: list[Box] = []
    for share in stored:
        for box, _ in share.held:
            pending = [box]
            for taken in found:
                pending = [piece for part in pending for piece in without(part, taken, intersect(part, taken))]
            found += pending
    return found


def without(box: Box, taken: Box, common: Box | None) -> list[Box]:
    """A box without what another one covers, as disjoint boxes."""
    if common is None:
        return [box]
    pieces: list[Box] = []
    rest = list(box)
    for dim, ((start, stop), (low, high)) in enumerate(zip(box, common, strict=True)):
        if start < low:
            pieces.append((*rest[:dim], (start, low), *rest[dim + 1 :]))
        if high < stop:
            pieces.append((*rest[:dim], (high, stop), *rest[dim + 1 :]))
        rest[dim] = (low, high)
    return pieces
