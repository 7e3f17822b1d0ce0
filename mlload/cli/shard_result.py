"""What `mlload shard` did or would do, as one result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.cli.layout import wrap
from mlload.cli.quantities import size as show_size
from mlload.plan.mesh import Mesh
from mlload.profiles import load, parse_engine
from mlload.writer.holdings import Holdings, holdings_of
from mlload.writer.ranks import read_ranks
from mlload.writer.read_state import of_state
from mlload.writer.shard import (
    RankBytes,
    mlload_layout,
    plan_ranks,
    rank_bytes,
    reshape_layout,
    tensorizer_layout,
    vllm_layout,
)
from mlload.writer.sizes import parse_size


@dataclass(frozen=True, slots=True)
class Request:
    """The options as typed; `ranked` when ranks are asked for and not one checkpoint."""

    output: str | None
    tp: int
    pp: int
    ep: bool
    ranked: bool
    layout: str
    max_shard_size: str | None
    merge: bool
    verify: bool
    dry_run: bool
    engine: str


@dataclass(frozen=True, slots=True)
class Result:
    """label, output: from where to where; what: the mesh or "one checkpoint"; files: to write, with bytes (none by
    name for the ranks of a dry run, whose bytes are arithmetic); carried: files that go along; left: weight files
    that do not; written: False for a dry run; resumed: it went on from an interrupted run; compared: bytes of
    replicas that were found equal"""

    label: str
    output: str | None
    what: str
    layout: str
    ranks: tuple[RankBytes, ...]
    files: tuple[tuple[str, int], ...]
    carried: tuple[str, ...]
    left: tuple[str, ...]
    written: bool
    verified: bool
    resumed: bool
    compared: int

    def as_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "command": "shard",
            "source": self.label,
            "output": self.output,
            "what": self.what,
            "layout": self.layout,
            "ranks": [{"rank": rank.rank, "bytes": rank.bytes, "draft_bytes": rank.draft_bytes} for rank in self.ranks],
            "files": [{"name": name, "bytes": nbytes} for name, nbytes in self.files],
            "carried": list(self.carried),
            "left": list(self.left),
            "written": self.written,
            "verified": self.verified,
            "resumed": self.resumed,
            "replica_bytes_compared": self.compared,
        }

    def lines(self, width: int) -> Iterator[str]:
        verb = "wrote" if self.written else "would write"
        yield f"{self.label}: {verb} {self.what} ({self.layout} layout)" + (f" to {self.output}" if self.output else "")
        for rank in self.ranks:
            drafts = f" and {show_size(rank.draft_bytes)} of draft layers" if rank.draft_bytes else ""
            yield f"  rank {rank.rank:<4d} {show_size(rank.bytes):>12}{drafts}"
        for name, nbytes in self.files:
            yield f"  {name}  {show_size(nbytes)}"
        if self.carried:
            more = ", ..." if len(self.carried) > 6 else ""
            along = f"{len(self.carried)} other files go along: {', '.join(self.carried[:6])}{more}"
            yield from wrap(along, width, "    ", "  ")
        if self.left:
            left = f"left behind, since no engine reads them beside these: {', '.join(self.left[:6])}"
            yield from wrap(left, width, "    ", "  ")
        if self.compared:
            yield f"  {show_size(self.compared)} that several ranks hold were compared and are equal"
        if self.resumed:
            yield "  went on from an interrupted run"
        if self.verified:
            yield "  read back: every hash is equal"


def run(checkpoint: Checkpoint, request: Request, *, progress: Callable[[str], None] | None) -> Result:
    """Carry it out, or say what would be done."""
    from mlload.writer.carry import carried, left_behind
    from mlload.writer.folder import refuse_inside

    if request.output is not None:
        refuse_inside(request.output, checkpoint.source)
    limit = None if request.max_shard_size is None else parse_size(request.max_shard_size, "--max-shard-size")
    cut = read_ranks(checkpoint)
    holdings: Holdings | None
    whole, holdings = cut or (checkpoint, None)
    ranks: tuple[RankBytes, ...] = ()
    mesh = Mesh(request.tp, request.pp, request.ep)
    plan = None
    if request.ranked:
        plan = plan_ranks(whole, mesh, load(*parse_engine(request.engine)))
        ranks = rank_bytes(plan)
    local = request.output is not None and "://" not in request.output
    target = os.path.abspath(os.path.expanduser(request.output)) if local and request.output else ""
    outputs = (target, f"{target}.partial") if target else ()
    carry = tuple(file for file in carried(whole, outputs) if not (cut and of_state(file.name)))
    compared, resumed = 0, False
    files: tuple[tuple[str, int], ...] = ()
    if not (request.dry_run and plan is not None and request.layout == "mlload"):
        holdings = holdings or holdings_of(checkpoint)
        if plan is None:
            layout = reshape_layout(whole, holdings, limit)
        elif request.layout == "vllm":
            layout = vllm_layout(plan, holdings, limit)
        elif request.layout == "tensorizer":
            layout = tensorizer_layout(plan, holdings, hashed=local)
        else:
            layout = mlload_layout(plan, whole, holdings, limit)
        files = tuple((file.name, file.size) for file in layout.files)
        if not request.dry_run:
            from mlload.writer.replicas import check_replicas
            from mlload.writer.write import write_folder

            assert request.output is not None
            if cut:
                compared = check_replicas(holdings)
            resumed = write_folder(
                request.output,
                layout,
                holdings,
                carry_from=whole,
                carry=carry,
                verify=request.verify,
                progress=progress,
            )
    return Result(
        label=checkpoint.label,
        output=os.path.normpath(request.output) if local and request.output else request.output,
        what=mesh.label() if plan is not None else "one checkpoint",
        layout=request.layout if plan is not None else "Hugging Face",
        ranks=ranks,
        files=files,
        carried=tuple(file.name for file in carry),
        left=() if cut else left_behind(whole),
        written=not request.dry_run,
        verified=request.verify and not request.dry_run,
        resumed=resumed,
        compared=compared,
    )
