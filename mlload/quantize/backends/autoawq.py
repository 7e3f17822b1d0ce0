"""AutoAWQ as a backend: its scale search, clipping, rounding and packing; everything around them is ours.

AutoAWQ holds the whole model in memory, and an interrupted run begins anew. On a CPU one fault of it is mended, see
autoawq_cpu.py.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.engine.names import Names
from mlload.plan.model import Model
from mlload.quantize.backends import BackendFailed, autoawq_cpu
from mlload.quantize.compare import Scaled
from mlload.quantize.recipe import Recipe
from mlload.quantize.source import SourceTensors
from mlload.quantize.stream import Sheets, copy_tensor
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import TORCH, as_array

INSTEAD = "--backend mlload"
STORED = ("qweight", "qzeros", "scales")


def write_by_autoawq(
    model: Model, targets: Targets, recipe: Recipe, sheets: Sheets, calibration: Any, step: Callable[[int], None]
) -> dict[str, Any]:
    """Everything of the source. Gives `scaled`: a target's path -> by what AutoAWQ scaled its weight."""
    checkpoint = model.checkpoint
    source = SourceTensors(checkpoint)
    for target in targets.targets:
        source.finite(target.weight)
    with _quiet():
        whole = _loaded(checkpoint)
        places = Places(whole.model, checkpoint, targets)
        found = _quantized(whole, places, recipe, calibration, step)
        parameters = dict(whole.model.state_dict())
    for name in checkpoint.tensors:
        kept = places.target(name)
        if kept is not None:
            module = whole.model.get_submodule(kept.module)
            for suffix in STORED:
                sheets.put(f"{kept.target.path}.{suffix}", as_array(getattr(module, suffix)).tobytes())
        else:
            _put_plain(checkpoint, source, name, parameters.get(places.parameter(name) or ""), sheets)
    sheets.sync()
    return {"scaled": found.scaled(places), "outputs": {}, "notes": found.notes}


class Place:
    """A target and its module's path in the class."""

    def __init__(self, target: Target, module: str) -> None:
        self.target = target
        self.module = module


class Places:
    """Where the tensors of the checkpoint are in the class that AutoAWQ loaded."""

    def __init__(self, net: Any, checkpoint: Checkpoint, targets: Targets) -> None:
        self._lookup = Names(net)
        by_weight = {target.weight: target for target in targets.targets}
        self.by_weight: dict[str, Place] = {}
        modules = dict(net.named_modules())
        for name, target in by_weight.items():
            path = (self._lookup.parameter(name) or "").removesuffix(".weight")
            if not isinstance(modules.get(path), nn.Linear):
                raise BackendFailed(
                    f"AutoAWQ cannot quantize {target.path}: transformers' class has no linear layer of its own for it",
                    hint=INSTEAD,
                    exit_code=3,
                )
            self.by_weight[name] = Place(target, path)
        self.modules = {place.module: place for place in self.by_weight.values()}

    def target(self, name: str) -> Place | None:
        return self.by_weight.get(name)

    def parameter(self, name: str) -> str | None:
        return self._lookup.parameter(name)


class Found:
    """What AutoAWQ chose: scales of a module's inputs and outputs, by its path in the class."""

    def __init__(self) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.notes: list[str] = []

    def scaled(self, places: Places) -> Callable[[str], Scaled]:
        paths = {place.target.path: place for place in places.by_weight.values()}

        def of(path: str) -> Scaled:
            place = paths[path]
            inputs, rows = self.inputs.get(place.module), self.outputs.get(place.module)
            if rows is not None and len(rows) < place.target.n:  # the last of a fused layer
                rows = torch.cat([torch.ones(place.target.n - len(rows)), rows])
            return Scaled(*(None if factors is None else factors.numpy() for factors in (inputs, rows)))

        return of


def _package() -> Any:
    """Raises MlloadError where it is not installed, or does not import beside the transformers that is there."""
    try:
        import awq.quantize.quantizer
        from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP
    except ModuleNotFoundError as error:
        raise MlloadError(
            f"--backend autoawq needs a package that is not installed ({error.name})",
            hint="pip install 'mlload[autoawq]'",
            exit_code=3,
        ) from error
    except Exception as error:
        raise MlloadError(
            f"AutoAWQ does not import beside the transformers that is installed: {_line(error)}",
            hint=f"transformers 5.24 is known to work, or {INSTEAD}",
            exit_code=3,
        ) from error
    return awq.quantize.quantizer, AWQ_CAUSAL_LM_MODEL_MAP


def refuse_unsupported(checkpoint: Checkpoint, recipe: Recipe, *, padded: bool = False) -> None:
    """Raises MlloadError for what AutoAWQ cannot do, before anything is written."""
    with _quiet():
        _, known = _package()
    if getattr(checkpoint.source, "root", None) is None or padded or checkpoint.format != "safetensors":
        raise MlloadError(
            "AutoAWQ reads safetensors folders on this machine, as they are", hint=f"write one first, or {INSTEAD}"
        )
    model_type = checkpoint.config.get("model_type")
    if model_type not in known:
        raise MlloadError(
            f"AutoAWQ knows no architecture {model_type!r}; it has {', '.join(sorted(known))}",
            hint=INSTEAD,
            exit_code=3,
        )
    if checkpoint.config.get("quantization_config"):
        raise MlloadError("AutoAWQ takes no source that is quantized in part", hint=INSTEAD)
    if recipe.kv_cache:
        raise MlloadError("AutoAWQ makes no scales for a KV cache", hint=INSTEAD)


