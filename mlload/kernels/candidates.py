"""The one ordered table of what mlload's own executor can run a linear with. No torch.

Asked from the top: the engine's compiled kernels (provider vllm), then torch's, then ours.
"""

from __future__ import annotations

from mlload.kernels import conditions, gpu_conditions, vllm_conditions
from mlload.kernels.kernel import Candidate

CANDIDATES: tuple[Candidate, ...] = (
    Candidate("int4pack", "torch", "cpu", conditions.int4pack, "mlload.kernels.cpu.int4pack:Int4Pack"),
    Candidate("int8pack", "torch", "cpu", conditions.int8pack, "mlload.kernels.cpu.int8pack:Int8Pack"),
    Candidate("int8_dynamic", "torch", "cpu", conditions.int8_dynamic_cpu, "mlload.kernels.cpu.int8:Int8Dynamic"),
    Candidate("fp8_emulated", "torch", "cpu", conditions.fp8_cpu, "mlload.kernels.cpu.fp8:Fp8Emulated"),
    Candidate("dequantized", "torch", "cpu", conditions.readable, "mlload.kernels.cpu.dequantized:Dequantized"),
    Candidate("machete", "vllm", "cuda", vllm_conditions.machete, "mlload.kernels.vllm_ops.machete:Machete"),
    Candidate("marlin", "vllm", "cuda", gpu_conditions.vllm_marlin, "mlload.kernels.vllm_ops.marlin:Marlin"),
    Candidate("cutlass_fp8", "vllm", "cuda", gpu_conditions.vllm_cutlass_fp8, "mlload.kernels.vllm_ops.fp8:CutlassFp8"),
    Candidate("scaled_mm", "torch", "cuda", gpu_conditions.scaled_mm, "mlload.kernels.triton.w8a8_linear:ScaledMM"),
    Candidate("fp8", "mlload", "cuda", gpu_conditions.fp8, "mlload.kernels.triton.w8a8_linear:Fp8"),
    Candidate("int8", "mlload", "cuda", gpu_conditions.int8, "mlload.kernels.triton.w8a8_linear:Int8"),
    Candidate("weight_only", "mlload", "cuda", gpu_conditions.weight_only, "mlload.kernels.triton.linear:WeightOnly"),
    Candidate("dequantized", "torch", "cuda", conditions.readable, "mlload.kernels.cpu.dequantized:Dequantized"),
)
