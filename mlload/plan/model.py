"""`read_model`: a checkpoint seen as the modules that its architecture names.

Every family of the architecture is bound to the tensors that are there, split until each bound
family has one scheme and one set of dtypes. What is missing, left over or of another shape is
collected as findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.finding import Finding
from mlload.plan.architectures import Architecture
from mlload.plan.architectures.choice import choose
from mlload.plan.bind import Binder
from mlload.plan.bound import BoundParam
from mlload.plan.dtype import model_dtype
from mlload.quant.spec import QuantSpec

__all__ = ["BoundParam", "Model", "read_model"]


@dataclass(frozen=True, slots=True)
class Model:
    """checkpoint, config:  as read
    architecture:        the table that was used; `inferred` when it was guessed from tensor names
    quant:               what the files are quantized with, or None
    params:              every family, each of one scheme (None = not quantized)
    findings:            what is odd about the quantization; missing, unexpected and misshapen tensors, folded
    dtype:               of the files' unquantized weights, as the config says ("BF16")
    parameters_total:    without draft layers; tied tables once
    parameters_active:   of those, what one token touches
    parameters_draft:    of draft (MTP) layers
    """

    checkpoint: Checkpoint
    config: ConfigView
    architecture: Architecture
    quant: QuantSpec | None
    params: tuple[BoundParam, ...]
    findings: tuple[Finding, ...]
    dtype: str
    parameters_total: int
    parameters_active: int
    parameters_draft: int

    @property
    def inferred(self) -> bool:
        return self.architecture.inferred

    @property
    def config_only(self) -> bool:
        """No weight files: the expected tensors stand in for them."""
        return not self.checkpoint.tensors

    @property
    def bytes_by_component(self) -> dict[str, int]:
        """Bytes on disk by component, largest first; draft layers are "draft"."""
        found: dict[str, int] = {}
        for param in self.params:
            found[param.component] = found.get(param.component, 0) + param.disk_bytes
        return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda item: -item[1]))

    def modules(self) -> Iterator[tuple[str, BoundParam]]:
        """Every module path with its family, on demand (as many as the checkpoint has)."""
        for param in self.params:
            for path in param.modules():
                yield path, param


def read_model(checkpoint: Checkpoint, *, assume_quant: str | None = None) -> Model:
    """Binds a checkpoint to its architecture. Raises MlloadError when there is nothing to go by."""
    config, architecture = choose(checkpoint)
    quant, oddities = _quantization(checkpoint, assume_quant)
    dtype = model_dtype(config, checkpoint)
    binder = Binder(
        checkpoint, quant, dtype, architecture.alternates, config=config.raw, sure=not architecture.inferred
    )
    bound = [param for spec in architecture.params(config) for param in binder.bind(spec)]
    params = (*_untied(bound), *binder.kv_scales())
    total, active, draft = _parameters(params, config)
    return Model(
        checkpoint=checkpoint,
        config=config,
        architecture=architecture,
        quant=quant,
        params=params,
        findings=(*oddities, *binder.findings()),
        dtype=dtype,
        parameters_total=total,
        parameters_active=active,
        parameters_draft=draft,
    )


def _untied(bound: list[BoundParam]) -> Iterator[BoundParam]:
    """A head that is stored although the config ties it is built as one of its own (vLLM config/model.py:1255),
    and the table that it is tied to is then on the first stage only."""
    sources = {param.spec.alias_of for param in bound if param.spec.alias_of is not None and not param.alias}
    for param in bound:
        if param.spec.module in sources and param.spec.stage == "ends":
            yield replace(param, spec=replace(param.spec, stage="first"))
        else:
            yield param


def _quantization(checkpoint: Checkpoint, assume: str | None) -> tuple[QuantSpec | None, tuple[Finding, ...]]:
    from mlload.quant import formats

    return (formats.assume(assume), ()) if assume is not None else formats.detect(checkpoint)


def _parameters(params: Sequence[BoundParam], config: ConfigView) -> tuple[int, int, int]:
    """Total, active and draft parameters. Of routed experts a token touches num_experts_per_tok."""
    total = active = draft = 0
    per_token = config.get("num_experts_per_tok")
    for param in params:
        count = param.elements
        if param.spec.draft:
            draft += count
            continue
        total += count
        experts = param.expert_total
        if experts and isinstance(per_token, int) and 0 < per_token < experts:
            count = count * per_token // experts
        active += count
    return total, active, draft
