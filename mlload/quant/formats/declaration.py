"""Where a checkpoint declares its quantization, under which of the many spellings, and whether vLLM sees it.

vLLM 0.33 reads config.json's `quantization_config` (or, when that is absent, hf_quant_config.json in its
place), then `compression_config`, then both keys inside `text_config`; side files count only when
--quantization names the method (transformers_utils/config.py, model_arch_config_convertor.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mlload.checkpoint.config import TEXT_KEYS
from mlload.quant.formats.fields import mapping, text

KEYS = ("quantization_config", "compression_config")

# Side files, in the order in which they are believed, and the method that a file without one is about.
SIDE_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "quantization_config.json": "auto-round",
}

MODELOPT_ALGOS = {
    "FP8": "modelopt",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
    "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
    "MIXED_PRECISION": "modelopt_mixed",
}


class Declaration(NamedTuple):
    """method: normalized; config: the dict, nested ModelOpt fields lifted to its top; where: file or key that
    holds it; seen: vLLM finds it without being told the method."""

    method: str
    config: dict[str, Any]
    where: str
    seen: bool


def declarations(config: Mapping[str, Any], json_files: Mapping[str, Any]) -> Iterator[Declaration]:
    """Every declaration, the one that counts first."""
    found = False
    for scope, where in _scopes(config):
        for key in KEYS:
            block = scope.get(key)
            if isinstance(block, dict) and block:
                method, seen = method_of(block)
                fields = lifted(block)
                if isinstance(scope.get("expert_dtype"), str):
                    # Said of the model, meant for the method: experts narrower than the rest.
                    fields.setdefault("expert_dtype", scope["expert_dtype"])
                yield Declaration(method, fields, where or "config.json", seen)
                found = True
    block = config.get("quantization")
    if not found and isinstance(block, dict) and "bits" in block and "group_size" in block:
        yield Declaration("mlx", dict(block), "config.json", False)
        found = True
    for name, default in SIDE_FILES.items():
        block = json_files.get(name)
        if isinstance(block, dict) and block:
            method, _ = method_of(block, default)
            # ModelOpt's file stands in for a missing block, where it names an algorithm in its own place.
            nested = isinstance(block.get("quantization"), dict)
            yield Declaration(method, lifted(block), name, name == "hf_quant_config.json" and nested and not found)


def _scopes(config: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    yield config, ""
    for key in TEXT_KEYS:
        if isinstance(config.get(key), dict):
            yield config[key], key


def lifted(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block with the fields of ModelOpt's nested `quantization` at its top."""
    nested = block.get("quantization")
    return {**block, **nested} if isinstance(nested, dict) else dict(block)


def method_of(block: Mapping[str, Any], default: str = "") -> tuple[str, bool]:
    """The method of a block, and whether vLLM would know it from the block itself."""
    declared = "".join(c for c in text(block, "quant_method")[:64].lower().strip() if c.isprintable())
    if declared:
        return normalize(declared), True
    nested = mapping(block, "quantization")
    if text(nested, "quant_algo") and _by_modelopt(block):
        return MODELOPT_ALGOS.get(text(nested, "quant_algo").upper(), "modelopt"), True
    return _guess(block) or default, False


def normalize(method: str) -> str:
    return {"compressed_tensors": "compressed-tensors", "auto_round": "auto-round"}.get(method, method)


def _by_modelopt(block: Mapping[str, Any]) -> bool:
    return text(mapping(block, "producer"), "name") == "modelopt" or "modelopt_quant_config" in block


def _guess(block: Mapping[str, Any]) -> str:
    """The method of a block that does not name it, from the fields that only one writer uses."""
    fields = lifted(block)
    if "quant_algo" in fields or _by_modelopt(block):
        return MODELOPT_ALGOS.get(text(fields, "quant_algo").upper(), "modelopt")
    if "config_groups" in fields:
        return "compressed-tensors"
    if "w_bit" in fields or "q_group_size" in fields or "zero_point" in fields:
        return "awq"
    if "autoround_version" in fields or "packing_format" in fields:
        return "auto-round"
    if "load_in_4bit" in fields or "load_in_8bit" in fields:
        return "bitsandbytes"
    if "global_quant_config" in fields:
        return "quark"
    if "bits" in fields and ("desc_act" in fields or "sym" in fields or "damp_percent" in fields):
        return "gptq"
    if "weight_block_size" in fields or "activation_scheme" in fields:
        return "fp8"
    return ""
