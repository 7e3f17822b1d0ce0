"""What vLLM allocates for a layer's parameters: bytes by dtype, on one rank.

    allocate(layer, scheme, quant, dtype, capability, profile) -> {"F8_E4M3": 12582912, "F32": 12}

These are the shapes of `create_weights`, before any weight is read or repacked: the engine's
`weight_bytes`. Shapes that vLLM refuses are allocated by the same floors as its own arithmetic;
the refusals are findings of the plan and of the kernel choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.profiles.allocation.experts import experts_elements
from mlload.profiles.allocation.linear import linear_elements
from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import UNKNOWN, method_for
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.quant.spec import Scheme

__all__ = ["allocate", "attention_bytes"]


def allocate(
    layer: EngineLayer,
    scheme: Scheme | None,
    quant: str | None,
    dtype: str,
    capability: tuple[int, int] | None,
    profile: Profile,
) -> dict[str, int] | None:
    """Bytes by dtype of all parameters of `layer` on this rank, its bias included.

    scheme: how the layer is quantized, None for not at all
    quant:  the engine's resolved method ("auto_awq", "fp8", "compressed-tensors", "gpt_oss_mxfp4", ...), None for none
    dtype:  that the model runs in ("BF16", "F16", "F32")
    None where the method is not known here.
    """
    if not layer.k:
        return {}  # a config of nonsense: nothing is allocated, and nothing is divided by it
    method = method_for(layer, scheme, quant, capability, profile)
    if UNKNOWN in (method.name, method.family):
        return None
    count = experts_elements if layer.experts else linear_elements
    elements = count(method, layer, dtype, scheme, capability, profile)
    sizes: dict[str, int] = {}
    for kind, number in elements:
        if number:
            sizes[kind] = sizes.get(kind, 0) + number * DTYPE_BITS[kind] // 8
    return sizes


def attention_bytes(quant: str | None, dtype: str, *, mla: bool = False, kv_scales: int = 1) -> dict[str, int]:
    """Parameters that one attention layer adds for its KV cache, whatever the cache's dtype.

    compressed-tensors: three float32 scales and three zero points in the model's dtype
    (compressed_tensors.py:1144); fp8, ModelOpt and Quark: four scales in the model's dtype
    (kv_cache.py:30, :62); the others none. MLA layers get them from ModelOpt alone (modelopt.py:226,
    against fp8.py:208). kv_scales: 1, or the KV heads of a scheme with one scale a head.
    """
    width = DTYPE_BITS[dtype] // 8
    if quant is None or (mla and not quant.startswith("modelopt")):
        return {}
    if quant == "compressed-tensors":
        return {"F32": 3 * 4 * kv_scales, dtype: 3 * width * kv_scales}
    if mla and quant == "modelopt_mixed":
        return {}
    if quant.startswith("modelopt") or quant in ("fp8", "quark"):
        return {dtype: 4 * width}
    return {}
