"""What a run did, as JSON and as Markdown."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.quantize.check import Check
from mlload.quantize.forecast import Forecast
from mlload.quantize.recipe import Recipe
from mlload.quantize.targets import Targets

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Result:
    """One run, or what one would do (written False).

    label, output: from where to where; seconds: of the work, without the check; calibration: what the data was
    quality: perplexities and divergence, {} where they were not measured
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
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return 1 if self.check is not None and self.check.problems else 0

    @property
    def kept(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for entry in self.targets.plain:
            found.setdefault(entry.reason, []).append(entry.path)
        return found

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
            "kept": self.kept,
            "kept_tensors": list(self.targets.beside),
            "calibration": self.calibration,
            "quality": self.quality,
            "notes": list(self.notes),
            "check": None if self.check is None else self.check.as_json(),
            "exit_code": self.exit_code,
        }

    def lines(self) -> Iterator[str]:
        scheme, cast = self.recipe.scheme, self.forecast
        group = f", groups of {scheme.group_size}" if scheme.group_size and scheme.group_size > 0 else ""
        kind = {"int": "integers", "float": "floats", "mx": "MX floats"}.get(scheme.kind, scheme.kind)
        verb = "quantized" if self.written else "would quantize"
        yield f"{self.label}: {verb} {len(self.targets.targets)} linears to {scheme.bits}-bit {kind}{group}"
        yield f"  method {self.recipe.method}, saved as {self.recipe.save_as} in {self.output}"
        yield (
            f"  {cast.source / MIB:,.0f} MiB become {cast.output / MIB:,.0f} MiB; expected: "
            f"{cast.memory / MIB:,.0f} MiB of memory, about {max(1, round(cast.seconds)):,} s"
        )
        for reason, paths in self.kept.items():
            yield f"  left alone, {reason}: {len(paths)} ({paths[0]}{', ...' if len(paths) > 1 else ''})"
        if self.targets.beside:
            some = ", ".join(self.targets.beside[:3])
            yield f"  kept beside the model's layers: {len(self.targets.beside)} tensors ({some}, ...)"
        yield from (f"  {note}" for note in self.notes)
        if self.calibration:
            yield f"  calibrated on {self.calibration['tokens']:,} tokens of {self.calibration['source']}"
        if self.resumed:
            yield "  went on from an interrupted run"
        if self.quality:
            yield self._quality()
        if self.check is not None:
            yield from self._check(self.check)

    def _quality(self) -> str:
        return (
            f"  perplexity {self.quality['perplexity_before']:.3f} before, "
            f"{self.quality['perplexity_after']:.3f} after; KL {self.quality['kl']:.4f} "
            f"({self.quality['tokens']:,} tokens of {self.quality['source']})"
        )

    def _check(self, check: Check) -> Iterator[str]:
        errors = sorted(check.errors.items(), key=lambda item: -item[1])
        if errors:
            middle = errors[len(errors) // 2][1]
            yield f"  relative error of weights: {middle:.4f} in the middle, {errors[0][1]:.4f} at {errors[0][0]}"
        for line in check.warnings[:4]:
            yield f"  warning: {line}"
        for line in check.problems:
            yield f"  PROBLEM: {line}"
        verdict = "not what was planned" if check.problems else "as planned"
        sizes = ", ".join(map(str, check.tp))
        yield f"  {check.quantized} of {check.planned} linears read back, {verdict}; mlload validate at tp {sizes}"

    def markdown(self) -> str:
        lines = [f"# {os.path.basename(self.output)}", ""]
        lines += [f"- {line.strip()}" for line in self.lines()]
        if self.check is not None:
            lines += ["", "| layer | relative error |", "|---|---|"]
            lines += [f"| {path} | {error:.5f} |" for path, error in self.check.errors.items()]
        return "\n".join(lines) + "\n"


def write_reports(result: Result, path: str) -> tuple[str, str]:
    """`path`.json and `path`.md; a suffix of .json or .md in `path` is dropped."""
    stem = path.removesuffix(".json").removesuffix(".md")
    names = (f"{stem}.json", f"{stem}.md")
    texts = (json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n", result.markdown())
    for name, text in zip(names, texts, strict=True):
        try:
            with open(name, "w", encoding="utf-8", errors="surrogatepass") as handle:
                handle.write(text)
        except OSError as error:
            raise MlloadError(f"{name} cannot be written: {error.strerror}", exit_code=1) from error
    return names
