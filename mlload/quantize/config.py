"""How the output's config says what was done, in each engine's own words."""

from __future__ import annotations

import json
import re
from typing import Any

from mlload.quant.spec import Scheme
from mlload.quantize.recipe import Recipe
from mlload.quantize.targets import QUANTIZED, Plain, Target, Targets, layer_module

VERSION = "0.13.0"  # of compressed-tensors, whose fields these are


def quantization_config(targets: Targets, recipe: Recipe) -> dict[str, Any]:
    """The `quantization_config` of config.json."""
    made = {
        "awq": _awq,
        "gptq": _gptq,
        "fp8": _fp8,
        "compressed-tensors": _compressed_tensors,
    }[recipe.save_as](targets, recipe)
    if recipe.kv_cache and recipe.save_as == "compressed-tensors":
        made["kv_cache_scheme"] = {
            "num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True,
        }  # fmt: skip
    return made


def side_files(targets: Targets, recipe: Recipe, config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The files beside config.json that other tools of a format look for."""
    if recipe.save_as == "awq":
        scheme = recipe.scheme
        return {
            "quant_config.json": {
                "zero_point": not scheme.symmetric,
                "q_group_size": scheme.group_size,
                "w_bit": scheme.bits,
                "version": "GEMM",
                "modules_to_not_convert": config["modules_to_not_convert"],
            }
        }
    if recipe.save_as == "gptq":
        return {"quantize_config.json": {k: v for k, v in config.items() if k != "quant_method"}}
    return {}


def _awq(targets: Targets, recipe: Recipe) -> dict[str, Any]:
    scheme = recipe.scheme
    return {
        "quant_method": "awq",
        "bits": scheme.bits,
        "group_size": scheme.group_size,
        "zero_point": not scheme.symmetric,
        "version": "gemm",
        # Matched as a part of the name, so that whole paths are the only safe entries; the head is never asked about.
        "modules_to_not_convert": [p for p in _plain_paths(targets.plain) if "lm_head" not in p] or None,
    }


def _gptq(targets: Targets, recipe: Recipe) -> dict[str, Any]:
    scheme = recipe.scheme
    dynamic: dict[str, Any] = {}
    for pattern in _patterns(targets):
        dynamic["-:" + pattern] = {}
    for target in targets.targets:
        if target.scheme != scheme:
            dynamic["+:" + re.escape(target.path) + "$"] = {
                "bits": target.scheme.bits,
                "group_size": target.scheme.group_size,
            }
    config: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": scheme.bits,
        "group_size": scheme.group_size,
        # Groups are fixed before columns are ordered, so that no engine needs a permutation.
        "desc_act": False,
        "static_groups": True,
        "sym": scheme.symmetric,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "true_sequential": False,
        "damp_percent": 0.01,
    }
    if dynamic:
        config["dynamic"] = dynamic
    return config


def _fp8(targets: Targets, recipe: Recipe) -> dict[str, Any]:
    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": recipe.scheme.activation, "fmt": "e4m3"}
    if recipe.scheme.block is not None:
        config["weight_block_size"] = list(recipe.scheme.block)
    config["modules_to_not_convert"] = _plain_paths(targets.plain)
    return config


def _compressed_tensors(targets: Targets, recipe: Recipe) -> dict[str, Any]:
    by_scheme: dict[Scheme, list[Target]] = {}
    for target in targets.targets:
        by_scheme.setdefault(target.scheme, []).append(target)
    ordered = sorted(by_scheme.items(), key=lambda item: -len(item[1]))
    groups: dict[str, Any] = {}
    for number, (scheme, members) in enumerate(ordered):
        # Paths are matched before the class, so that the commonest scheme can be everyone else's.
        names = ["Linear"] if number == 0 else [target.path for target in members]
        groups[f"group_{number}"] = _group(scheme, names)
    layouts = {scheme.layout for scheme in by_scheme}
    return {
        "quant_method": "compressed-tensors",
        "format": next(iter(layouts)) if len(layouts) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "version": VERSION,
        "config_groups": groups,
        "ignore": _ignored(targets),
    }


def _group(scheme: Scheme, names: list[str]) -> dict[str, Any]:
    kind = "int" if scheme.kind == "int" else "float"
    weights: dict[str, Any] = {
        "num_bits": scheme.bits,
        "type": kind,
        "symmetric": scheme.symmetric,
        "strategy": scheme.strategy,
        "dynamic": False,
    }
    if scheme.strategy in ("group", "tensor_group"):
        weights["group_size"] = scheme.group_size
    if scheme.block is not None:
        weights["block_structure"] = list(scheme.block)
    scale = {"mxfp4-pack-quantized": "torch.uint8", "nvfp4-pack-quantized": "torch.float8_e4m3fn"}.get(scheme.layout)
    if scale is not None:
        weights["scale_dtype"] = scale
    return {
        "targets": names,
        "weights": weights,
        "input_activations": None if scheme.activation is None else _activations(scheme, kind, scale),
        "output_activations": None,
        "format": scheme.layout,
    }


def _activations(scheme: Scheme, kind: str, scale: str | None) -> dict[str, Any]:
    """Scales are computed by token or group as activations come, or stored (static; NVFP4's global one: "local")."""
    found: dict[str, Any] = {"num_bits": scheme.activation_bits, "type": kind, "symmetric": True}
    if scheme.activation == "static":
        return {**found, "strategy": "tensor", "dynamic": False}
    if scale is not None:
        strategy, dynamic = ("group", True) if scheme.kind == "mx" else ("tensor_group", "local")
        group = {"strategy": strategy, "group_size": scheme.group_size}
        return {**found, **group, "dynamic": dynamic, "scale_dtype": scale}
    if scheme.block is not None:
        return {**found, "strategy": "group", "group_size": scheme.block[1], "dynamic": True}
    return {**found, "strategy": "token", "dynamic": True}


def _ignored(targets: Targets) -> list[str]:
    """Whole families as one regex each, single layers by name."""
    entries: dict[str, None] = {"lm_head": None}
    for pattern in _patterns(targets):
        entries["re:" + pattern] = None
    return list(entries)


def _patterns(targets: Targets) -> list[str]:
    """Regexes that match every plain linear inside the layers and no target."""
    quantized = {target.param.spec.module for target in targets.targets}
    found: dict[str, None] = {}
    for entry in targets.plain:
        if entry.param.spec.op == "embedding" or entry.reason == QUANTIZED:
            continue
        spec = entry.param.spec
        if spec.module not in quantized:
            template = spec.module
        else:
            # A draft layer is called as the others are, and stays with all its experts.
            template = layer_module(spec, entry.path) if spec.draft else entry.path
        # Engines put models under other roots ("language_model."): what comes before the layers is free.
        pattern = ".*" + re.escape(template.removeprefix("model.")) + "$"
        found[pattern.replace(r"\{layer\}", r"\d+").replace(r"\{expert\}", r"\d+")] = None
    return list(found)


def _plain_paths(plain: tuple[Plain, ...]) -> list[str]:
    return [entry.path for entry in plain if entry.param.spec.alias_of is None and entry.reason != QUANTIZED]


def new_config(config: dict[str, Any], quantization: dict[str, Any]) -> bytes:
    """config.json with the entry added; every other field as it was, in its order."""
    merged = {key: value for key, value in config.items() if key != "compression_config"}
    merged["quantization_config"] = quantization
    return as_bytes(merged)


def as_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
