"""Which of vLLM's method classes takes a layer, and what that method asks its kernels for.

A method is chosen from the checkpoint's scheme and the layer's shape before any kernel is asked;
it decides which parameters are allocated (`allocation`) and which list of kernels is tried
(`mlload.kernels.choice`). Read in vLLM's layers/quantization; files are named beside each rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods.experts import experts_method, moe_marlin_fits, refined_block
from mlload.profiles.methods.linear import linear_method
from mlload.profiles.methods.method import UNKNOWN, Method, capability_number
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.quant.spec import Scheme

__all__ = ["UNKNOWN", "Method", "capability_number", "method_for", "moe_marlin_fits", "refined_block"]


def method_for(
    layer: EngineLayer,
    scheme: Scheme | None,
    quant: str | None,
    capability: tuple[int, int] | None,
    profile: Profile,
) -> Method:
    """The method that takes `layer`. quant: the resolved method of the checkpoint ("auto_awq", "fp8", ...)."""
    cc = capability_number(capability)
    if layer.experts:
        return experts_method(layer, scheme, quant, profile)
    if scheme is None or quant is None or quant in ("mxfp4", "gpt_oss_mxfp4"):
        return _plain(layer, quant)
    if layer.kind == "VocabParallelEmbedding":
        return Method("UnquantizedEmbeddingMethod")
    return linear_method(layer, scheme, quant, cc, profile)


def _plain(layer: EngineLayer, quant: str | None) -> Method:
    """Layers that the method leaves alone. ModelOpt and INC give the head a linear method
    (modelopt.py:234, inc.py:329), everybody else leaves it an embedding."""
    if layer.kind == "VocabParallelEmbedding":
        return Method("UnquantizedEmbeddingMethod")
    if layer.kind == "ParallelLMHead":
        linear = quant is not None and (quant == "inc" or quant.startswith("modelopt"))
        return Method("UnquantizedLinearMethod" if linear else "UnquantizedEmbeddingMethod")
    return Method("UnquantizedLinearMethod")
