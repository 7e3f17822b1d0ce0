"""A report as Markdown: the summary, then every layer, every expert, and everything that was kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mlload.quantize.report_lines import carried, judged, measured, spreads

if TYPE_CHECKING:
    from mlload.quantize.report import Result


def markdown(result: Result) -> str:
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Result) -> Iterator[str]:
    yield f"# {os.path.basename(result.output)}"
    yield ""
    yield f"- {result.headline}"
    yield f"- method {result.recipe.method}, saved as {result.recipe.save_as} in {result.output}"
    yield f"- {result.sizes}"
    for spread in spreads(result):
        yield (
            f"- relative error of {spread.what}: {spread.middle:.4f} in the middle, {spread.worst:.4f} at {spread.path}"
        )
    for line in (*measured(result), *carried(result), *judged(result)):
        yield f"- {line}"
    yield from ("", "## Layers", "")
    yield "Relative errors: of weights ||W' - W|| / ||W||, of outputs ||X (W' - W)^T|| / ||X W^T|| over the"
    yield "calibration tokens that the layer saw."
    yield from ("", "| layer | planned | done | error of weights | error of outputs |", "|---|---|---|---|---|")
    for row in result.rows():
        done = {True: "yes", False: "NO", None: ""}[row.quantized]
        yield f"| {row.path} | {row.scheme} | {done} | {_number(row.weights)} | {_number(row.outputs)} |"
    if result.experts:
        yield from (
            "",
            "## Tokens of each expert",
            "",
            "| experts | tokens, from expert 0 on | too few |",
            "|---|---|---|",
        )
        for path, layer in result.experts.items():
            few = " ".join(map(str, layer["borrowed"]))
            yield f"| {path} | {' '.join(map(str, layer['tokens']))} | {few} |"
    for title, groups in (("Linears left as they are", result.kept), ("Tensors kept", result.kept_tensors)):
        for reason, names in groups.items():
            yield from ("", f"## {title}: {reason}", "")
            yield from (f"- {name}" for name in names)


def _number(error: float | None) -> str:
    return "" if error is None else f"{error:.5f}"
