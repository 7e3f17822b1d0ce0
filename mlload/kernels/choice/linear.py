"""Can this kernel run this dense layer? The conditions of vLLM's linear kernels, by class name.

Each function answers None (yes) or the reason why not, with its numbers. Read in vLLM 0.33.0's
model_executor/kernels/linear; the numbers that they compare with come from the profile.
"""

from __future__ import annotations

from collections.abc import Callable

from mlload.kernels.choice.question import Question

Condition = Callable[[Question], str | None]


def _absent(extra: str) -> Condition:
    def check(q: Question) -> str | None:
        return None if q.has(extra) else f"{extra} is not installed"

    return check


def _at_least(cc: int) -> Condition:
    def check(q: Question) -> str | None:
        return None if q.cc >= cc else f"needs compute capability {cc // 10}.{cc % 10}, this GPU has {q.version}"

    return check


def _exactly(cc: int) -> Condition:
    def check(q: Question) -> str | None:
        return None if q.cc == cc else f"runs on compute capability {cc // 10}.{cc % 10} only, this GPU has {q.version}"

    return check


def _generation(*majors: int) -> Condition:
    def check(q: Question) -> str | None:
        names = " or ".join(f"{major}.x" for major in majors)
        return None if q.family(*majors) else f"needs compute capability {names}, this GPU has {q.version}"

    return check


def _never(reason: str) -> Condition:
    return lambda q: reason


def _always(q: Question) -> str | None:
    return None


def _all(*conditions: Condition) -> Condition:
    def check(q: Question) -> str | None:
        return next((reason for condition in conditions if (reason := condition(q)) is not None), None)

    return check


# Mixed precision (integer weights, 16-bit activations).
def _cutlass_w4a8(q: Question) -> str | None:
    return "takes float8 activations only, this layer has 16-bit ones"


def _machete(q: Question) -> str | None:
    """mixed_precision/machete.py:28, utils/machete_utils.py:9."""
    m, sizes = q.method, q.profile.constant("machete_group_sizes", [])
    block_k, block_n = q.profile.constant("machete_block", [64, 128])
    if q.cc != 90:
        return f"runs on compute capability 9.0 only, this GPU has {q.version}"
    if m.bits not in (4, 8):
        return f"takes 4- and 8-bit weights, not {m.bits}-bit ones"
    if m.group_size not in sizes:
        return f"takes groups of {_sizes(sizes)}, not {m.group_size}"
    if q.layer.k % block_k:
        return f"K per rank must be a multiple of {block_k}: {q.layer.k} % {block_k} = {q.layer.k % block_k}"
    if q.layer.n % block_n:
        return f"N per rank must be a multiple of {block_n}: {q.layer.n} % {block_n} = {q.layer.n % block_n}"
    return None


def _marlin(q: Question) -> str | None:
    """mixed_precision/marlin.py:36. Misaligned tiles are padded, a group across ranks is not."""
    m, sizes = q.method, q.profile.constant("marlin_group_sizes", [])
    if q.cc < 75:
        return f"needs compute capability 7.5, this GPU has {q.version}"
    if m.bits not in ((4,) if m.zero_points else (4, 8)):
        return f"takes no {m.bits}-bit weights {'with zero points' if m.zero_points else 'here'}"
    if m.group_size not in sizes:
        return f"takes groups of {_sizes(sizes)}, not {m.group_size}"
    group, k = m.group_size, q.layer.k
    if group != -1 and group < q.layer.in_full and k % group:
        return f"a group would straddle two ranks: K per rank {k} % {group} = {k % group}"
    return None


def _conch(q: Question) -> str | None:
    m, sizes = q.method, q.profile.constant("conch_group_sizes", [])
    if q.cc < 80:
        return f"needs compute capability 8.0, this GPU has {q.version}"
    if m.bits not in (4, 8):
        return f"takes 4- and 8-bit weights, not {m.bits}-bit ones"
    if m.group_size not in sizes:
        return f"takes groups of {_sizes(sizes)}, not {m.group_size}"
    return None if q.has("conch") else "conch is not installed"


def _exllama(q: Question) -> str | None:
    """mixed_precision/exllama.py:29: looks at the full K, not at the rank's."""
    m, k = q.method, q.layer.in_full
    pack = 32 // m.bits
    if q.layer.n % pack:
        return f"N per rank must be a multiple of {pack}: {q.layer.n} % {pack} = {q.layer.n % pack}"
    if q.dtype != "F16":
        return f"takes float16 activations only, this model runs in {q.dtype}"
    if m.bits not in (4, 8) or m.zero_points:
        return f"takes symmetric 4- and 8-bit weights, not {m.bits}-bit ones{' with zero points' * m.zero_points}"
    if m.group_size <= 0:
        return "does not take one scale a channel"
    if k % m.group_size:
        return f"K must be whole groups: {k} % {m.group_size} = {k % m.group_size}"
    return None


