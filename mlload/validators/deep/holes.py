"""Runs of zeros that do not follow the rows of their tensor: what an unfinished download leaves."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.unknowns import Unknown
from mlload.validators.deep.again import fetch_again, runs_of_zeros
from mlload.validators.deep.report import finding, tensors
from mlload.validators.deep.scan import Scan

AT_LEAST = 64 << 10  # bytes
SLACK = 16  # bytes at the end of a row that may be zero by chance
LOOKED_AT = 4 << 30  # bytes read again, at most: pruned models have zeros everywhere


def holes(scan: Scan, checkpoint: Checkpoint) -> Iterator[Finding | Unknown]:
    found: dict[str, tuple[int, int]] = {}
    budget = LOOKED_AT
    for name, seen in scan.tensors.items():
        ref = checkpoint.tensors[name]
        if seen.empty < AT_LEAST // 2 or seen.all_zero or seen.constant or seen.first_empty is None:
            continue
        begin = max(0, seen.first_empty - AT_LEAST)
        budget -= ref.nbytes - begin
        if budget < 0:
            yield Unknown("runs of zeros", f"too many weights have some; {name} and later were not looked at", "")
            break
        try:
            runs = [run for run in runs_of_zeros(checkpoint, ref, begin, AT_LEAST) if crosses_rows(ref, *run)]
        except MlloadError as error:
            yield Unknown(f"runs of zeros in {name}", error.message, "")
            continue
        if runs:
            found[name] = runs[0]
    if found:
        name, (start, stop) = next(iter(found.items()))
        ref = checkpoint.tensors[name]
        file = checkpoint.files[ref.file].name
        message = (
            f"{tensors(len(found))} with a run of zeros that begins or ends inside a row: {stop - start:,} bytes from "
            f"byte {ref.offset + start:,} of {file}, in {name}"
        )
        numbers = {"bytes": stop - start, "offset": ref.offset + start, "file": file, "first": name}
        yield finding("DP009", "error", "content", list(found), message, (fetch_again(checkpoint, name),), **numbers)


def crosses_rows(ref: TensorRef, start: int, stop: int) -> bool:
    """Whether either end of the run lies inside a row."""
    rows = 1
    for size in ref.shape[:-1]:
        rows *= size
    row = ref.nbytes // max(1, rows)
    if row <= 2 * SLACK:
        return False

    def inside(at: int) -> bool:
        return SLACK < at % row < row - SLACK and at < ref.nbytes - SLACK

    return inside(start) or inside(stop)
