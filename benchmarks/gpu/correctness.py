"""Every kernel on the device against float64, over shapes, group sizes, dtypes and rows.

    python -m benchmarks.gpu.correctness [--jobs 8]          (writes $OUT/correctness.json; exit code 1: one is wrong)

Nearly all of its time is compilation, of some 200 variants of a second or two: the checks are dealt out to processes.
Bounds are those of the interpreter tests with two units a rounding in place of one, because tensor cores cut off what
they add; fp8 on Hopper keeps 14 bits of a sum. What is compared twice must have the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlload.kernels.cpu.fp8 import quantize_groups
from mlload.kernels.triton import configs, kv_cache, launch, moe
from mlload.kernels.triton.packed import pack_linear, spec_for
from mlload.kernels.triton.quantize import quantize
from mlload.kernels.triton.w8a8_linear import Fp8, Int8, ScaledMM
from mlload.quant.spec import Scheme
from tests.kernels import linears

UNIT = 2.0**-23
HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DEVICE = "cuda"
ROWS = (1, 5, 16, 33, 64, 200)


def to_device(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}


def stored(scheme: Scheme, n: int, k: int) -> linears.Linear:
    if scheme.kind == "int":
        made = linears.integer(scheme, n, k)
    else:
        made = (linears.fp8 if scheme.bits == 8 else linears.fp4)(scheme, n, k)
    return linears.Linear(to_device(made.tensors), made.weight.to(DEVICE))


def within(y: Tensor, exact: Tensor, allowed: Tensor) -> None:
    error = (y.double() - exact).abs()
    worst = (error / allowed.clamp(min=1e-300)).nan_to_num(nan=torch.inf).max().item()
    if not worst <= 1:
        raise AssertionError(f"error is {worst:.2f} times the bound")


def weight_only(scheme: Scheme, n: int, k: int, dtype: torch.dtype) -> None:
    linear = stored(scheme, n, k)
    packed = pack_linear(scheme, linear.tensors, n, k)
    spec = spec_for(scheme, k, packed)
    for m in ROWS:
        x = torch.randn(m, k, device=DEVICE).to(dtype)
        rows = x if "order" not in packed else x[:, packed["order"]]
        for splits in (1, 4):
            config = configs.choose(m, n, packed["weight"].shape[1])._replace(splits=splits)
            y = launch.matmul(rows, packed, spec, n, config=config)
            exact, sizes = x.double() @ linear.weight.T, x.double().abs() @ linear.weight.abs().T
            within(y, exact, (k + 4) * UNIT * sizes + HALF[dtype] * 1.001 * exact.abs() + 1e-30)
            if not torch.equal(y, launch.matmul(rows, packed, spec, n, config=config)):
                raise AssertionError("two runs differ")
    wide = len(packed["order"]) if "order" in packed else k
    dense = launch.dequantize(packed, spec, n, wide, dtype)
    weight = linear.weight[:, packed["order"]] if "order" in packed and wide == k else linear.weight
    if wide == k:
        within(dense, weight, HALF[dtype] * 1.001 * weight.abs() + 2.0**-24)


def eight_bits(cls: Any, scheme: Scheme, n: int, k: int) -> None:
    if scheme is linears.INT8:
        made = linears.int8(n, k)
        linear = linears.Linear(to_device(made.tensors), made.weight.to(DEVICE))
    else:
        linear = stored(scheme, n, k)
    kernel = cls(scheme, n, k, torch.bfloat16)
    packed = kernel.prepare(linear.tensors)
    for m in ROWS:
        x = torch.randn(m, k, device=DEVICE).to(torch.bfloat16)
        y = kernel.apply(x, packed)
        if cls is Int8:
            q, scale = quantize(x, k, int8=True)
            exact = (q.double() * scale.double()) @ linear.weight.T
            within(y, exact, (HALF[torch.bfloat16] + 4 * UNIT) * exact.abs() + 1e-30)
            continue
        q, scale = quantize(x, kernel.group, static=packed.get("input_scale"))
        rows = scale.expand(m, 1) if scale.dim() == 1 else scale
        wide = q.double() * rows.double().repeat_interleave(kernel.group, 1)[:, :k]
        exact, sizes = wide @ linear.weight.T, wide.abs() @ linear.weight.abs().T
        # 14 bits kept, four additions before each promotion.
        within(y, exact, 4 * 2.0**-13 * sizes + HALF[torch.bfloat16] * 1.001 * exact.abs())


def quantizes() -> None:
    """Codes may differ by one where a quotient lies on an edge; almost all are the same."""
    for k, group in ((4096, 128), (1000, 128), (4096, 4096), (7168, 7168)):
        x = torch.randn(37, k, device=DEVICE).to(torch.bfloat16)
        q, scale = quantize(x, group)
        wanted, steps = quantize_groups(x, group)
        torch.testing.assert_close(scale, steps, rtol=2**-22, atol=0)
        different = (q.float() != wanted.float()).float().mean().item()
        if different > 1e-3:
            raise AssertionError(f"{different:.2%} of the codes differ")


def kv() -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(64, 8, 128).to(DEVICE)
    one = torch.ones(1, device=DEVICE)
    for native in (True, False):
        if native and torch.cuda.get_device_capability() < (8, 9):
            continue
        caches = [torch.zeros(16, 4, 8, 128, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
        kv_cache.store(x, x, *caches, torch.arange(64, device=DEVICE), one, one, native=native)
        found, wanted = caches[0].reshape(-1).view(torch.float8_e4m3fn).float(), kv_cache.reference(x, one).reshape(-1)
        if not torch.equal(found.nan_to_num(), wanted.float().nan_to_num()):
            raise AssertionError(f"native={native}: stored codes differ")


def experts(scheme: Scheme | None, activation: str) -> None:
    """Room for the 16-bit values between the parts: 1 % of the largest output (fp8: 10 %)."""
    count, h, inner, top_k = 16, 512, 256, 4
    dtype = torch.bfloat16
    bias = activation == "swiglu_oai"

    def stacked(n: int, k: int) -> moe.Experts:
        parts = []
        for i in range(count):
            if scheme is None:
                tensors = {"weight": torch.randn(n, k) * 0.05}
            elif scheme is linears.INT8:
                tensors = linears.int8(n, k, seed=i).tensors
            elif scheme.kind == "int":
                tensors = linears.integer(scheme, n, k, seed=i).tensors
            else:
                tensors = (linears.fp8 if scheme.bits == 8 else linears.fp4)(scheme, n, k, seed=i).tensors
                if scheme.kind == "mx":
                    tensors["weight_scale"] = tensors["weight_scale"] - 6
                if scheme.bits == 8:
                    scale = "weight_scale_inv" if scheme.block else "weight_scale"
                    tensors[scale] = tensors[scale] * 0.1
            if bias:
                tensors["bias"] = torch.randn(n) * 0.1
            parts.append(to_device(tensors))
        return moe.stack(scheme, parts, n, k, dtype)

    gate_up, down = stacked(2 * inner, h), stacked(h, inner)
    for tokens in (1, 16, 130):
        ids = torch.stack([torch.randperm(count)[:top_k] for _ in range(tokens)]).to(DEVICE)
        shares = torch.rand(tokens, top_k, device=DEVICE)
        x = (torch.randn(tokens, h, device=DEVICE) * 0.5).to(dtype)
        y = moe.fused_moe(x, gate_up, down, shares, ids, activation=activation)
        on_host = [
            part._replace(tensors={name: t.cpu() for name, t in part.tensors.items()}) for part in (gate_up, down)
        ]
        exact = moe.reference(x.cpu(), *on_host, shares.cpu(), ids.cpu(), activation=activation).to(DEVICE)
        room = (0.1 if scheme is not None and scheme.bits == 8 else 0.01) * exact.abs().max()
        within(y, exact, torch.full_like(exact, room.item()))
        if not torch.equal(y, moe.fused_moe(x, gate_up, down, shares, ids, activation=activation)):
            raise AssertionError("two runs differ")


def checks() -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for dtype, short in ((torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        for group in (32, 64, 128, -1):
            for fmt, symmetric in (("gptq", True), ("awq", False)):
                scheme = linears.grouped(fmt, group=group, symmetric=symmetric)
                name = f"w4a16 {fmt} g{group} {short}"
                found[name] = lambda s=scheme, d=dtype: weight_only(s, 520, 1024, d)
        ordered = linears.grouped("gptq", group=64, symmetric=False, act_order=True)
        found[f"w4a16 act-order {short}"] = lambda d=dtype, s=ordered: weight_only(s, 512, 1024, d)
        for bits8 in (
            linears.grouped("gptq", bits=8, group=128, symmetric=False),
            linears.grouped("compressed_tensors", bits=8, group=-1),
        ):
            found[f"w8a16 {bits8.format} {short}"] = lambda d=dtype, s=bits8: weight_only(s, 520, 1024, d)
        for other in (linears.FP8_BLOCK, linears.FP8_CHANNEL, linears.MXFP4, linears.NVFP4):
            found[f"weights {other.layout} {short}"] = lambda d=dtype, s=other: weight_only(s, 520, 1024, d)
    ragged = linears.grouped("gptq", group=32, symmetric=False)
    found["w4a16 ragged K"] = lambda: weight_only(ragged, 264, 1000, torch.bfloat16)
    if torch.cuda.get_device_capability() >= (8, 9):
        found["fp8 block"] = lambda: eight_bits(Fp8, linears.FP8_BLOCK, 520, 1024)
        found["fp8 channel"] = lambda: eight_bits(Fp8, linears.FP8_CHANNEL, 520, 1024)
        found["fp8 static"] = lambda: eight_bits(Fp8, linears.FP8_STATIC, 520, 1024)
        found["quantize"] = quantizes
    if torch.cuda.get_device_capability() >= (9, 0):
        found["scaled_mm channel"] = lambda: eight_bits(ScaledMM, linears.FP8_CHANNEL, 512, 1024)
    found["int8"] = lambda: eight_bits(Int8, linears.INT8, 520, 1024)
    found["kv_cache"] = kv
    schemes = {
        "bf16": None,
        "w4a16": linears.grouped("gptq"),
        "w4a16 asym": linears.grouped("awq", symmetric=False),
        "w8a16": linears.grouped("gptq", bits=8),
        "mxfp4": linears.MXFP4,
        "nvfp4": linears.NVFP4,
        "fp8": linears.FP8_BLOCK,
        "fp8 channel": linears.FP8_CHANNEL,
        "int8": linears.INT8,
    }
    for name, scheme_or_none in schemes.items():
        if name.startswith("fp8") and torch.cuda.get_device_capability() < (8, 9):
            continue
        for activation in ("silu", "swiglu_oai"):
            found[f"moe {name} {activation}"] = lambda s=scheme_or_none, a=activation: experts(s, a)
    return found


def run(part: int = 0, parts: int = 1, out: Path | None = None) -> dict[str, dict[str, Any]]:
    """Every parts-th check, of those from `part` on. out: a file that has the results so far, whatever follows."""
    torch.manual_seed(0)
    results: dict[str, dict[str, Any]] = {}
    for name, check in list(checks().items())[part::parts]:
        started = time.time()
        try:
            check()
            outcome = "ok"
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
            print("".join(traceback.format_exception(error)[-3:]), file=sys.stderr)
        results[name] = {"outcome": outcome, "seconds": round(time.time() - started, 2)}
        print(f"{name:32} {results[name]['seconds']:6.2f} s  {outcome}", flush=True)
        if out is not None:
            whole = out.with_suffix(".new")
            whole.write_text(json.dumps(results))
            whole.replace(out)
    return results


def dealt_out(jobs: int, limit: float) -> dict[str, dict[str, Any]]:
    """The same by so many processes; what one of them did not finish is wrong."""
    out = Path(os.environ.get("OUT", "."))
    files = [out / f"correctness.{part}.json" for part in range(jobs)]
    command = [sys.executable, "-m", "benchmarks.gpu.correctness", "--part"]
    stop = time.time() + limit
    workers = [subprocess.Popen([*command, f"{part}/{jobs}"]) for part in range(jobs)]
    for worker in workers:
        try:
            worker.wait(max(1.0, stop - time.time()))
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.exists():
            found.update(json.loads(file.read_text()))
            file.unlink()
    return {name: found.get(name, {"outcome": "not finished", "seconds": None}) for name in checks()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--seconds", type=float, default=140, help="after which the processes are stopped")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("OUT", "."))
    if arguments.part:
        part, _, parts = arguments.part.partition("/")
        run(int(part), int(parts), folder / f"correctness.{part}.json")
        return 0
    results = dealt_out(arguments.jobs, arguments.seconds) if arguments.jobs > 1 else run()
    out = folder / "correctness.json"
    versions = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    out.write_text(json.dumps({**versions, "checks": results}, indent=1) + "\n")
    wrong = [name for name, result in results.items() if result["outcome"] != "ok"]
    print(f"{len(results) - len(wrong)} of {len(results)} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
