"""A whole run: refuse early, say what will be, write, check, report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.plan.model import Model, read_model
from mlload.quantize.check import Check, check
from mlload.quantize.config import as_bytes, new_config, quantization_config, side_files
from mlload.quantize.forecast import forecast, refuse_what_cannot_fit
from mlload.quantize.kv import kv_tensors
from mlload.quantize.layout import Output, output_of
from mlload.quantize.merge import merged_config, quantized_already, refuse_another_family, without_halves
from mlload.quantize.pad import pad_intermediate, prove_equal
from mlload.quantize.recipe import Recipe
from mlload.quantize.report import Result
from mlload.quantize.request import asked, refuse_other_rest
from mlload.quantize.source import NotFinite
from mlload.quantize.startable import STALE, refuse_what_cannot_start
from mlload.quantize.stream import Sheets, write_data_free, write_rest
from mlload.quantize.targets import engine_paths, find_targets, refuse_misaligned
from mlload.writer.carry import carried
from mlload.writer.execute import DiskFull
from mlload.writer.folder import OutputFolder, forget_rest, refuse_existing, refuse_inside, request_of_rest
from mlload.writer.holdings import refuse_foreign
from mlload.writer.progress import Bar

ROOM = "make room, then the same command with --resume"
HEARD = 2  # held-out samples that go through every layer at the end


@dataclass(frozen=True, slots=True)
class Options:
    """output: folder; tp: sizes to be aligned for; limit: bytes of a file; memory: bytes allowed, None = no limit
    resume: go on from an interrupted run; dry_run: only say; calibrate: samples for the methods that need data, and for
    perplexity; checked: read everything back; pad: widen MLPs by zeros until everything divides; read: gives
    `calibration` when all that can be refused without it has been; data: what it will be, see `request.data_words`"""

    output: str
    tp: tuple[int, ...] = (1,)
    limit: int | None = None
    memory: int | None = None
    resume: bool = False
    dry_run: bool = False
    checked: bool = True
    calibration: Any = None
    evaluate: int = 0
    pad: bool = False
    read: Callable[[], Any] | None = None
    data: str = ""


def run(
    checkpoint: Checkpoint,
    recipe: Recipe,
    options: Options,
    *,
    progress: Callable[[str], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Result:
    """Raises MlloadError before anything is written where the request cannot be carried out. say: gets the forecast."""
    request = asked(
        checkpoint,
        recipe,
        repr((options.limit, options.pad and sorted(options.tp))),
        options.data if recipe.calibrated else "",
    )
    refuse_inside(options.output, checkpoint.source)
    if not options.dry_run:
        refuse_existing(os.path.abspath(options.output))
        if options.resume:
            refuse_other_rest(options.output, request)
    model = sound_model(checkpoint)
    already = quantized_already(model)
    refuse_another_family(model, recipe, already)
    sizes = tuple(size for size in options.tp if size > 1)
    padding = pad_intermediate(model, recipe, sizes) if options.pad else None
    notes: tuple[str, ...] = ()
    if padding is not None:
        proof = "" if options.dry_run else f"; {prove_equal(model, padding.model)}"
        notes = (f"padded with zeros: {padding.text}{proof}",)
        checkpoint, model = padding.checkpoint, padding.model
    targets = find_targets(model, recipe)
    if already:
        targets = without_halves(targets, already, engine_paths(model))
    refuse_misaligned(targets, sizes)
    if recipe.backend == "autoawq":
        from mlload.quantize.backends.autoawq import refuse_unsupported

        refuse_unsupported(checkpoint, recipe, padded=padding is not None)
    elif options.dry_run and recipe.calibrated:
        from mlload.engine.calibrate import refuse_what_cannot_run

        refuse_what_cannot_run(model)
    if options.read is not None:
        options = replace(options, calibration=options.read())
    config = quantization_config(targets, recipe)
    if already and model.quant is not None:
        config = merged_config(config, model.quant.config, targets, recipe)
    texts = {name: as_bytes(value) for name, value in side_files(targets, recipe, config).items()}
    texts["config.json"] = new_config(checkpoint.config, config)
    settings = options.calibration.identity if recipe.calibrated else ""
    cache = kv_tensors(model) if recipe.kv_cache else ()
    output = output_of(checkpoint, targets, texts, options.limit, repr((recipe.as_json(), settings)), cache)
    output = replace(output, request=f"{request}/{output.request}")
    refuse_what_cannot_start(checkpoint, model, output, options.tp)
    tokens = (0, 0)
    if options.calibration is not None and recipe.calibrated:
        tokens = tuple(options.calibration.samples.shape)
    width = model.config.hidden
    cast = forecast(checkpoint, targets, recipe, output, options.output, tokens, options.memory, width)
    refuse_what_cannot_fit(cast, options.output, options.memory)
    result = Result(checkpoint.label, options.output, recipe, targets, cast, written=False, notes=notes, tp=options.tp)
    if options.dry_run:
        return result
    if say is not None:
        say(result.sizes)
    return _write(checkpoint, model, result, output, options, progress)


def _write(
    checkpoint: Checkpoint,
    model: Model,
    result: Result,
    output: Output,
    options: Options,
    progress: Callable[[str], None] | None,
) -> Result:
    recipe, targets = result.recipe, result.targets
    began = time.monotonic()
    found: dict[str, Any] = {}
    if options.resume:
        refuse_other_rest(options.output, output.request)
    elif request_of_rest(options.output) is not None:
        forget_rest(options.output)  # it is not silently gone on with
    folder, entered = OutputFolder(options.output, output.request, output.layout.nbytes), False
    try:
        with ExitStack() as opened:
            opened.enter_context(folder)
            entered = True
            sheets = opened.enter_context(Sheets(folder, output))
            bar = Bar(progress, os.path.basename(folder.path), sum(r.nbytes for r in checkpoint.tensors.values()))
            try:
                if folder.complete and recipe.calibrated:
                    from mlload.engine.calibrate import what_was_done

                    found = what_was_done(recipe, folder)
                elif folder.complete:
                    pass
                elif recipe.backend == "autoawq":
                    from mlload.quantize.backends.autoawq import write_by_autoawq

                    found = write_by_autoawq(model, targets, recipe, sheets, options.calibration, bar.step)
                elif recipe.calibrated:
                    from mlload.engine.calibrate import write_calibrated

                    found = write_calibrated(model, targets, recipe, sheets, options.calibration, bar.step)
                else:
                    write_data_free(checkpoint, targets, recipe, sheets, bar.step, result.forecast.threads)
                sheets.sync()
            finally:
                bar.close()
            outputs = (options.output, options.output + ".partial")
            carry = [file for file in carried(checkpoint, outputs) if file.name not in STALE]
            if not folder.complete:
                write_rest(folder, checkpoint, output, carry)
            folder.finish(found.get("temporary", ()))
    except DiskFull as error:
        raise MlloadError(
            f"the disk is full; what was written stays in {folder.partial}", hint=ROOM, exit_code=1
        ) from error
    except OSError as error:
        raise MlloadError(f"{folder.partial}: {error.strerror}", hint=ROOM, exit_code=1) from error
    except KeyboardInterrupt:
        if entered and not (folder.done or folder.complete):
            shutil.rmtree(folder.partial, ignore_errors=True)
        if not entered or not os.path.isdir(folder.partial):
            raise
        raise MlloadError(
            f"interrupted; what is done stays in {folder.partial}", hint="the same command with --resume", exit_code=130
        ) from None
    except MlloadError as error:
        # What can never succeed, or has not begun, leaves nothing behind.
        if entered and (isinstance(error, NotFinite) or not (folder.done or folder.complete)):
            shutil.rmtree(folder.partial, ignore_errors=True)
        raise
    seconds = time.monotonic() - began
    checked: Check | None = None
    if options.checked:
        heard: Callable[[], dict[str, float]] | None = None
        if recipe.calibrated:
            from mlload.engine.layer_errors import layer_errors

            calibration = options.calibration
            heard = partial(layer_errors, model, options.output, calibration.held_out[:HEARD], calibration.device)
        checked = check(
            options.output,
            checkpoint,
            targets,
            options.tp,
            found.get("scaled"),
            heard,
            compared=found.get("compared", True),
        )
    quality: dict[str, Any] = {}
    if options.evaluate and options.calibration is not None:
        from mlload.engine.calibrate_quality import quality_of

        quality = quality_of(model, options.output, options.calibration, options.evaluate)
    return replace(
        result,
        written=True,
        resumed=folder.resumed,
        seconds=seconds,
        check=checked,
        quality=quality,
        calibration={} if not recipe.calibrated else options.calibration.as_json(),
        outputs=found.get("outputs", {}),
        experts=found.get("experts", {}),
        notes=(*result.notes, *found.get("notes", ())),
    )


def sound_model(checkpoint: Checkpoint) -> Model:
    """The source's model. Raises MlloadError for files that are damaged or incomplete, with what was found."""
    refuse_foreign(checkpoint)
    if not checkpoint.tensors:
        raise MlloadError(f"{checkpoint.label} holds no weights", exit_code=1)
    model = read_model(checkpoint)
    findings = [f for f in (*checkpoint.problems, *model.findings) if f.severity == "error"]
    if findings:
        first = findings[0]
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise MlloadError(
            f"{checkpoint.label} is not whole: {first.code} {first.where}: {first.message}{more}",
            hint=f"mlload validate {checkpoint.label}",
            exit_code=1,
        )
    return model