def _triton_w4a16(q: Question) -> str | None:
    """mixed_precision/triton_w4a16.py:318."""
    m, sizes = q.method, q.profile.constant("triton_w4a16_group_sizes", [])
    n, k = q.layer.n, q.layer.k
    if m.bits != 4:
        return f"takes 4-bit weights, not {m.bits}-bit ones"
    if q.dtype not in ("F16", "BF16"):
        return f"takes 16-bit activations, this model runs in {q.dtype}"
    if n % 8:
        return f"N per rank must be a multiple of 8: {n} % 8 = {n % 8}"
    if m.group_size not in sizes and m.group_size != q.layer.in_full:
        return f"takes groups of {_sizes(sizes)}, not {m.group_size}"
    group = k if m.group_size == -1 else m.group_size
    return None if k % group == 0 else f"K per rank must be whole groups: {k} % {group} = {k % group}"


_humming = _all(_absent("humming"), _at_least(75))


# float8 with one scale a tensor, a row or a block.
def _per_tensor(q: Question) -> str | None:
    """One scale for the weight and one for the activations."""
    tensor = q.method.weight == "fp8_tensor" and q.method.activation.endswith("tensor")
    return None if tensor else "takes one scale for the weight and one for the activations"


def _not_per_tensor(q: Question) -> str | None:
    return None if _per_tensor(q) is not None else "does not take single scales on both sides"


def _static_tensor(q: Question) -> str | None:
    if q.method.activation != "fp8_static_tensor" or q.method.weight != "fp8_tensor":
        return "takes static scales only, one for the weight and one for the activations"
    return None if q.layer.k % 32 == 0 else f"K per rank must be a multiple of 32: {q.layer.k} % 32 = {q.layer.k % 32}"


def _activation_128(q: Question) -> str | None:
    """Block kernels quantize activations in runs of 128."""
    if q.method.activation == "fp8_dynamic_128":
        return None
    return f"takes activation groups of 128, not {q.method.activation.removeprefix('fp8_dynamic_')}"


def _deep_gemm_block(q: Question) -> str | None:
    """scaled_mm/deep_gemm.py:55, utils/deep_gemm.py:1064."""
    n_multiple, k_multiple = q.profile.constant("deep_gemm_n", 64), q.profile.constant("deep_gemm_k", 128)
    n, k = q.layer.n, q.layer.k
    if not q.has("deep_gemm"):
        return "deep_gemm is not installed"
    if not q.deep_gemm:
        return f"needs compute capability 9.0, 10.x or 12.x, this GPU has {q.version}"
    if q.dtype != "BF16":
        return f"writes bfloat16 only, this model runs in {q.dtype}"
    if (reason := _activation_128(q)) is not None:
        return reason
    if q.deep_gemm_excluded:
        return f"is turned off for model type {q.model_type!r} on {q.version}"
    if n % n_multiple:
        return f"N per rank must be a multiple of {n_multiple}: {n} % {n_multiple} = {n % n_multiple}"
    return (
        None
        if k % k_multiple == 0
        else f"K per rank must be a multiple of {k_multiple}: {k} % {k_multiple} = {k % k_multiple}"
    )


def _whole_128(q: Question) -> str | None:
    for name, size in (("K", q.layer.k), ("N", q.layer.n)):
        if size % 128:
            return f"{name} per rank must be a multiple of 128: {size} % 128 = {size % 128}"
    return None


def _block_128(q: Question) -> str | None:
    return None if q.method.block == (128, 128) else f"takes 128x128 blocks, not {q.method.block}"


def _mxfp8_marlin(q: Question) -> str | None:
    return None if q.layer.k % 32 == 0 else f"K per rank must be a multiple of 32: {q.layer.k} % 32 = {q.layer.k % 32}"


