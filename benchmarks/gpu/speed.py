"""Times, GB/s, TFLOP/s and ratios of every kernel on the device, over real layer shapes and rows.

    python -m benchmarks.gpu.speed [--seconds 200]          (writes $OUT/speed.json and $OUT/speed.txt)

Each row: the kernel's provider, its time, bytes (packed weights, activations, results) over time, operations over time,
the share of this run's own copy and matmul ceilings, and the ratio of bf16 `torch.matmul`'s time to it (above 1: it is
faster). Peers that a build lacks are left out and named. Stops where the time is up, and says what was left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu import timing
from mlload.kernels.candidates import CANDIDATES
from mlload.kernels.kernel import Candidate
from mlload.kernels.triton import configs, launch, moe
from mlload.kernels.triton.linear import WeightOnly
from mlload.kernels.triton.packed import Spec, spec_for
from mlload.kernels.triton.w8a8_linear import Fp8, Int8, ScaledMM
from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.tensors import shape
from mlload.quant.spec import Scheme

DEVICE, DTYPE = "cuda", torch.bfloat16
ROWS = (1, 16, 4, 64, 256, 2048)

SYMMETRIC = Scheme("gptq", "gptq", 4, "int", "group", 128)
ZERO_POINTS = Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False)
BYTES = Scheme("compressed_tensors", "pack-quantized", 8, "int", "channel", -1)
FP8_BLOCK = Scheme("fp8", "block", 8, "float", "block", 128, (128, 128), activation="dynamic", activation_bits=8)
FP8_CHANNEL = Scheme("fp8", "channel", 8, "float", "channel", activation="dynamic", activation_bits=8)
INT8 = Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", -1, None, True, False, "dynamic", 8)
MXFP4 = Scheme("compressed_tensors", "mxfp4-pack-quantized", 4, "mx", "group", 32)
NVFP4 = Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16)

# (what, N, K): 8B and 70B Llama layers, whole and a rank's share.
SMALL = (("8B qkv", 6144, 4096), ("8B down tp4", 4096, 3584))
LARGE = (("8B gate_up", 28672, 4096), ("70B down", 8192, 28672), ("70B gate_up tp8", 7168, 8192))


class Case(NamedTuple):
    name: str
    kernel: Any
    scheme: Scheme
    layers: tuple[tuple[str, int, int], ...]


CASES = (
    Case("w4a16 sym", WeightOnly, SYMMETRIC, LARGE + SMALL),
    Case("w4a16 asym", WeightOnly, ZERO_POINTS, LARGE[:2]),
    Case("fp8 block", Fp8, FP8_BLOCK, (LARGE[0], ("DeepSeek-V3 q_b", 24576, 1536), LARGE[2])),
    Case("scaled_mm channel", ScaledMM, FP8_CHANNEL, LARGE[:1]),
    Case("fp8 channel", Fp8, FP8_CHANNEL, LARGE[:1]),
    Case("int8", Int8, INT8, LARGE[:1]),
    Case("w8a16", WeightOnly, BYTES, LARGE[:1]),
    Case("mxfp4", WeightOnly, MXFP4, LARGE[:1]),
    Case("nvfp4", WeightOnly, NVFP4, LARGE[:1]),
)


def random_linear(scheme: Scheme, n: int, k: int) -> dict[str, Tensor]:
    """Stored tensors of the right shapes with random bits, and scales that keep results finite."""
    tensors = {}
    for tensor in stored_spec(scheme, n, k):
        size = shape(tensor, n, k)
        if tensor.role == "shape" or (tensor.role == "g_idx" and tensor.optional):
            continue
        if tensor.role in ("scale", "global_scale"):
            if tensor.dtype == "U8":
                tensors[tensor.suffix] = torch.full(size, 120, dtype=torch.uint8, device=DEVICE)
            else:
                value = torch.rand(size, device=DEVICE) * 0.01 + 0.01
                tensors[tensor.suffix] = value.to(torch.float8_e4m3fn) if tensor.dtype == "F8_E4M3" else value
                if scheme.format in ("gptq", "awq") or scheme.layout == "pack-quantized":
                    tensors[tensor.suffix] = value.to(torch.float16)
        elif tensor.dtype == "I32":
            tensors[tensor.suffix] = torch.randint(-(2**31), 2**31 - 1, size, dtype=torch.int32, device=DEVICE)
        else:
            raw = torch.randint(0, 126, size, dtype=torch.uint8, device=DEVICE)
            names = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8}
            tensors[tensor.suffix] = raw.view(names[tensor.dtype]) if tensor.dtype in names else raw
    return tensors


def nbytes(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def rotated(packed: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    count = timing.copies(nbytes(packed))
    return [packed, *({name: tensor.clone() for name, tensor in packed.items()} for _ in range(count - 1))]


def dense_rows(case: Case, layer: tuple[str, int, int], tune: bool) -> Iterator[dict[str, Any]]:
    what, n, k = layer
    kernel = case.kernel(case.scheme, n, k, DTYPE)
    stored = random_linear(case.scheme, n, k)
    sets = rotated(kernel.prepare(stored))
    floats = [torch.randn(n, k, device=DEVICE).to(DTYPE) for _ in range(timing.copies(2 * n * k))]
    peers = dict(peers_of(case, n, k, stored))
    for m in ROWS:
        x = torch.randn(m, k, device=DEVICE).to(DTYPE)
        row: dict[str, Any] = {"kernel": case.name, "provider": kernel.provider, "layer": what, "n": n, "k": k, "m": m}
        if tune and case.kernel is WeightOnly and m in (1, 16):
            row["config"] = list(tuned(case.scheme, sets, x, n, k))
        row["seconds"] = timing.seconds([partial(kernel.apply, x, p) for p in sets])
        row["bytes"] = nbytes(sets[0]) + 2 * m * (n + k)
        row["operations"] = 2 * m * n * k
        row["bf16"] = timing.seconds([partial(torch.matmul, x, w.T) for w in floats])
        row["peers"] = {}
        for name, call in peers.items():
            try:
                row["peers"][name] = timing.seconds([partial(call, x)] * 4)
            except Exception as error:
                row["peers"][name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        yield row


def tuned(scheme: Scheme, sets: list[dict[str, Tensor]], x: Tensor, n: int, k: int) -> configs.Config:
    spec: Spec = spec_for(scheme, k, sets[0])
    k_tiles = sets[0]["weight"].shape[1]

    def measure(config: configs.Config) -> float:
        try:
            return timing.seconds([partial(launch.matmul, x, p, spec, n, config=config) for p in sets])
        except Exception:
            return float("inf")

    count = launch.multiprocessors(x.device.index or 0)
    return configs.tune(launch.key(x, spec), x.shape[0], n, k_tiles, measure, count)


def peers_of(case: Case, n: int, k: int, stored: dict[str, Tensor]) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Other libraries' kernels for the same layer, on one copy of the weights (their caches help them)."""
    if case.scheme.bits == 4 and case.scheme.kind == "int":
        try:
            codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=DEVICE)
            packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
            scales = torch.rand(k // 128, n, 2, device=DEVICE).to(DTYPE)
            yield "torch int4", lambda x: torch.ops.aten._weight_int4pack_mm(x, packed, 128, scales)
        except Exception as error:
            print(f"torch's int4 is left out: {type(error).__name__}: {str(error).splitlines()[0]}")
        for candidate in CANDIDATES:
            if candidate.provider == "vllm" and candidate.device == "cuda":
                verdict = candidate.can_implement(case.scheme, n, k, "bfloat16", torch.cuda.get_device_capability())
                if verdict.ok:
                    yield f"vllm {candidate.name}", vllm_peer(candidate, case.scheme, n, k, stored)
    if case.scheme is FP8_BLOCK:
        channel = ScaledMM(FP8_CHANNEL, n, k, DTYPE)
        ready_fp8 = channel.prepare(random_linear(FP8_CHANNEL, n, k))
        yield "scaled_mm channel", lambda x: channel.apply(x, ready_fp8)


def vllm_peer(
    candidate: Candidate, scheme: Scheme, n: int, k: int, stored: dict[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    """A failure to prepare is one of the call, so that the others are still measured."""
    module, _, name = candidate.where.partition(":")
    kernel = getattr(import_module(module), name)(scheme, n, k, DTYPE)
    ready: list[dict[str, Tensor]] = []

    def call(x: Tensor) -> Tensor:
        if not ready:
            ready.append(kernel.prepare(stored))
        return torch.as_tensor(kernel.apply(x, ready[0]))

    return call


# (what, experts, hidden, intermediate, top_k)
MOE_TOKENS = (1, 16, 64, 1024)
MOE = (("Qwen3-30B-A3B", 128, 2048, 768, 8), ("DeepSeek-V3 of 8 ranks", 32, 7168, 2048, 8))


def moe_rows(what: str, experts: int, hidden: int, inner: int, top_k: int) -> Iterator[dict[str, Any]]:
    for name, scheme in (("w4a16", SYMMETRIC), ("fp8 block", FP8_BLOCK), ("mxfp4", MXFP4)):
        gate_up, down = (
            moe.stack(scheme, [random_linear(scheme, n, k) for _ in range(experts)], n, k, DTYPE)
            for n, k in ((2 * inner, hidden), (hidden, inner))
        )
        each = (nbytes(gate_up.tensors) + nbytes(down.tensors)) / experts
        for tokens in MOE_TOKENS:
            choices = [torch.rand(tokens, experts, device=DEVICE).topk(top_k).indices for _ in range(4)]
            shares = torch.rand(tokens, top_k, device=DEVICE)
            x = torch.randn(tokens, hidden, device=DEVICE).to(DTYPE)
            touched = sum(ids.unique().numel() for ids in choices) / len(choices)
            elapsed = timing.seconds([partial(moe.fused_moe, x, gate_up, down, shares, ids) for ids in choices])
            yield {
                "kernel": f"moe {name}",
                "provider": "mlload",
                "layer": what,
                "m": tokens,
                "seconds": elapsed,
                "experts": touched,
                "bytes": int(touched * each),
                "operations": 2 * tokens * top_k * 3 * hidden * inner,
            }


def text(row: dict[str, Any], copy: float, rate: float) -> str:
    speed, operations = row["bytes"] / row["seconds"], row["operations"] / row["seconds"]
    line = (
        f"{row['kernel']:18} {row['layer']:22} M {row['m']:5} {row['seconds'] * 1e6:9.1f} us {speed / 1e9:7.0f} GB/s "
        f"{speed / copy:5.0%} {operations / 1e12:6.1f} TFLOP/s {operations / rate:5.0%}"
    )
    if "bf16" in row:
        line += f"  bf16 {row['bf16'] / row['seconds']:5.2f}x"
    for name, value in row.get("peers", {}).items():
        line += f"  {name} {value / row['seconds']:5.2f}x" if isinstance(value, float) else f"  {name} -"
    return line


def keep(versions: dict[str, Any], rows: list[dict[str, Any]], lines: list[str], left: list[str]) -> None:
    """What is known so far. left: what is not measured."""
    out = Path(os.environ.get("OUT", "."))
    (out / "speed.json").write_text(json.dumps({**versions, "rows": rows, "left_out": left}, indent=1) + "\n")
    last = ["left out for time: " + ", ".join(left)] if left else []
    (out / "speed.txt").write_text("\n".join([*lines, *last]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--no-tune", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    stop = time.time() + arguments.seconds
    copy, rate = timing.copy_bandwidth(), timing.matmul_rate()
    gpu = torch.cuda.get_device_name()
    head = f"{gpu}, torch {torch.__version__}: copy {copy / 1e9:.0f} GB/s, bf16 {rate / 1e12:.0f} TFLOP/s"
    print(head, flush=True)
    versions = {"gpu": gpu, "torch": torch.__version__, "copy": copy, "matmul": rate}
    rows: list[dict[str, Any]] = []
    lines, left = [head], list[str]()
    work: list[tuple[str, Callable[[], Iterator[dict[str, Any]]]]] = []
    for case in CASES:
        for i, layer in enumerate(case.layers):
            tune = i < 2 and case.name.startswith("w4a16") and not arguments.no_tune
            work.append((f"{case.name} {layer[0]}", partial(dense_rows, case, layer, tune)))
    routed = [(f"moe {model[0]}", partial(moe_rows, *model)) for model in MOE]
    # The MoE rows come early: time may run out.
    work = [*work[:4], *routed, *work[4:]]
    names = [name for name, _ in work]
    for at, (name, make) in enumerate(work):
        # Before each: it may be cut off from outside.
        keep(versions, rows, lines, [*left, *names[at:]])
        if time.time() > stop:
            left.append(name)
            continue
        try:
            for row in make():
                rows.append(row)
                lines.append(text(row, copy, rate))
                print(lines[-1], flush=True)
                if time.time() > stop:
                    left.append(f"rest of {name}")
                    break
        except Exception as error:
            lines.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}")
            print(lines[-1], flush=True)
        torch.cuda.empty_cache()
    keep(versions, rows, lines, left)
    if left:
        print("left out for time: " + ", ".join(left))
    out = Path(os.environ.get("OUT", "."))
    tuned_file = configs.user_file()
    if tuned_file.exists():
        (out / "measured.json").write_text(tuned_file.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
