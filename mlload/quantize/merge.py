"""A source some of whose layers are quantized already: what is left joins them under one config.

Layers that are quantized are copied byte by byte. Formats differ in what one config can say: compressed-tensors has
groups, GPTQ has exceptions by name, AWQ and FP8 have one scheme for all, and the others are written by their own tools.
"""

from __future__ import annotations

import copy
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.plan.model import Model
from mlload.quant.spec import Scheme
from mlload.quantize.recipe import Recipe, matches
from mlload.quantize.targets import Target, Targets

OWN_TOOLS = "only the tools of that format write its config"
WHY_NOT = {
    "mxfp4": "its config describes experts alone, and engines run every other linear of such a model unquantized",
    "bitsandbytes": OWN_TOOLS,
    "modelopt": OWN_TOOLS,
    "quark": OWN_TOOLS,
    "torchao": OWN_TOOLS,
    "mlx": "engines other than its own do not read it",
}
FAMILIES = ("awq", "gptq", "compressed-tensors", "fp8")


def quantized_already(model: Model) -> dict[str, Scheme]:
    """Path of every module that is -> its scheme."""
    return {path: param.scheme for param in model.params if param.scheme is not None for path in param.modules()}


def refuse_another_family(model: Model, recipe: Recipe, already: dict[str, Scheme]) -> None:
    """Raises MlloadError where the two cannot live in one config."""
    label, method = model.checkpoint.label, "" if model.quant is None else model.quant.method
    if not already or model.quant is None:
        return
    said = f"{label} is quantized already ({method}, {len(already)} of its layers)"
    if method not in FAMILIES:
        why = WHY_NOT.get(method, OWN_TOOLS)
        raise MlloadError(f"{said}: {why}", hint="quantize the original weights", exit_code=1)
    if not model.quant.config:
        raise MlloadError(f"{said}, and no config says how", hint="mlload inspect shows it", exit_code=1)
    if method != recipe.save_as:
        raise MlloadError(
            f"{said}: {recipe.save_as} cannot stand in one config with it",
            hint=f"--save-as {method}, or quantize the original weights",
            exit_code=1,
        )
    if recipe.method == "awq":
        raise MlloadError(
            f"{said}: AWQ would have to scale layers that are rounded, too",
            hint="--method rtn or gptq",
            exit_code=1,
        )
    if method in ("awq", "fp8"):
        other = next((scheme for scheme in already.values() if not _alike(scheme, recipe.scheme)), None)
        if other is not None:
            raise MlloadError(
                f"{said} with {_words(other)}, and a config of {method} has one scheme for all layers, "
                f"not also {_words(recipe.scheme)}",
                hint="the same bits, group and symmetry as before, or quantize the original weights",
                exit_code=1,
            )


def _alike(one: Scheme, other: Scheme) -> bool:
    fields = ("bits", "kind", "strategy", "group_size", "block", "symmetric", "activation")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _words(scheme: Scheme) -> str:
    shape = f"blocks of {scheme.block[0]} x {scheme.block[1]}" if scheme.block else f"groups of {scheme.group_size}"
    if scheme.strategy in ("tensor", "channel"):
        shape = f"a scale a {'tensor' if scheme.strategy == 'tensor' else 'row'}"
    how = "symmetric" if scheme.symmetric else "asymmetric"
    return f"{scheme.bits} bits, {shape}, {how}, activations {scheme.activation or 'as they are'}"


def without_halves(targets: Targets, already: dict[str, Scheme], fused: dict[str, str]) -> Targets:
    """Parts whose fused layer has other parts that are quantized already stay as they are: an engine has one scheme
    for the whole of it. fused: path -> the engine's module, of those that are quantized."""
    taken = {fused[path] for path in already if path in fused}
    kept = tuple(target for target in targets.targets if target.fused not in taken)
    if kept == targets.targets:
        return targets
    if not kept:
        raise MlloadError("nothing is left to quantize: what is not quantized is part of fused layers that are")
    return Targets(kept, targets.plain, targets.beside)


def merged_config(made: dict[str, Any], before: dict[str, Any], targets: Targets, recipe: Recipe) -> dict[str, Any]:
    """made: what `config.quantization_config` says of the new layers; before: what the source says of its own."""
    if recipe.save_as == "compressed-tensors":
        return _groups(made, before, targets.targets)
    if recipe.save_as == "gptq":
        return _exceptions(made, before, targets.targets)
    found = copy.deepcopy(before)
    if "modules_to_not_convert" in made:
        found["modules_to_not_convert"] = made["modules_to_not_convert"]
        found.pop("ignored_layers", None)
    return found


def _groups(made: dict[str, Any], before: dict[str, Any], targets: tuple[Target, ...]) -> dict[str, Any]:
    """New groups come first and name their layers, so that no older pattern claims them."""
    found = copy.deepcopy(before)
    old = found.get("config_groups") or {}
    by_scheme: dict[Scheme, list[str]] = {}
    for target in targets:
        by_scheme.setdefault(target.scheme, []).append(target.path)
    ordered = sorted(by_scheme.values(), key=lambda paths: -len(paths))
    groups: dict[str, Any] = {}
    numbers = (n for n in range(len(old) + len(ordered) + 1) if f"group_{n}" not in old)
    for group, paths in zip(made["config_groups"].values(), ordered, strict=True):
        groups[f"group_{next(numbers)}"] = {**group, "targets": paths}
    # A format of the whole stands for groups that name none.
    whole = found.get("format")
    for name, group in old.items():
        groups[name] = {**group, "format": group.get("format") or whole}
    formats = {group.get("format") for group in groups.values()}
    found["config_groups"] = groups
    found["format"] = next(iter(formats)) if len(formats) == 1 else "mixed-precision"
    found["ignore"] = _still(before.get("ignore") or [], made["ignore"], targets)
    return found


def _exceptions(made: dict[str, Any], before: dict[str, Any], targets: tuple[Target, ...]) -> dict[str, Any]:
    found = copy.deepcopy(before)
    found.pop("modules_in_block_to_quantize", None)
    dynamic = {
        pattern: value
        for pattern, value in (before.get("dynamic") or {}).items()
        if not (pattern.startswith("-:") and any(matches("re:" + pattern[2:], target.path) for target in targets))
    }
    dynamic |= {pattern: value for pattern, value in made.get("dynamic", {}).items() if pattern.startswith("-:")}
    for target in targets:
        scheme = target.scheme
        own = {"bits": scheme.bits, "group_size": scheme.group_size, "sym": scheme.symmetric, "desc_act": False}
        if any(before.get(key) != value for key, value in own.items()):
            dynamic["+:" + target.path.replace(".", r"\.") + "$"] = own
    if dynamic:
        found["dynamic"] = dynamic
    else:
        found.pop("dynamic", None)
    return found


def _still(old: list[str], new: list[str], targets: tuple[Target, ...]) -> list[str]:
    """Entries of before that name no layer which is quantized now, and those for what stays plain."""
    kept = [entry for entry in old if not any(_names(entry, target.path) for target in targets)]
    return list(dict.fromkeys([*kept, *new]))


def _names(entry: str, path: str) -> bool:
    if entry.startswith("re:"):
        return matches(entry, path)
    return entry in (path, "Linear")
