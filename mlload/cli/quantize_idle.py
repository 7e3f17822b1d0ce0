"""Options of `mlload quantize` that would change nothing: told, not passed over in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.checkpoint.finding import MlloadError

if TYPE_CHECKING:
    from collections.abc import Collection

    from mlload.quantize.recipe import Recipe

DATA = ("calib", "samples", "seq_len", "seed", "device")


def refuse_idle(recipe: Recipe, typed: Collection[str], *, evaluated: bool) -> None:
    """typed: names of the options that were typed; evaluated: whether perplexity is asked for, which takes data too."""
    method = recipe.method
    if "act_order" in typed and method != "gptq":
        raise MlloadError(
            f"--act-order is the order of GPTQ's columns: --method {method} has none", hint="leave it out"
        )
    if "clip" in typed and (recipe.scheme.kind != "int" or recipe.scheme.activation is not None):
        raise MlloadError(
            f"--[no-]clip is of the ranges that rtn, awq and gptq search, and --method {method} searches none",
            hint="leave it out",
        )
    if not recipe.calibrated and not evaluated:
        for name in DATA:
            if name in typed:
                raise MlloadError(
                    f"--{name.replace('_', '-')} belongs to calibration data, and this --method {method} looks at none",
                    hint="leave it out, or --eval-samples N to measure perplexity with it",
                )
