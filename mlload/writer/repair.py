"""What is wrong with a folder's index and files, and how it is put right: planned first, then carried out.

Every file is replaced as a whole (written beside, synced, renamed), weights before the index: stopped at any
moment, the folder is as sound as it was.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.headers import read_headers
from mlload.checkpoint.sources.base import Range
from mlload.checkpoint.tensor import TensorRef
from mlload.checkpoint.weight_files import HF_INDEX
from mlload.writer.boxes import whole
from mlload.writer.copies import copies, jobs
from mlload.writer.execute import Copier, write_all
from mlload.writer.folder import sync_folder
from mlload.writer.holdings import Held, Holdings, Stored
from mlload.writer.layout import FORMAT, Layout, index_text, output_file, whole_tensor
from mlload.writer.ranks import is_cut

PIECE = 8 * 1024 * 1024
PARTIAL = ".mlload-partial"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A weight file written anew. keep: its tensors from now on; drop: those that another file has too; marked: its
    metadata lacked `format: pt`"""

    file: str
    keep: tuple[TensorRef, ...]
    drop: tuple[str, ...]
    marked: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """rewrites: weight files to write anew; index: the text of a new index, None to leave it; reasons: why, a
    sentence each"""

    rewrites: tuple[Rewrite, ...]
    index: bytes | None
    reasons: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        return not self.rewrites and self.index is None


def plan_repair(checkpoint: Checkpoint, *, index: bool = True, dedup: bool = True) -> Repair:
    """What there is to do. Raises MlloadError where no rewriting helps: a file is missing or cannot be read."""
    if is_cut(checkpoint):
        raise MlloadError(
            f"{checkpoint.label} holds the ranks of a cut, which have no index to repair",
            hint=f"mlload shard {shlex.quote(checkpoint.label)} -o FOLDER --merge makes a checkpoint of it",
        )
    if checkpoint.format != "safetensors":
        raise MlloadError(f"{checkpoint.label} holds no safetensors weights; only those have an index to repair")
    by_file = _tensors_by_file(checkpoint)
    reasons: list[str] = []
    owner = _owners(checkpoint, by_file)
    _refuse_missing(checkpoint, owner)
    rewrites: list[Rewrite] = []
    for file, refs in by_file.items():
        drop = tuple(ref.name for ref in refs if owner[ref.name] != file) if dedup else ()
        marked = dedup and (checkpoint.metadata.get(file) or {}).get("format") is None
        if drop or marked:
            kept = tuple(ref for ref in refs if ref.name not in set(drop))
            rewrites.append(Rewrite(file, kept, drop, marked))
        if drop:
            _refuse_unequal(checkpoint, by_file, owner, file, drop)
            reasons.append(f"{file}: {len(drop):,} tensors that another file has too are left out ({drop[0]})")
        if marked:
            reasons.append(f"{file}: its metadata gets format: pt, which transformers wants")
    text = None
    if index:
        text, why = _index(checkpoint, by_file, owner)
        reasons += why
    return Repair(tuple(rewrites), text, tuple(reasons))


def _tensors_by_file(checkpoint: Checkpoint) -> dict[str, list[TensorRef]]:
    """Headers of the files that an engine reads, and of those beside them that hold what the others lack."""
    listing = checkpoint.source.files()
    numbers = {file.name: position for position, file in enumerate(listing)}
    used = [file.name for file in checkpoint.files if file.used]
    beside = sorted({listing[ref.file].name for ref in checkpoint.stray.values() if ref.name not in checkpoint.tensors})
    names = used + [
        name for name in beside if name.endswith(".safetensors") and not name.startswith(("consolidated", "adapter"))
    ]
    headers = read_headers(checkpoint.source, names, listing, numbers, None)
    broken = [finding for finding in headers.findings if finding.severity == "error"]
    if broken:
        raise MlloadError(
            f"{broken[0].message} An index cannot repair that.",
            hint=f"mlload inspect {checkpoint.label} shows what to fetch again",
            exit_code=1,
        )
    return headers.by_file


def _owners(checkpoint: Checkpoint, by_file: dict[str, list[TensorRef]]) -> dict[str, str]:
    """Tensor -> the file that keeps it: as the index says where it says something true, else the first."""
    owner: dict[str, str] = {}
    named = checkpoint.index.weight_map if checkpoint.index else {}
    for file, refs in by_file.items():
        for ref in refs:
            if ref.name not in owner or named.get(ref.name) == file:
                owner[ref.name] = file
    return owner


def _refuse_missing(checkpoint: Checkpoint, owner: dict[str, str]) -> None:
    named = checkpoint.index.weight_map if checkpoint.index else {}
    there = {file.name for file in checkpoint.files}
    lost = [(name, file) for name, file in named.items() if name not in owner and file not in there]
    if lost:
        raise MlloadError(
            f"{checkpoint.label}: {lost[0][1]} is missing, and with it {len(lost):,} tensors ({lost[0][0]}); "
            "an index without them would only hide that",
            hint="fetch the missing file again",
            exit_code=1,
        )


