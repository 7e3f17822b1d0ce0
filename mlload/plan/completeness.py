"""Which tensors are missing, left over, or of another shape than the architecture says; folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlload.checkpoint.finding import Finding
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.fold import counted, fold_names, fold_path
from mlload.plan.params import ParamSpec

Shape = tuple[int, ...]


class Completeness:
    """Collects while families are bound; `findings` folds what was collected."""

    def __init__(self, *, quantized: bool) -> None:
        self.quantized = quantized
        self._found: list[Sequence[TensorRef]] = []
        self._missing: dict[tuple[str, str], list[tuple[int, int | None]]] = {}
        self._misshapen: dict[tuple[str, str, Shape, Shape], list[tuple[int, int | None]]] = {}

    def found(self, refs: Sequence[TensorRef]) -> None:
        self._found.append(refs)

    def missing(self, spec: ParamSpec, suffix: str, layer: int, expert: int | None) -> None:
        self._missing.setdefault((spec.module, suffix), []).append((layer, expert))

    def misshapen(
        self, spec: ParamSpec, suffix: str, layer: int, expert: int | None, expected: Shape, actual: Shape
    ) -> None:
        self._misshapen.setdefault((spec.module, suffix, expected, actual), []).append((layer, expert))

    def left_over(self, tensors: Mapping[str, TensorRef]) -> list[TensorRef]:
        """Tensors that no family has claimed so far."""
        names = {ref.name for refs in self._found for ref in refs}
        return [] if len(names) == len(tensors) else [ref for name, ref in tensors.items() if name not in names]

    def findings(self, tensors: Mapping[str, TensorRef]) -> tuple[Finding, ...]:
        return (*self._missing_findings(), *self._shape_findings(), *self._unexpected(tensors))

    def _missing_findings(self) -> Iterable[Finding]:
        for (module, suffix), places in self._missing.items():
            where = _where(module, suffix, places)
            yield Finding(
                "TN001",
                "error",
                # vLLM checks that every parameter was loaded only for unquantized models.
                "right" if self.quantized else "starts",
                where,
                f"{len(places):,} tensor{'s' if len(places) != 1 else ''} that the architecture expects "
                f"{'are' if len(places) != 1 else 'is'} not in the files",
                {"count": len(places)},
            )

    def _shape_findings(self) -> Iterable[Finding]:
        for (module, suffix, expected, actual), places in self._misshapen.items():
            yield Finding(
                "TN003",
                "error",
                "right",
                _where(module, suffix, places),
                f"the files hold {list(actual)}, config.json says {list(expected)}",
                {"expected": list(expected), "actual": list(actual), "count": len(places)},
            )

    def _unexpected(self, tensors: Mapping[str, TensorRef]) -> Iterable[Finding]:
        for where, count in fold_names(ref.name for ref in self.left_over(tensors)):
            yield Finding(
                "TN002",
                "warning",
                "right",
                counted(where, count),
                f"{count:,} tensor{'s' if count != 1 else ''} in the files that the architecture does not know",
                {"count": count},
            )


def _where(module: str, suffix: str, places: list[tuple[int, int | None]]) -> str:
    layers = [layer for layer, _ in places if layer >= 0]
    experts = [expert for _, expert in places if expert is not None]
    return counted(fold_path(module, layers or None, experts or None) + suffix, len(places))
