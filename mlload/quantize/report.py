"""What a run did, as JSON and as Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlload.checkpoint.finding import MlloadError
from mlload.quantize.check import Check, rounded
from mlload.quantize.forecast import Forecast
from mlload.quantize.recipe import Recipe, scheme_json
from mlload.quantize.report_markdown import markdown
from mlload.quantize.targets import Targets

MIB = 2**20


class Row(NamedTuple):
    """One planned linear. weights: ||W' - W|| / ||W||; outputs: ||X (W' - W)^T|| / ||X W^T|| over the calibration
    tokens that it saw; None where that was not measured"""

    path: str
    scheme: str
    quantized: bool | None
    weights: float | None
    outputs: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """One run, or what one would do (written False).

    label, output: from where to where; seconds: of the work, without the check; calibration: what the data was
    quality: perplexities and divergence, {} where they were not measured
    outputs: path -> relative error of a linear's outputs; experts: path -> {"tokens": how many chose each, "borrowed":
    those that were measured on other experts' tokens too}
    tp: sizes that the output was asked to be aligned for
    """

    label: str
    output: str
    recipe: Recipe
    targets: Targets
    forecast: Forecast
    written: bool
    resumed: bool = False
    seconds: float = 0.0
    check: Check | None = None
    calibration: dict[str, Any] = field(default_factory=dict)
    quality: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)
    experts: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tp: tuple[int, ...] = (1,)

    @property
    def exit_code(self) -> int:
        return 1 if self.check is not None and self.check.problems else 0

    @property
    def kept(self) -> dict[str, list[str]]:
        """Linears that stay as they are, by reason."""
        found: dict[str, list[str]] = {}
        for entry in self.targets.plain:
            found.setdefault(entry.reason, []).append(entry.path)
        return found

    @property
    def kept_tensors(self) -> dict[str, list[str]]:
        """Tensors outside the model's layers, by the rule that keeps them."""
        found: dict[str, list[str]] = {}
        for entry in self.targets.beside:
            found.setdefault(entry.rule, []).append(entry.name)
        return found

    def rows(self) -> Iterator[Row]:
        errors = None if self.check is None else self.check.errors
        for target in self.targets.targets:
            path, scheme = target.path, target.scheme
            group = f" g{scheme.group_size}" if scheme.group_size and scheme.group_size > 0 else ""
            yield Row(
                path,
                f"{scheme.bits}-bit {scheme.kind}{group}",
                None if errors is None else path in errors,
                None if errors is None else errors.get(path),
                self.outputs.get(path),
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "mlload.quantize/1",
            "source": self.label,
            "output": self.output,
            "recipe": self.recipe.as_json(),
            "written": self.written,
            "resumed": self.resumed,
            "seconds": round(self.seconds, 2),
            "forecast": self.forecast.as_json(),
            "layers": len(self.targets.targets),
            "linears": [
                {
                    "path": row.path,
                    "scheme": scheme_json(target.scheme),
                    "quantized": row.quantized,
                    "weight_error": rounded(row.weights),
                    "output_error": rounded(row.outputs),
                }
                for row, target in zip(self.rows(), self.targets.targets, strict=True)
            ],
            "experts": self.experts,
            "kept": self.kept,
            "kept_tensors": self.kept_tensors,
            "calibration": self.calibration,
            "quality": self.quality,
            "notes": list(self.notes),
            "check": None if self.check is None else self.check.as_json(),
            "exit_code": self.exit_code,
        }

    @property
    def headline(self) -> str:
        scheme = self.recipe.scheme
        group = f", groups of {scheme.group_size}" if scheme.group_size and scheme.group_size > 0 else ""
        kind = {"int": "integers", "float": "floats", "mx": "MX floats"}.get(scheme.kind, scheme.kind)
        verb = "quantized" if self.written else "would quantize"
        return f"{self.label}: {verb} {len(self.targets.targets)} linears to {scheme.bits}-bit {kind}{group}"

    @property
    def sizes(self) -> str:
        cast = self.forecast
        return (
            f"{_mebibytes(cast.source)} become {_mebibytes(cast.output)}; expected: "
            f"{cast.memory / MIB:,.0f} MiB of memory, about {max(1, round(cast.seconds)):,} s"
        )


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / MIB:,.0f} MiB" if nbytes >= 10 * MIB else f"{nbytes / MIB:.2f} MiB"


def refuse_unwritable(path: str) -> None:
    """A report that cannot be written is told before the work, not after."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise MlloadError(f"--report {path} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise MlloadError(f"--report {path} cannot be written: not permitted")


def write_reports(result: Result, path: str) -> tuple[str, str]:
    """`path`.json and `path`.md; a suffix of .json or .md in `path` is dropped."""
    stem = path.removesuffix(".json").removesuffix(".md")
    names = (f"{stem}.json", f"{stem}.md")
    texts = (json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n", markdown(result))
    for name, text in zip(names, texts, strict=True):
        try:
            with open(name, "w", encoding="utf-8", errors="surrogatepass") as handle:
                handle.write(text)
        except OSError as error:
            raise MlloadError(f"{name} cannot be written: {error.strerror}", exit_code=1) from error
    return names