def _refuse_unequal(
    checkpoint: Checkpoint,
    by_file: dict[str, list[TensorRef]],
    owner: dict[str, str],
    file: str,
    names: tuple[str, ...],
) -> None:
    """Only copies of equal bytes are left out; which of two others is right, the files do not say."""
    mine = {ref.name: ref for ref in by_file[file]}
    for name in names:
        other = next(ref for ref in by_file[owner[name]] if ref.name == name)
        same = (mine[name].dtype, mine[name].shape) == (other.dtype, other.shape)
        if not same or not _equal(checkpoint, file, mine[name], owner[name], other):
            raise MlloadError(
                f"{name} differs between {owner[name]} and {file}; which of them is right, the files do not say",
                hint="--index repairs the index alone",
                exit_code=1,
            )


def _equal(checkpoint: Checkpoint, file: str, ref: TensorRef, other_file: str, other: TensorRef) -> bool:
    for start in range(0, ref.nbytes, PIECE):
        length = min(PIECE, ref.nbytes - start)
        ranges = [Range(file, ref.offset + start, length), Range(other_file, other.offset + start, length)]
        one, two = checkpoint.source.read_many(ranges)
        for piece in (one, two):
            if isinstance(piece, Exception):
                raise piece
        if one != two:
            return False
    return True


def _index(
    checkpoint: Checkpoint, by_file: dict[str, list[TensorRef]], owner: dict[str, str]
) -> tuple[bytes | None, list[str]]:
    sizes = {ref.name: ref.nbytes for refs in by_file.values() for ref in refs}
    total = sum(sizes.values())
    old = checkpoint.index
    broken = any(finding.code in ("FI030", "FI037", "FI039") for finding in checkpoint.problems)
    if old is None and len(by_file) == 1 and not broken:
        return None, []
    why: list[str] = []
    if old is None:
        why.append(f"{HF_INDEX}: there is none that can be read; {len(owner):,} tensors in {len(by_file)} files")
    else:
        moved = sum(1 for name, file in owner.items() if name in old.weight_map and old.weight_map[name] != file)
        added = sum(1 for name in owner if name not in old.weight_map)
        gone = sum(1 for name in old.weight_map if name not in owner)
        if moved or added or gone or broken:
            tensors = "tensor" if added == 1 else "tensors"
            why.append(f"{old.name}: {added:,} {tensors} added, {moved:,} put where they lie, {gone:,} removed")
        if old.total_size != total:
            why.append(f"{old.name}: total_size {old.total_size} becomes {total}")
    return (index_text(owner, total), why) if why else (None, [])


def carry_out(checkpoint: Checkpoint, repair: Repair) -> None:
    """Replace files in place, one after another."""
    root = getattr(checkpoint.source, "path", None)
    if root is None or checkpoint.source.remote:
        raise MlloadError(f"{checkpoint.label} is not on this disk: --in-place repairs folders only")
    for rewrite in repair.rewrites:
        path = root(rewrite.file)
        if rewrite.keep:
            _rewrite(checkpoint, rewrite, path)
        else:
            os.unlink(path)  # every tensor of it lies elsewhere
    if repair.index is not None:
        name = checkpoint.index.name if checkpoint.index else HF_INDEX
        with replaced(root(name)) as descriptor:
            write_all(descriptor, [memoryview(repair.index)], 0)


def _rewrite(checkpoint: Checkpoint, rewrite: Rewrite, path: str) -> None:
    metadata = {str(key): str(value) for key, value in (checkpoint.metadata.get(rewrite.file) or {}).items()}
    tensors = [whole_tensor(ref.name, ref.dtype, ref.shape) for ref in rewrite.keep]
    layout = Layout((output_file(rewrite.file, tensors, {**FORMAT, **metadata}),))
    held = {
        ref.name: Held(
            ref.dtype,
            ref.shape,
            (Stored(rewrite.file, ref.offset, ref.shape, ((whole(ref.shape), whole(ref.shape)),)),),
        )
        for ref in rewrite.keep
    }
    found = copies(layout, Holdings(checkpoint.source, held, ""))
    with replaced(path) as descriptor:
        os.ftruncate(descriptor, layout.files[0].size)
        os.pwrite(descriptor, layout.files[0].header, 0)
        Copier(checkpoint.source, [descriptor]).run(jobs(found))


@contextmanager
def replaced(path: str) -> Iterator[int]:
    """`with replaced(path) as descriptor:` writes a new file beside, which takes the name at the end."""
    beside = path + PARTIAL
    try:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise MlloadError(f"{beside} cannot be written: {error.strerror}", exit_code=1) from error
    try:
        yield descriptor
        os.fsync(descriptor)
    except BaseException:
        os.unlink(beside)
        raise
    finally:
        os.close(descriptor)
    os.replace(beside, path)
    sync_folder(os.path.dirname(path) or ".")
