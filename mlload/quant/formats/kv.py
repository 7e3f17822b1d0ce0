"""KV-cache scales: how they are called on disk, and what configs declare of them.

Sources: vLLM's quantization/base_config.py (`get_cache_scale_mapper`), fp8.py, quark/quark.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.fields import integer, mapping, strings, text
from mlload.quant.spec import KVScheme

Which = Literal["k", "v", "q", "prob"]

# Endings below the attention module's path, the current spelling first.
_SPELLINGS: dict[Which, tuple[str, ...]] = {
    "k": (
        "k_scale",
        "k_proj.k_scale",
        "k_proj.output_scale",
        "attn.k_scale",
        "k_cache.scale",
        "qkv_proj.k_scale",
        "qkqkv_proj.k_scale",
    ),
    "v": (
        "v_scale",
        "v_proj.v_scale",
        "v_proj.output_scale",
        "attn.v_scale",
        "v_cache.scale",
        "qkv_proj.v_scale",
        "qkqkv_proj.v_scale",
    ),
    "q": ("q_scale", "q_proj.q_scale", "q_proj.output_scale", "attn.q_scale", "q.scale", "qkv_proj.q_scale"),
    "prob": ("prob_output_scale", "prob_scale", "attn.prob_scale"),
}
_BOTH = ("kv_scale", "attn.kv_scale")
# Accepted and ignored: caches are symmetric.
_ZEROS = ("k_zero_point", "v_zero_point", "q_zero_point")

_ENDINGS: tuple[tuple[str, Which | Literal["kv", "zero"]], ...] = tuple(
    sorted(
        [(f".{end}", which) for which, ends in _SPELLINGS.items() for end in ends]
        + [(f".{end}", "kv") for end in _BOTH]
        + [(f".{end}", "zero") for end in _ZEROS],
        key=lambda pair: -len(pair[0]),
    )
)
LAST_PARTS = frozenset(end.rpartition(".")[2] for end, _ in _ENDINGS)


def kv_scale_names(attention: str, which: Which) -> tuple[str, ...]:
    """Every name under which one attention's scale may be stored; the deprecated `kv_scale`, one for both k and
    v, comes last. All are optional: an engine takes 1.0 where there is none."""
    both = _BOTH if which in ("k", "v") else ()
    return tuple(f"{attention}.{end}" for end in (*_SPELLINGS[which], *both))


def kv_scale_of(name: str) -> tuple[str, str] | None:
    """(attention path, "k" | "v" | "q" | "prob" | "kv" | "zero") of a KV scale's (or zero point's) name, None for
    other tensors."""
    if name[name.rfind(".") + 1 :] not in LAST_PARTS:
        return None
    for ending, which in _ENDINGS:
        if name.endswith(ending):
            return name[: -len(ending)], which
    return None


def stored_scales(tensors: Mapping[str, TensorRef]) -> dict[str, tuple[int, ...]]:
    """KV scales (k, v or both) that a checkpoint holds: name -> shape."""
    found = {}
    for name, ref in tensors.items():
        if name.endswith("scale"):
            which = kv_scale_of(name)
            if which is not None and which[1] in ("k", "v", "kv"):
                found[name] = ref.shape
    return found


def declared(config: Mapping[str, Any]) -> KVScheme | None:
    """What a quantization block says of the KV cache: compressed-tensors' and ModelOpt's `kv_cache_scheme`,
    ModelOpt's `kv_cache_quant_algo`, Quark's `kv_cache_group`."""
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, dict) and scheme:
        bits = integer(scheme, "num_bits", default=8) or 8
        kind: Literal["int", "float"] = "int" if text(scheme, "type").lower() == "int" else "float"
        strategy = text(scheme, "strategy", default="tensor").lower()
        return KVScheme(bits, kind, strategy, "kv_cache_scheme")
    for key in ("kv_cache_quant_algo", "kv_cache_scheme"):
        algo = text(config, key).upper()
        if algo and algo != "NONE":
            return KVScheme(4 if "FP4" in algo else 8, "int" if algo.startswith("INT") else "float", "tensor", key)
    if strings(mapping(config, "export"), "kv_cache_group"):
        return KVScheme(8, "float", "tensor", "export.kv_cache_group")
    return None