CONDITIONS: dict[str, Condition] = {
    "CutlassW4A8LinearKernel": _all(_exactly(90), _cutlass_w4a8),
    "MacheteLinearKernel": _machete,
    "MarlinLinearKernel": _marlin,
    "ConchLinearKernel": _conch,
    "ExllamaLinearKernel": _exllama,
    "TritonW4A16LinearKernel": _triton_w4a16,
    "HummingLinearKernel": _humming,
    # float8, scales of tensors and rows
    "FlashInferFP8ScaledMMLinearKernel": _all(_absent("flashinfer"), _at_least(100), _per_tensor),
    "CutlassFP8ScaledMMLinearKernel": _at_least(89),
    "B12xTensorFP8ScaledMMLinearKernel": _all(_generation(12), _absent("b12x"), _static_tensor),
    "PerTensorTorchFP8ScaledMMLinearKernel": _all(_at_least(89), _per_tensor),
    "ChannelWiseTorchFP8ScaledMMLinearKernel": _all(_at_least(89), _not_per_tensor),
    "MarlinFP8ScaledMMLinearKernel": _at_least(75),
    "HummingFP8ScaledMMLinearKernel": _humming,
    # float8, blocks
    "FlashInferFp8DeepGEMMDynamicBlockScaledKernel": _all(_absent("flashinfer"), _deep_gemm_block),
    "DeepGemmFp8BlockScaledMMKernel": _deep_gemm_block,
    "CutlassFp8BlockScaledMMKernel": _all(_at_least(90), _activation_128),
    "B12xFp8BlockScaledMMKernel": _all(_generation(12), _absent("b12x"), _activation_128, _block_128, _whole_128),
    "TritonFp8BlockScaledMMKernel": _always,
    "BlockWiseTorchFP8ScaledMMLinearKernel": _all(_exactly(90), _activation_128, _block_128),
    # int8
    "CutlassInt8ScaledMMLinearKernel": _always,
    "TritonInt8ScaledMMLinearKernel": _always,
    "HummingInt8ScaledMMLinearKernel": _humming,
    # NVFP4
    "FlashInferCuteDslNvFp4LinearKernel": _all(_generation(10), _absent("flashinfer")),
    "FlashInferCutlassNvFp4LinearKernel": _all(_at_least(100), _absent("flashinfer")),
    "FlashInferB12xNvFp4LinearKernel": _all(_at_least(120), _absent("flashinfer")),
    "CutlassNvFp4LinearKernel": _at_least(100),
    "FlashInferCuteDslNvFp4W4A16LinearKernel": _all(_generation(10, 12), _absent("flashinfer")),
    "MarlinNvFp4LinearKernel": _at_least(75),
    "FlashInferTrtllmNvFp4LinearKernel": _absent("flashinfer"),
    "FlashInferCudnnNvFp4LinearKernel": _absent("flashinfer"),
    "FbgemmNvFp4LinearKernel": _absent("fbgemm_gpu"),
    "B12xNvFp4LinearKernel": _all(_generation(12), _absent("b12x")),
    "B12xNvFp4W4A16LinearKernel": _all(_generation(12), _absent("b12x")),
    "TorchNvFp4LinearKernel": _generation(10),
    "EmulationNvFp4LinearKernel": _always,
    "HummingNvFp4LinearKernel": _humming,
    # MXFP4
    "FlashInferMxFp4LinearKernel": _all(_at_least(100), _absent("flashinfer")),
    "MarlinMxFp4LinearKernel": _at_least(75),
    "HummingMxFp4LinearKernel": _humming,
    "B12xMxFp4LinearKernel": _all(_generation(12), _absent("b12x")),
    "EmulationMxfp4LinearKernel": _absent("quark"),
    # MXFP8
    "FlashInferCutedslMxfp8LinearKernel": _all(_generation(10), _absent("flashinfer")),
    "FlashInferCutlassMxfp8LinearKernel": _all(_at_least(100), _absent("flashinfer")),
    "MarlinMxfp8LinearKernel": _all(_at_least(75), _mxfp8_marlin),
    "B12xMxfp8LinearKernel": _all(_generation(12), _absent("b12x")),
    "EmulationMxfp8LinearKernel": _always,
    "HummingMxfp8LinearKernel": _humming,
    "FlashInferTrtllmMxfp8LinearKernel": _all(_generation(10), _absent("flashinfer")),
    "TorchMxFp8LinearKernel": _at_least(90),
}


def why_not(kernel: str, question: Question) -> str | None:
    """None where the kernel can run the layer; otherwise why not."""
    condition = CONDITIONS.get(kernel)
    return f"{kernel} is not known here" if condition is None else condition(question)


def _sizes(sizes: list[int]) -> str:
    return ", ".join("one per channel" if size == -1 else str(size) for size in sizes)
