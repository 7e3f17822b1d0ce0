"""load_format "mlload_state": what `mlload shard --layout mlload` wrote, at the same size or at another.

A rank of the size that the folder was cut for reads its own folder and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader, Destinations, RankTensor
from mlload.loader.reader import read_tensors
from mlload.loader.reads import Read, pieces
from mlload.plan.plan import Plan
from mlload.plan.segments import Box, Segment
from mlload.writer.boxes import bytes_box, bytes_shape, intersect, moved, volume
from mlload.writer.holdings import Held, without
from mlload.writer.read_state import is_state, of_state, read_state


class MlloadStateLoader(BaseModelLoader):
    def tensors(self, plan: Plan, rank: int, destinations: Destinations) -> Iterator[RankTensor]:
        checkpoint = Checkpoint.open(plan.model.checkpoint.source)
        if not is_state(checkpoint):
            raise MlloadError(
                f"{checkpoint.label} was not written by mlload shard", hint="mlload shard SOURCE -o FOLDER --tp N"
            )
        _, holdings = read_state(checkpoint)
        reads = [
            piece
            for segment in plan.segments(rank)
            if segment.tensor in holdings.tensors
            for read in _reads(segment, holdings[segment.tensor], f"rank-{rank:05d}/")
            for piece in pieces(read)
        ]
        reads.sort(key=lambda read: (read.file, read.first))
        return read_tensors(checkpoint.source, reads, destinations)


def whole_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """A folder of this layout as the checkpoint that was cut; any other as it is."""
    return read_state(checkpoint)[0] if is_state(checkpoint) else checkpoint


def holds_state(checkpoint: Checkpoint) -> bool:
    """Whether the (whole) checkpoint lies in this layout."""
    return any("/" in file.name and of_state(file.name) for file in checkpoint.files)


def _reads(segment: Segment, held: Held, own: str) -> Iterator[Read]:
    """The segment's box from the shares that hold it, the rank's own first."""
    pending = [segment.box]
    for stored in sorted(held.stored, key=lambda one: not one.file.startswith(own)):
        for box, place in stored.held:
            rest: list[Box] = []
            for part in pending:
                common = intersect(part, box)
                if common is None:
                    rest.append(part)
                    continue
                rest += without(part, box, common)
                yield Read(
                    segment.tensor,
                    stored.file,
                    stored.offset,
                    bytes_shape(stored.shape, held.dtype),
                    bytes_box(moved(common, box, place), held.dtype),
                    held.dtype,
                    moved(common, segment.box, segment.to) or ((0, 1),),
                )
            pending = rest
    if any(volume(part) for part in pending):
        raise MlloadError(f"{segment.tensor}: the folder does not hold all of it", exit_code=1)
