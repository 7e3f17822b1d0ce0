"""The one ordered table of what mlload's own executor can run a linear with. No torch.

Asked from the top: the engine's compiled kernels (provider vllm), then torch's, then ours.
"""

from __future__ import annotations

from mlload.kernels import conditions
from mlload.kernels.kernel import Candidate

CANDIDATES: tuple[Candidate, ...] = (
    Candidate("int4pack", "torch", "cpu", conditions.int4pack, "mlload.kernels.cpu.int4pack:Int4Pack"),
    Candidate("int8pack", "torch", "cpu", conditions.int8pack, "mlload.kernels.cpu.int8pack:Int8Pack"),
    Candidate("int8_dynamic", "torch", "cpu", conditions.int8_dynamic_cpu, "mlload.kernels.cpu.int8:Int8Dynamic"),
    Candidate("fp8_emulated", "torch", "cpu", conditions.fp8_cpu, "mlload.kernels.cpu.fp8:Fp8Emulated"),
    Candidate("dequantized", "torch", "cpu", conditions.readable, "mlload.kernels.cpu.dequantized:Dequantized"),
    Candidate("dequantized", "torch", "cuda", conditions.readable, "mlload.kernels.cpu.dequantized:Dequantized"),
)