def _loaded(checkpoint: Checkpoint) -> Any:
    """AutoAWQ's model, in float32 on a CPU (half precision is many times slower there)."""
    _, known = _package()
    model_type = checkpoint.config["model_type"]
    try:
        return known[model_type].from_pretrained(
            str(getattr(checkpoint.source, "root", "")),
            model_type,
            torch_dtype=torch.float16 if torch.cuda.is_available() else torch.float32,
            trust_remote_code=False,
            device_map="cpu",
        )
    except Exception as error:
        raise _failed(model_type, error) from error


def _quantized(whole: Any, places: Places, recipe: Recipe, calibration: Any, step: Callable[[int], None]) -> Found:
    quantizer, _ = _package()
    found = Found()
    scheme = recipe.scheme
    samples = calibration.samples
    try:
        whole.quantize(
            quant_config={
                "zero_point": not scheme.symmetric,
                "q_group_size": scheme.group_size,
                "w_bit": scheme.bits,
                "version": "GEMM",
            },
            calib_data=samples.tolist(),
            # Longer samples would be dropped without a word; these are all of one length.
            max_calib_samples=samples.shape[0],
            max_calib_seq_len=samples.shape[1],
            apply_clip=recipe.clip,
            quantizer_cls=_quantizer(quantizer, places, found, step),
        )
    except MlloadError:
        raise
    except Exception as error:
        raise _failed(whole.model_type, error) from error
    for path, place in places.modules.items():
        if not hasattr(whole.model.get_submodule(path), "qweight"):
            raise BackendFailed(f"AutoAWQ left {place.target.path} as it was", hint=INSTEAD, exit_code=3)
    return found


def _quantizer(quantizer: Any, places: Places, found: Found, step: Callable[[int], None]) -> Any:
    """AutoAWQ's class, with the fault mended, our targets, our progress, and its choices noted."""

    class Quantizer(quantizer.AwqQuantizer):  # type: ignore[misc]
        def _compute_best_scale(self, x: Any, w_mean: Any, x_mean: Any, module2inspect: Any, *rest: Any) -> Any:
            with autoawq_cpu.copied_state(module2inspect):
                return super()._compute_best_scale(x, w_mean, x_mean, module2inspect, *rest)

        def _search_best_scale(self, module: Any, *words: Any, **options: Any) -> Any:
            before, layers, scales = super()._search_best_scale(module, *words, **options)
            prefix = quantizer.get_op_name(self.model, module)
            for name in layers:
                found.inputs[f"{prefix}.{name}"] = scales.float()
            if isinstance(module.get_submodule(before), nn.Linear):
                found.outputs[f"{prefix}.{before}"] = scales.float()
            return before, layers, scales

        def _apply_quant(self, module: Any, named_linears: Any) -> None:
            prefix = quantizer.get_op_name(self.model, module)
            chosen = {name: one for name, one in named_linears.items() if f"{prefix}.{name}" in places.modules}
            super()._apply_quant(module, chosen)
            step(sum(one.weight.numel() * 2 for one in chosen.values()))

    return Quantizer


def _put_plain(checkpoint: Checkpoint, source: SourceTensors, name: str, now: Tensor | None, sheets: Sheets) -> None:
    """As it was, byte by byte; or with a scale folded into it."""
    dtype = TORCH.get(checkpoint.tensors[name].dtype)
    if now is None or dtype is None:
        copy_tensor(checkpoint, name, sheets)
        return
    before = source.tensor(name)
    values = now.detach().to("cpu", dtype)
    if values.shape != before.shape or torch.equal(values, before):
        copy_tensor(checkpoint, name, sheets)
    else:
        sheets.put(name, as_array(values).tobytes())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without its bars and its farewell, and without transformers' own: progress is shown by the caller."""
    import transformers

    logging: Any = transformers.utils.logging
    # Recorded and dropped: the package puts filters of its own in front.
    with warnings.catch_warnings(record=True):
        quantizer, _ = _package()
        bar, level = quantizer.tqdm, logging.get_verbosity()
        shown = logging.is_progress_bar_enabled()
        quantizer.tqdm = lambda steps, **_: steps
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            quantizer.tqdm = bar
            logging.set_verbosity(level)
            if shown:
                logging.enable_progress_bar()


def _failed(model_type: str, error: Exception) -> MlloadError:
    return BackendFailed(
        f"AutoAWQ fails on architecture {model_type!r} with this version of transformers: {_line(error)}",
        hint=INSTEAD,
        exit_code=3,
    )


def _line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:160]
