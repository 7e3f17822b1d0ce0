"""Rules about dtypes and GPUs: what a GPU cannot do, and what a dtype does to a model."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule

# Model types whose activations leave float16's range (65504): reported for each of them, with empty or garbled output.
OVERFLOWS = frozenset({"gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "glm4", "plamo2"})
NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def _label(context: Context) -> str:
    capability = context.plan.capability
    return "this GPU" if capability is None else f"compute capability {capability[0]}.{capability[1]}"


@rule("DT001", "bfloat16 weights run in another dtype")
def not_bfloat16(context: Context) -> Iterator[Finding]:
    """GPUs below compute capability 8.0 have no bfloat16. Unless a dtype is asked for, the engine runs such a
    checkpoint in float16, which most models bear, or in float32 where the model type is known to overflow in
    float16: right, with twice the memory and much slower."""
    plan, model = context.plan, context.model
    if context.request.dtype != "auto" or plan.capability is None or plan.capability >= (8, 0):
        return
    wide = plan.dtype == "F32" and context.config.model_type in plan.profile.value("float16_refused", ())
    if not wide and (model.dtype != "BF16" or plan.dtype == "BF16"):
        return
    why = "this model type overflows in float16" if wide else "float16 has a smaller range"
    yield Finding(
        "DT001",
        "warning" if wide else "info",
        "right",
        "--dtype auto",
        f"{_label(context)} has no bfloat16: the engine runs it in {NAMES[plan.dtype]} ({why})",
        {"dtype": NAMES[plan.dtype], "capability": plan.capability[0] * 10 + plan.capability[1]},
        (Hint("use a GPU of compute capability 8.0 or above"),),
    )


@rule("DT002", "float16 overflows in this model type")
def overflows(context: Context) -> Iterator[Finding]:
    """The activations of some model types leave float16's range of 65504: the answers are empty, or only padding.
    Newer engines refuse the dtype for those that they know (EN014); the others start and are wrong."""
    plan, kind = context.plan, context.config.text_type
    refused = plan.profile.value("float16_refused", ())
    if plan.dtype != "F16" or kind not in OVERFLOWS or context.config.model_type in refused:
        return
    safe = plan.profile.dtypes(plan.capability)
    better = "bfloat16" if "bfloat16" in safe else "float32"
    yield Finding(
        "DT002",
        "warning",
        "right",
        "--dtype",
        f"models of type {kind} overflow in float16 (largest value 65504)",
        {"model_type": kind},
        (Hint(f"run it in {better}", f"--dtype {better}"),),
    )


@rule("DT003", "fp8 weights without fp8 arithmetic")
def weight_only(context: Context) -> Iterator[Finding]:
    """GPUs below compute capability 8.9 cannot multiply float8. vLLM keeps such weights small and widens them for
    each product: right, and slower for large batches than 16-bit weights."""
    plan, quant = context.plan, context.model.quant
    least = plan.profile.value("fp8_capability")
    if plan.capability is None or quant is None or not isinstance(least, int) or not plan.view.sees_quantization:
        return
    have = plan.capability[0] * 10 + plan.capability[1]
    if have >= least or have < 75:
        return
    both = any(
        scheme is not None and (scheme.kind, scheme.bits) == ("float", 8) and scheme.activation is not None
        for scheme in (layer.scheme for layer in plan.layers())
    )
    if both:
        yield Finding(
            "DT003",
            "info",
            "right",
            "fp8 weights",
            f"{_label(context)} has no float8 arithmetic (needs {least / 10:g}): the weights stay in 8 bits and the "
            "products run in 16",
            {"capability": have, "min_capability": least},
            (Hint("int8 (W8A8) or 4-bit weights are faster on this GPU", needs="original weights"),),
        )


@rule("DT010", "unknown KV cache dtype")
def kv_dtype_known(context: Context) -> Iterator[Finding]:
    """--kv-cache-dtype names none of the dtypes that the engine can store keys and values in. An explicit float16 or
    bfloat16 must be the dtype that the model runs in."""
    asked, profile = context.request.kv_cache_dtype, context.plan.profile
    if asked == "auto" or profile.engine != "vllm":
        return
    known = profile.value("kv_cache_dtypes", ())
    if known and asked not in known:
        yield Finding(
            "DT010",
            "error",
            "starts",
            f"--kv-cache-dtype {asked}",
            f"unknown KV cache dtype {asked!r}; known: {', '.join(known)}",
            {"kv_cache_dtype": asked},
            (Hint("leave it to the checkpoint", "--kv-cache-dtype auto"),),
        )
    elif (
        profile.value("kv_cache_float_matches")
        and asked in ("float16", "bfloat16")
        and NAMES.get(context.plan.dtype) != asked
    ):
        running = NAMES.get(context.plan.dtype, context.plan.dtype)
        yield Finding(
            "DT010",
            "error",
            "starts",
            f"--kv-cache-dtype {asked}",
            f"a KV cache of {asked} goes with a model that runs in {asked}, and this one runs in {running}",
            {"kv_cache_dtype": asked, "dtype": running},
            (Hint("leave it to the model's dtype", "--kv-cache-dtype auto"),),
        )


@rule("DT011", "fp8_e5m2 cache for a checkpoint with KV scales")
def e5m2(context: Context) -> Iterator[Finding]:
    """Quantization methods that can hold scales for keys and values take float8 e4m3 only; vLLM refuses e5m2 for
    them (layers/attention/attention.py:205). Weight-only compressed-tensors checkpoints without a kv_cache_scheme may
    use it."""
    plan, quant = context.plan, context.model.quant
    if context.request.kv_cache_dtype != "fp8_e5m2" or quant is None or plan.view.method is None:
        return
    holds = plan.view.method in ("fp8", "quark", "petit_nvfp4", "mxfp8") or plan.view.method.startswith("modelopt")
    if holds or (plan.view.method == "compressed-tensors" and quant.kv is not None):
        yield Finding(
            "DT011",
            "error",
            "starts",
            "--kv-cache-dtype fp8_e5m2",
            f"the {plan.view.method} method holds KV scales, which go with float8 e4m3 and not with e5m2",
            {"method": plan.view.method},
            (Hint("use e4m3", "--kv-cache-dtype fp8"),),
        )


@rule("DT012", "an fp8 KV cache needs another attention backend on this GPU")
def kv_fp8(context: Context) -> Iterator[Finding]:
    """Below compute capability 8.9 vLLM's Triton attention refuses float8 keys and values, and FlashAttention takes
    them on 9.0 only. FlashInfer accepts them where it is installed: it depends on the installation."""
    plan = context.plan
    if plan.capability is None or plan.kv_dtype not in ("F8_E4M3", "F8_E5M2") or plan.profile.engine != "vllm":
        return
    if plan.capability >= (8, 9) or plan.profile.assumed.get("flashinfer") or not plan.view.attention_layers:
        return
    declared = context.request.kv_cache_dtype == "auto"
    yield Finding(
        "DT012",
        "warning",
        "starts",
        "the checkpoint's KV scheme" if declared else f"--kv-cache-dtype {context.request.kv_cache_dtype}",
        f"{_label(context)} is below 8.9: Triton attention refuses a float8 KV cache, only FlashInfer (not assumed to "
        "be installed) takes it",
        {"capability": plan.capability[0] * 10 + plan.capability[1], "min_capability": 89},
        (Hint("keep keys and values in 16 bits", f"--kv-cache-dtype {NAMES.get(plan.dtype, 'auto')}"),),
    )
