"""Finds the tensors of each family: names expanded, looked up and compared, 90,000 in well under a second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.bound import BoundParam
from mlload.plan.completeness import Completeness, Expected, Gap
from mlload.plan.params import ParamSpec
from mlload.plan.stored import Stored, expected_tensors, stored_shape
from mlload.quant.formats.kv import kv_scale_of
from mlload.quant.formats.tensors import stored_shape as stored_elements
from mlload.quant.formats.tensors import tensor_name
from mlload.quant.spec import Dim, QuantSpec, Scheme

# What one module looks like: its scheme and, per expected tensor, the dtype found (None: absent).
Signature = tuple[Scheme | None, tuple[str | None, ...]]


class Binder:
    """Binds one checkpoint's tensors. Call `bind` for each family, then `findings`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        quant: QuantSpec | None,
        dtype: str,
        alternates: Sequence[tuple[str, str]] = (),
        *,
        config: Mapping[str, Any] | None = None,
        sure: bool = True,
    ) -> None:
        self.tensors = checkpoint.tensors
        self.quant = quant
        self.dtype = dtype
        self.alternates = alternates
        # GGUF says its shapes in values; what is expected of a block type is counted in bytes.
        self.blocks = checkpoint.format == "gguf"
        self.completeness = Completeness(
            quantized=quant is not None, config=checkpoint.config if config is None else config, sure=sure
        )
        # By identity: hashing a family costs more than what is looked up. The family is kept, so that its id stays its.
        self._expected: dict[int, tuple[ParamSpec, dict[Scheme | None, tuple[Expected, ...]]]] = {}

    def findings(self) -> tuple[Finding, ...]:
        """Missing, misshapen and unexpected tensors, folded."""
        return self.completeness.findings(self.tensors)

    def bind(self, spec: ParamSpec) -> Iterator[BoundParam]:
        """The family, split into parts of one signature each."""
        total = _expert_total(spec)
        if spec.engine_only:
            yield BoundParam(spec, None, (), expert_total=total)
            return
        if spec.alias_of is not None and not self._present(spec):
            yield BoundParam(spec, None, (), expert_total=total, alias=True)
            return
        if not self.tensors:
            yield from self._bind_config_only(spec, total)
            return
        spec = self._spelled(spec)
        groups: dict[tuple[Signature, tuple[int, ...] | None], list[int]] = {}
        for layer in (-1,) if spec.layers is None else spec.layers:
            for signature, experts in self._layer(spec, layer):
                groups.setdefault((signature, experts), []).append(layer)
        for (signature, experts), layers in groups.items():
            scheme, dtypes = signature
            found = tuple(
                Stored(e.suffix, dtype, e.tensor.dims, e.shape, e.tensor.role)
                for e, dtype in zip(self._expect(spec, scheme), dtypes, strict=True)
                if dtype is not None
            )
            if not found and spec.optional:
                continue
            narrowed = spec if spec.layers is None else replace(spec, layers=_compact(layers))
            self.completeness.family(spec, layers if found else ())
            yield BoundParam(narrowed, scheme, found, experts, total)

    def kv_scales(self) -> Iterator[BoundParam]:
        """Scales of the KV cache, which quantized checkpoints keep beside their attention; call it last.

        They belong to no module of the architecture. Every rank reads them whole.
        """
        found: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, TensorRef]]] = {}
        for ref in self.completeness.left_over(self.tensors):
            if kv_scale_of(ref.name) is not None:
                numbers = [part for part in ref.name.split(".") if part.isdigit() and len(part) < 9]
                layer = int(numbers[0]) if numbers else -1
                template = ref.name.replace(f".{layer}.", ".{layer}.", 1)
                found.setdefault((template, ref.dtype, ref.shape), []).append((layer, ref))
        for (template, dtype, shape), members in found.items():
            self.completeness.found([ref for _, ref in members])
            spec = ParamSpec(
                module=template,
                op="param",
                shape=shape,
                axes=("",) * len(shape),
                weight="",
                layers=_compact([layer for layer, _ in members]) if "{layer}" in template else None,
                component="attention",
                stage="layer" if "{layer}" in template else "all",
            )
            dims = tuple(Dim("", size=size) for size in shape)
            yield BoundParam(spec, None, (Stored("", dtype, dims, shape, "scale"),))

    def _bind_config_only(self, spec: ParamSpec, total: int) -> Iterator[BoundParam]:
        if spec.optional:
            return
        groups: dict[Scheme | None, list[int]] = {}
        for layer in (-1,) if spec.layers is None else spec.layers:
            groups.setdefault(self._scheme(spec, _path(spec, layer, 0)), []).append(layer)
        for scheme, layers in groups.items():
            stored = tuple(
                Stored(e.suffix, e.tensor.dtype or self.dtype, e.tensor.dims, e.shape, e.tensor.role)
                for e in self._expect(spec, scheme)
                if not e.tensor.optional
            )
            narrowed = spec if spec.layers is None else replace(spec, layers=_compact(layers))
            yield BoundParam(narrowed, scheme, stored, expert_total=total)

    def _layer(self, spec: ParamSpec, layer: int) -> Iterator[tuple[Signature, tuple[int, ...] | None]]:
        """The signatures in one layer, with the experts that have each (None: all of them)."""
        scheme = self._scheme(spec, _path(spec, layer, 0))
        if spec.experts is None:
            yield (scheme, self._module(spec, scheme, _path(spec, layer, 0), layer)), None
            return
        uniform = self._uniform(spec, scheme, layer)
        if uniform is not None:
            yield (scheme, uniform), None
            return
        groups: dict[Signature, list[int]] = {}
        for expert in range(spec.experts):
            path = _path(spec, layer, expert)
            own = self._scheme(spec, path)
            groups.setdefault((own, self._module(spec, own, path, layer, expert)), []).append(expert)
        for signature, experts in groups.items():
            yield signature, None if len(experts) == spec.experts else tuple(experts)

    def _uniform(self, spec: ParamSpec, scheme: Scheme | None, layer: int) -> tuple[str | None, ...] | None:
        """The dtypes of a layer whose experts all look alike and as expected; None where they do not."""
        head, tail = _path(spec, layer, -1).split("{expert}")
        get = self.tensors.get
        dtypes: list[str | None] = []
        found: list[TensorRef] = []
        for expected in self._expect(spec, scheme):
            end = tail + expected.suffix
            refs = [get(f"{head}{expert}{end}") for expert in range(spec.experts or 0)]
            there = [ref for ref in refs if ref is not None]
            if not there and expected.tensor.optional:
                dtypes.append(None)
                continue
            if len(there) != len(refs):
                return None
            kinds = {(ref.dtype, ref.shape) for ref in there}
            if len(kinds) != 1:
                return None
            dtype, _ = kinds.pop()
            if not self._fits(there[0], expected):
                return None
            dtypes.append(dtype)
            found += there
        self.completeness.found(found)
        return tuple(dtypes)

    def _module(
        self, spec: ParamSpec, scheme: Scheme | None, path: str, layer: int, expert: int | None = None
    ) -> tuple[str | None, ...]:
        """The dtypes of one module's tensors; what is missing or misshapen is noted."""
        dtypes: list[str | None] = []
        absent: list[Expected] = []
        present: list[str] = []
        for expected in self._expect(spec, scheme):
            ref = self.tensors.get(path + expected.suffix)
            if ref is None:
                dtypes.append(None)
                if not (expected.tensor.optional or spec.optional):
                    absent.append(expected)
                continue
            self.completeness.found((ref,))
            dtypes.append(ref.dtype)
            if expected.tensor.role != "bias":
                present.append(expected.suffix)
            if not self._fits(ref, expected) and not (spec.optional and not spec.engine):
                actual = stored_elements(ref) if self.blocks else ref.shape
                self.completeness.misfit(spec, expected, layer, expert, actual)
        if absent:
            self.completeness.gap(Gap(spec, scheme, layer, expert, tuple(absent), tuple(present)))
        return tuple(dtypes)

    def _scheme(self, spec: ParamSpec, path: str) -> Scheme | None:
        if self.quant is None or spec.op not in ("linear", "experts", "embedding"):
            return None
        if not self.tensors and not spec.quantized:
            return None
        return self.quant.scheme_for(path)

    def _expect(self, spec: ParamSpec, scheme: Scheme | None) -> tuple[Expected, ...]:
        _, known = self._expected.setdefault(id(spec), (spec, {}))
        if scheme not in known:
            known[scheme] = tuple(
                Expected(tensor_name("", tensor.suffix), tensor, stored_shape(spec, tensor.dims))
                for tensor in expected_tensors(spec, scheme)
            )
        return known[scheme]

    def _fits(self, ref: TensorRef, expected: Expected) -> bool:
        shape = stored_elements(ref) if self.blocks else ref.shape
        if shape == expected.shape:
            return True
        if expected.tensor.role == "aux" and not expected.tensor.dims and len(shape) == 1:
            return True  # a text of any length (bitsandbytes' quant_state)
        return expected.tensor.scalar_ok and all(size == 1 for size in (*shape, *expected.shape))

    def _present(self, spec: ParamSpec) -> bool:
        """Whether any tensor of the family's first module is there under its own name."""
        first = next(iter(spec.modules()), "")
        scheme = self._scheme(spec, first)
        return any(first + e.suffix in self.tensors for e in self._expect(spec, scheme))

    def _spelled(self, spec: ParamSpec) -> ParamSpec:
        """The family under the spelling that this checkpoint uses."""
        if not self.alternates or self._present(spec):
            return spec
        for theirs, ours in self.alternates:
            if spec.module.startswith(ours):
                other = replace(spec, module=theirs + spec.module[len(ours) :])
                if self._present(other):
                    return other
        return spec


def _path(spec: ParamSpec, layer: int, expert: int) -> str:
    """A module's disk path; layer -1 for a module outside the layers, expert -1 leaves the placeholder."""
    path = spec.module if layer < 0 else spec.module.replace("{layer}", str(layer))
    return path if spec.experts is None or expert < 0 else path.replace("{expert}", str(expert))


def _expert_total(spec: ParamSpec) -> int:
    if spec.experts is not None:
        return spec.experts
    return spec.shape[spec.axes.index("E")] if "E" in spec.axes else 0


def _compact(layers: list[int]) -> Sequence[int]:
    """A range where the layers are one, so that stages can be cut by arithmetic."""
    span = range(layers[0], layers[-1] + 1)
    return span if len(span) == len(layers) and list(span) == layers else tuple(layers)
