"""AutoRound: no layout of its own; `packing_format` says whose tensors it wrote.

auto_round:auto_gptq (the default) = GPTQ v1, auto_round:auto_awq = AWQ gemm, auto_round:fp8 = block fp8,
auto_round:llm_compressor = compressed-tensors. Schemes carry the format whose tensors they are.
Sources: auto-round's export/*, vLLM's quantization/inc/*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import matching, plain_modules, registry
from mlload.quant.formats.fields import flag, integer, mapping, pair, strings, text, width
from mlload.quant.formats.tensors import cut
from mlload.quant.spec import Scheme, TensorSpec

__all__ = ["cut", "declare", "dequantize", "detect", "pack", "spec", "unpack"]


def detect(config: Mapping[str, Any], tensors: Mapping[str, TensorRef]) -> Scheme | None:
    named = _named(config)
    for name in ("gptq", "awq", "fp8", "compressed_tensors"):
        scheme = registry.get(name).detect(named, tensors)
        if scheme is not None:
            return scheme
    return None


def _packing(config: Mapping[str, Any]) -> str:
    """ "gptq", "awq", "fp8" or "llm_compressor"."""
    packing = text(config, "packing_format").lower()
    if "awq" in packing:
        return "awq"
    if "llm_compressor" in packing or "mx_fp" in text(config, "data_type").lower():
        return "llm_compressor"
    if packing.endswith("fp8") or (not packing and pair(config.get("group_size"))):
        return "fp8"
    return "gptq"


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config in the words of the format that it writes."""
    fields = dict(config)
    fields["zero_point"] = not flag(config, "sym", default=True)
    fields["checkpoint_format"] = "gptq"
    block = pair(config.get("group_size"))
    if block is not None:
        fields["weight_block_size"] = list(block)
        del fields["group_size"]
    return fields


def _base(config: Mapping[str, Any]) -> Scheme | None:
    packing, fields = _packing(config), _named(config)
    if packing == "llm_compressor":
        bits = width(config, "bits", allowed=(2, 3, 4, 8), default=4)
        if "mx_fp" in text(config, "data_type").lower():
            layout = "mxfp8-quantized" if bits == 8 else "mxfp4-pack-quantized"
            active: Any = "dynamic" if (integer(config, "act_bits", default=16) or 16) < 16 else None
            return Scheme(
                "compressed_tensors",
                layout,
                bits,
                "mx",
                "group",
                32,
                activation=active,
                activation_bits=bits if active else None,
            )
        group = integer(config, "group_size", default=128)
        return Scheme("compressed_tensors", "pack-quantized", bits, "int", "channel" if group == -1 else "group", group)
    return registry.get(packing).declare(fields)("layers.0.linear")


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    base = _base(config)
    blocks = strings({"blocks": _split(config.get("block_name_to_quantize"))}, "blocks")
    overrides: list[tuple[str, Scheme | None]] = []
    for name, override in mapping(config, "extra_config").items():
        if isinstance(override, dict):
            bits = integer(override, "bits")
            overrides.append((name, None if bits is not None and bits >= 16 else _base({**config, **override})))

    def scheme_for(module: str) -> Scheme | None:
        for name, scheme in overrides:
            if name == module:
                return scheme
        for name, scheme in overrides:
            compiled = matching.regex(name)
            if compiled is not None and any(c in name for c in "*+?|[(^$\\") and compiled.search(module):
                return scheme
        if plain_modules.left_plain(module):
            return None
        return base if not blocks or module.startswith(blocks) else None

    return scheme_for


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


def spec(scheme: Scheme, n: int, k: int, *, bias: bool = False, experts: int | None = None) -> tuple[TensorSpec, ...]:
    return registry.get(scheme.format).spec(scheme, n, k, bias=bias, experts=experts)


def unpack(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    return registry.get(scheme.format).unpack(scheme, tensors, n, k)


def pack(scheme: Scheme, values: Mapping[str, Any]) -> dict[str, Any]:
    return registry.get(scheme.format).pack(scheme, values)


def dequantize(scheme: Scheme, tensors: Mapping[str, Any], n: int, k: int) -> Any:
    return registry.get(scheme.format).dequantize(scheme, tensors, n, k)
