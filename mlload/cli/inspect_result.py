"""What `mlload inspect` knows, before anybody decides how to show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError, by_severity
from mlload.cli.inspect_facts import Files, Quantization, Share, files_of, quantization_of, shares_of
from mlload.plan.bound import BoundParam
from mlload.plan.cutting import cut_axis
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan
from mlload.plan.stored import Stored
from mlload.profiles import Profile

USUAL_SIZES = (1, 2, 4, 8)


class Size(NamedTuple):
    """One column of the table of parallel sizes: the largest rank's figures, and what forbids the size.

    Bytes, bytes a token, bytes a sequence. `works` is False where the plan has an error.
    """

    mesh: Mesh
    works: bool
    disk_bytes: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_state_bytes_per_sequence: int
    errors: tuple[Finding, ...]


class TensorRow(NamedTuple):
    """One tensor: what it is to the model, and how tensor parallelism cuts it ("dim 0", "whole", "unknown")."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str
    cut: str


@dataclass(frozen=True, slots=True)
class InspectResult:
    """checkpoint:   as read
    model:        bound to its architecture; None where there is nothing to go by, `unplanned` says why
    quantization: as detected, with figures from the tensors themselves; None for plain weights
    files:        what lies there, by purpose
    shares:       bytes by component, largest first; without a model, by dtype
    plan:         for the mesh asked
    sizes:        the usual tensor-parallel sizes, or those asked
    problems:     of files and tensors, most severe first
    tensors:      rows, where they were asked for
    """

    checkpoint: Checkpoint
    model: Model | None
    unplanned: str | None
    profile: Profile
    quantization: Quantization | None
    files: Files
    shares: tuple[Share, ...]
    plan: Plan | None
    sizes: tuple[Size, ...]
    problems: tuple[Finding, ...]
    tensors: tuple[TensorRow, ...] | None

    @property
    def exit_code(self) -> int:
        """0 when it could be described; 3 when there was nothing to plan by."""
        return 0 if self.plan is not None or self.checkpoint.format == "adapter" else 3


def run(
    checkpoint: Checkpoint,
    profile: Profile,
    *,
    tp: Sequence[int] | None = None,
    pp: int = 1,
    ep: bool = False,
    assume_quant: str | None = None,
    tensors: str | None = None,
) -> InspectResult:
    """Describe one checkpoint. `tp` None means the usual sizes, planned in detail for tp 1; `tensors` is a
    glob over tensor names, None for no listing."""
    told = _whole(checkpoint)
    model, unplanned = _model(told, assume_quant)
    plan: Plan | None = None
    sizes: list[Size] = []
    if model is not None:
        asked = tuple(tp or (1,))
        shown = asked if len(asked) > 1 else tuple(sorted({*USUAL_SIZES, *asked}))
        plans = {size: make_plan(model, profile, Mesh(tp=size, pp=pp, ep=ep)) for size in shown}
        plan = plans[asked[0]]
        sizes = [size_of(plans[size]) for size in shown]
    found = (*told.problems, *(model.findings if model is not None else ()))
    return InspectResult(
        checkpoint=checkpoint,
        model=model,
        unplanned=unplanned,
        profile=profile,
        quantization=quantization_of(model) if model is not None else None,
        files=files_of(checkpoint),
        shares=shares_of(told, model),
        plan=plan,
        sizes=tuple(sizes),
        problems=tuple(by_severity(list(found))),
        tensors=None if tensors is None else tuple(rows(told, model, tensors)),
    )


def may_be_ranks(checkpoint: Checkpoint) -> bool:
    """Whether it is worth asking `writer.ranks`, whose import takes longer than most answers."""
    return checkpoint.format in ("sharded_state", "tensorizer") or any(
        file.name == "manifest.json" for file in checkpoint.files
    )


def _whole(checkpoint: Checkpoint) -> Checkpoint:
    """Of a folder that was cut per rank, the checkpoint that was cut."""
    if not may_be_ranks(checkpoint):
        return checkpoint
    from mlload.writer.ranks import whole

    return whole(checkpoint)


def _model(checkpoint: Checkpoint, assume_quant: str | None) -> tuple[Model | None, str | None]:
    if checkpoint.format == "adapter":
        return None, "an adapter has no plan of its own: it is served with its base, or merged into it"
    try:
        return read_model(checkpoint, assume_quant=assume_quant), None
    except MlloadError as error:
        if error.exit_code == 2:
            raise
        return None, error.message


def size_of(plan: Plan) -> Size:
    ranks = plan.ranks()
    errors = tuple(finding for finding in plan.violations if finding.severity == "error")
    return Size(
        mesh=plan.mesh,
        works=not errors,
        disk_bytes=max(rank.disk_bytes for rank in ranks),
        weight_bytes=max(rank.weight_bytes for rank in ranks),
        kv_bytes_per_token=max(rank.kv_bytes_per_token for rank in ranks),
        kv_state_bytes_per_sequence=max(rank.kv_state_bytes_per_sequence for rank in ranks),
        errors=errors,
    )


def rows(checkpoint: Checkpoint, model: Model | None, glob: str) -> list[TensorRow]:
    """The tensors whose names match, in the files' order."""
    known: dict[str, tuple[str, str]] = {}
    if model is not None:
        for param in model.params:
            meant = [(stored.suffix, (role_of(param, stored), cut_of(param, stored))) for stored in param.stored]
            for module in param.modules() if meant else ():
                for suffix, facts in meant:
                    known[module + suffix] = facts
    stranger = ("not part of the model" if model is not None else "unknown", "unknown")
    return [
        TensorRow(ref.name, role, ref.shape, ref.dtype, ref.nbytes, checkpoint.files[ref.file].name, cut)
        for ref in checkpoint.tensors.values()
        if glob in ("", "*") or fnmatchcase(ref.name, glob)
        for role, cut in (known.get(ref.name, stranger),)
    ]


def role_of(param: BoundParam, stored: Stored) -> str:
    """ "attention weight", "mlp scale"."""
    return f"{param.component} {stored.role}"


def cut_of(param: BoundParam, stored: Stored) -> str:
    """Which dim of the stored tensor the ranks divide, and in which units: "dim 0 by 128"."""
    axis = cut_axis(param.spec)
    dim = next((at for at, dim in enumerate(stored.dims) if dim.axis == axis), None) if axis else None
    if dim is None:
        return "whole"
    unit = max((part.unit for part in param.spec.parts), default=1)
    return f"dim {dim}" + (f" by {unit}" if unit > 1 and axis == "N" else "")
