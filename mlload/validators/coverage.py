"""Which modules an engine takes for quantized, by the config alone, against how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mlload.plan.bound import BoundParam
from mlload.quant.formats import registry
from mlload.quant.formats.fields import mapping, strings
from mlload.quant.spec import Scheme
from mlload.validators.context import Context

Declared = Callable[[str], Scheme | None]

# Methods of vLLM that decide by the config which modules they take.
BY_CONFIG = (
    "auto_awq",
    "auto_gptq",
    "fp8",
    "compressed-tensors",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mixed",
    "modelopt_mxfp8",
    "quark",
    "inc",
)

HEAD = "ParallelLMHead"


class Disagreement(NamedTuple):
    """layers: in which a family is stored otherwise than the config says; scheme: what the config declares."""

    param: BoundParam
    layers: tuple[int, ...]
    scheme: Scheme | None


def declared_schemes(context: Context) -> Declared | None:
    """A module's scheme by the config; None where the engine does not go by it."""
    quant, view = context.model.quant, context.plan.view
    if quant is None or not view.sees_quantization or not quant.config or view.method not in BY_CONFIG:
        return None
    if context.plan.profile.engine != "vllm" or context.model.config_only or not registry.known(quant.method):
        return None
    return registry.get(quant.method).declare(quant.config)


def by_headers(context: Context) -> bool:
    """The engine takes what the headers show, so that config and files cannot disagree but for the head: AWQ and GPTQ
    without a list of modules (auto_awq.py and auto_gptq.py, `maybe_update_config`)."""
    assert context.model.quant is not None
    config, method = context.model.quant.config, context.plan.view.method
    if method == "auto_awq":
        return not strings(config, "modules_to_not_convert")
    return method == "auto_gptq" and not (strings(config, "modules_in_block_to_quantize") or mapping(config, "dynamic"))


def stored_plain(context: Context, declared: Declared) -> Iterator[Disagreement]:
    """Families stored plain in layers where the engine expects quantized tensors."""
    if context.plan.view.method == "auto_gptq" or by_headers(context):
        return  # what is not packed is not in its list either
    for param in _asked(context):
        if param.scheme is None:
            found = [(layer, scheme) for layer, ours, theirs in _each(param, declared) if (scheme := ours and theirs)]
            if found:
                yield Disagreement(param, tuple(layer for layer, _ in found), found[0][1])


def stored_quantized(context: Context, declared: Declared) -> Iterator[Disagreement]:
    """Families stored quantized in layers where the engine builds plain ones."""
    heads_only = by_headers(context)
    for param in _asked(context):
        if param.scheme is not None and not (heads_only and param.spec.kind != HEAD):
            found = [layer for layer, ours, theirs in _each(param, declared) if ours is None and theirs is None]
            if found:
                yield Disagreement(param, tuple(found), None)


def module_at(param: BoundParam, layer: int, path: str | None = None) -> str:
    """A module of a family (of its first expert); layer -1 outside the layers."""
    path = param.spec.module if path is None else path
    path = path if layer < 0 else path.replace("{layer}", str(layer))
    experts = param.experts
    return path if experts is None else path.replace("{expert}", str(experts[0]))


def packed(scheme: Scheme) -> bool:
    """The weight is stored under another name or in another shape than a plain one, so that the engine refuses a
    plain one; an 8-bit weight of the same name and shape is cast without a word."""
    specs = registry.get(scheme.format).spec(scheme, 256, 256)
    weight = next((spec for spec in specs if spec.role == "weight"), None)
    return weight is None or weight.suffix != "weight" or any(dim.values != 1 for dim in weight.dims)


def _asked(context: Context) -> Iterator[BoundParam]:
    """Linears that the engine asks its quantization config about."""
    for param in context.model.params:
        spec = param.spec
        asked = spec.op in ("linear", "experts") or spec.kind == HEAD
        if asked and spec.quantized and param.stored and not spec.draft:
            yield param


def _each(param: BoundParam, declared: Declared) -> Iterator[tuple[int, Scheme | None, Scheme | None]]:
    """(layer, the config's answer for the module, and for the engine's fused one, whose name lists may use too)"""
    spec = param.spec
    for layer in (-1,) if spec.layers is None else spec.layers:
        ours = declared(module_at(param, layer))
        yield layer, ours, declared(module_at(param, layer, spec.engine)) if spec.engine else ours
