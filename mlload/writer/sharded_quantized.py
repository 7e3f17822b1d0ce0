"""Quantized layers in vLLM's `sharded_state`: which of them a file can hold, and what their state is.

Whatever a file holds is copied into the parameters as the layers create them, and only then repacked for a kernel
(vllm/model_executor/model_loader/base_loader.py `load_model`). So a file must hold what the checkpoint holds, fused;
vLLM's own saver writes what the kernels hold, which is why files that it saved of such models do not load. The formats
below were compared with the state of the engine's own classes, names and shapes (tools/vllm_state.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

from mlload.plan.plan import Plan
from mlload.quant.spec import Scheme
from mlload.writer.layout import OutputTensor

# (format, layout) -> the dim of every stored tensor along which parts are fused: the outputs.
FUSED_ALONG: dict[tuple[str, str], int] = {
    ("awq", "gemm"): 1,
    ("compressed_tensors", "int-quantized"): 0,
    ("compressed_tensors", "float-quantized"): 0,
    ("fp8", "static"): 0,
    ("fp8", "tensor"): 0,
}
# Attention layers get placeholders for scales of the KV cache, of which these checkpoints have none:
# compressed_tensors.py `CompressedTensorsKVCacheMethod.create_weights`, kv_cache.py `KVCacheScaleParameter`.
PLACEHOLDERS: dict[str, tuple[tuple[str, tuple[int, ...], float], ...]] = {
    "compressed_tensors": (
        *((f"{which}_scale", (1,), 1.0) for which in "kvq"),
        *((f"{which}_zero_point", (1,), 0.0) for which in "kvq"),
    ),
    "fp8": tuple((f"{which}_scale", (), -1.0) for which in ("k", "prob", "q", "v")),
}


def reason_against(plan: Plan) -> str | None:
    """Why a quantized model cannot be written, None where it can."""
    quant = plan.model.quant
    if quant is None:
        return None
    schemes = {param.scheme for param in plan.view.params if param.scheme is not None and not param.spec.draft}
    kinds = {(scheme.format, scheme.layout) for scheme in schemes}
    if len(kinds) != 1 or not kinds <= FUSED_ALONG.keys():
        return f"its format ({quant.method}) was not compared with the engine's own layers"
    if quant.kv is not None:
        return "it has scales of its KV cache, which the engine stores apart"
    for param in plan.view.params:
        scheme, spec = param.scheme, param.spec
        if scheme is None or spec.draft:
            continue
        if spec.experts is not None or param.expert_total:
            return "its experts are quantized, and the engine stacks their scales in its own ways"
        if param.component == "head":
            return "its head is quantized"
        if scheme.strategy == "tensor" and len(spec.parts) > 1:
            return "a fused weight on disk has one scale, and the engine wants one for each part"
    return None


def fused_along(scheme: Scheme | None) -> int:
    return 0 if scheme is None else FUSED_ALONG[scheme.format, scheme.layout]


def placeholders(plan: Plan, attention: str) -> Iterator[OutputTensor]:
    """What the attention layers of a quantized model have beside their buffers."""
    scheme = next((param.scheme for param in plan.view.params if param.scheme is not None), None)
    for name, shape, value in PLACEHOLDERS.get(scheme.format, ()) if scheme is not None else ():
        yield OutputTensor(attention + name, "F32", shape, (), pack("<f", value))
