"""What each tensor of a checkpoint is for, by name: weight, scale, zero points, and of which linear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from mlload.checkpoint.tensor import TensorRef
from mlload.plan.params import ParamSpec
from mlload.plan.stored import Stored
from mlload.quant.spec import Scheme

if TYPE_CHECKING:
    from mlload.plan.model import Model

# For tensors that belong to no module of the architecture: how scales end in every format.
SCALE_ENDINGS = (
    "scale", "scales", "_scale_inv", "_scale_2", "scale_ub", ".absmax", ".SCB", ".k_scale", ".v_scale", "_scales",
)  # fmt: skip


class Role(NamedTuple):
    """role:   as in `quant.spec.TensorSpec`: "weight", "scale", "zero", "global_scale", "input_scale", "g_idx", "bias",
            ...; "" for a tensor that belongs to no known module and looks like none of these
    module: disk path of the module, "" where unknown
    """

    role: str
    module: str = ""
    scheme: Scheme | None = None
    spec: ParamSpec | None = None
    stored: Stored | None = None


def roles(model: Model) -> dict[str, Role]:
    """name -> role, for every tensor of the checkpoint."""
    tensors = model.checkpoint.tensors
    found: dict[str, Role] = {}
    for param in model.params:
        for path in param.modules():
            for stored in param.stored:
                name = path + stored.suffix
                if name in tensors:
                    found[name] = Role(stored.role, path, param.scheme, param.spec, stored)
    for name in tensors:
        if name not in found:
            found[name] = by_name(name)
    return found


def by_name(name: str) -> Role:
    return Role("scale" if name.endswith(SCALE_ENDINGS) else "")


def without_model(tensors: Mapping[str, TensorRef]) -> dict[str, Role]:
    """Where no architecture could be read: by the names alone."""
    return {name: by_name(name) for name in tensors}
