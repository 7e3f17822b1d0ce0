"""Can this kernel run this dense layer on a CPU? The conditions of vLLM's linear kernels for CPUs, by class name.

Read in vLLM 0.32.0's and 0.33.0's model_executor/kernels/linear (scaled_mm/cpu.py, scaled_mm/zentorch.py,
mixed_precision/cpu.py, mixed_precision/dynamic_4bit.py). What the machine has is in the profile's assumed extras:
"amx" (tiles), "amx_fp8", "zentorch".
"""

from __future__ import annotations

from mlload.kernels.choice.question import Question

FP8_DTYPES = ("BF16", "F32")


def why_not(kernel: str, q: Question) -> str | None:
    """None where the kernel can run the layer; otherwise why not."""
    condition = CONDITIONS.get(kernel)
    return f"{kernel} is not known here" if condition is None else condition(q)


def _n_of_32(q: Question) -> str | None:
    return None if q.layer.n % 32 == 0 else f"N per rank must be a multiple of 32: {q.layer.n} % 32 = {q.layer.n % 32}"


def _fp8_native(q: Question) -> str | None:
    if not (q.has("amx") and q.has("amx_fp8")):
        return "needs a CPU with AMX for float8 (Diamond Rapids)"
    return _n_of_32(q)


def _fp8_per_tensor(q: Question) -> str | None:
    if not q.has("amx"):
        return "needs a CPU with AMX tiles"
    if q.method.weight != "fp8_tensor" or not q.method.activation.endswith("tensor"):
        return "takes one scale for the weight and one for the activations"
    if q.dtype not in FP8_DTYPES:
        return f"writes bfloat16 and float32 only, this model runs in {q.dtype}"
    return _n_of_32(q)


def _fp8_per_channel(q: Question) -> str | None:
    if not q.has("amx"):
        return "needs a CPU with AMX tiles"
    if q.method.weight != "fp8_channel":
        return "takes one scale a channel"
    return _n_of_32(q) if q.dtype == "BF16" else f"writes bfloat16 only, this model runs in {q.dtype}"


def _torch_per_tensor(q: Question) -> str | None:
    """scaled_mm/pytorch.py: any CPU with oneDNN."""
    tensor = q.method.weight == "fp8_tensor" and q.method.activation.endswith("tensor")
    return None if tensor else "takes one scale for the weight and one for the activations"


def _torch_per_channel(q: Question) -> str | None:
    return None if _torch_per_tensor(q) is not None else "does not take single scales on both sides"


def _fp8_block(q: Question) -> str | None:
    if not q.has("amx"):
        return "needs a CPU with AMX tiles"
    rows, columns = q.method.block or (0, 0)
    if columns != 128 or rows <= 0 or rows % 32:
        return f"takes blocks of 128 along K and a multiple of 32 along N, not {rows}x{columns}"
    return None if q.dtype in FP8_DTYPES else f"writes bfloat16 and float32 only, this model runs in {q.dtype}"


def _fp8_block_native(q: Question) -> str | None:
    return _fp8_native(q) or _fp8_block(q)


def _zentorch(q: Question) -> str | None:
    return None if q.has("zentorch") else "needs an AMD Zen CPU with zentorch installed"


def _always(q: Question) -> str | None:
    return None


def _signed_4bit(q: Question) -> str | None:
    return "takes signed 4-bit weights with 8-bit activations, this layer has 16-bit ones"


def _wna16(q: Question) -> str | None:
    m, n, k = q.method, q.layer.n, q.layer.k
    if m.bits != 4:
        return f"takes 4-bit weights, not {m.bits}-bit ones"
    if m.group_size != -1 and m.group_size % 2:
        return f"takes groups of a multiple of 2, not {m.group_size}"
    for name, size in (("K", k), ("N", n)):
        if size % 32:
            return f"{name} per rank must be a multiple of 32: {size} % 32 = {size % 32}"
    return None


CONDITIONS = {
    "CPUFP8W8A8ScaledMMLinearKernel": _fp8_native,
    "CPUFp8PerTensorScaledMMLinearKernel": _fp8_per_tensor,
    "CPUFp8ChannelWiseScaledMMLinearKernel": _fp8_per_channel,
    "PerTensorTorchFP8ScaledMMLinearKernel": _torch_per_tensor,
    "ChannelWiseTorchFP8ScaledMMLinearKernel": _torch_per_channel,
    "CPUFp8W8A8BlockScaledMMKernel": _fp8_block_native,
    "CPUFp8BlockScaledMMKernel": _fp8_block,
    "ZentorchInt8ScaledMMLinearKernel": _zentorch,
    "CPUInt8ScaledMMLinearKernel": _always,
    "Dynamic4bitLinearKernel": _signed_4bit,
    "ZentorchWNA16LinearKernel": _zentorch,
    "CPUWNA16LinearKernel": _wna16,
}
