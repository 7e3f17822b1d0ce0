"""What `mlload shard` is asked for, turned into a layout."""

from __future__ import annotations

from dataclasses import dataclass

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan
from mlload.profiles import Profile
from mlload.writer.groups import groups_of, weight_groups
from mlload.writer.holdings import Holdings
from mlload.writer.layout import Layout
from mlload.writer.reshape import reshape
from mlload.writer.sharded_quantized import reason_against
from mlload.writer.sharded_state import refuse_quantized, refuse_unknown, sharded_state_layout
from mlload.writer.sizes import DEFAULT, weight_of
from mlload.writer.state import state_layout


@dataclass(frozen=True, slots=True)
class RankBytes:
    """What one rank gets of the source. bytes: the plan's disk_bytes; draft_bytes: of draft layers, beside them"""

    rank: int
    bytes: int
    draft_bytes: int


def plan_ranks(checkpoint: Checkpoint, mesh: Mesh, profile: Profile) -> Plan:
    """The plan of a cut. Raises MlloadError with the first violation where the size is not possible."""
    return _possible(read_model(checkpoint), mesh, profile, checkpoint.label)


def _possible(model: Model, mesh: Mesh, profile: Profile, label: str) -> Plan:
    if model.inferred:
        fault = next((one.message for one in model.checkpoint.problems if one.severity == "error"), "")
        if fault and not model.config.model_type:
            raise MlloadError(fault if label in fault else f"{label}: {fault}", exit_code=3)
        raise MlloadError(
            f"{label}: the model type {model.config.model_type!r} is not in the tables, so that nobody can say how "
            "its weights are cut",
            hint=f"mlload shard {label} -o OUT --max-shard-size 5GB needs no such knowledge",
            exit_code=3,
        )
    plan = make_plan(model, profile, mesh)
    errors = [finding for finding in plan.violations if finding.severity == "error"]
    if errors:
        hint = errors[0].hints[0] if errors[0].hints else None
        raise MlloadError(
            f"{label} cannot be cut for {mesh.label()}: {errors[0].code} {errors[0].where}: {errors[0].message}",
            hint=(hint.command or hint.what) if hint else None,
            exit_code=1,
        )
    return plan


def rank_bytes(plan: Plan) -> tuple[RankBytes, ...]:
    """By arithmetic alone, for any size of model."""
    return tuple(RankBytes(sizes.rank, sizes.disk_bytes, sizes.draft_bytes) for sizes in plan.ranks())


def mlload_layout(plan: Plan, checkpoint: Checkpoint, holdings: Holdings, limit: int | None) -> Layout:
    """One folder per rank, see `state`."""
    return state_layout(plan, checkpoint, holdings, limit, weight_of if limit is None else groups_of(plan.model))


def vllm_layout(plan: Plan, holdings: Holdings, limit: int | None) -> Layout:
    """vLLM's sharded_state, see `sharded_state`."""
    refuse_quantized(plan, reason_against(plan))
    return sharded_state_layout(plan, holdings, DEFAULT if limit is None else limit)


def tensorizer_layout(plan: Plan, holdings: Holdings, *, hashed: bool) -> Layout:
    """A tensorizer file for each rank, see `tensorizer`."""
    from mlload.writer import tensorizer

    refuse_quantized(plan, "vLLM's tensorizer loader puts a file into layers whose weights were repacked for a kernel")
    refuse_unknown(plan)
    return tensorizer.tensorizer_layout(plan, holdings, hashed=hashed)


def reshape_layout(checkpoint: Checkpoint, holdings: Holdings, limit: int | None) -> Layout:
    """One checkpoint in files of at most `limit` bytes."""
    return reshape(holdings, DEFAULT if limit is None else limit, weight_groups(checkpoint))
