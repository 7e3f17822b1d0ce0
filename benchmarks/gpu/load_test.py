"""`mlload load-test` on dummy checkpoints of several GB: bf16, AWQ and fp8 of one architecture.

    python -m benchmarks.gpu.load_test [--layers 8] [--device cuda]          (writes $OUT/load_test.json)

The files hold random bits under the right names and shapes, which is what memory and speed depend on: one draw of 16
million values again and again, so that writing takes seconds. What the command reports (decode tokens a second,
predicted and measured memory) is kept as it is, and a line of it is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mlload.quant.formats import spec as stored_spec
from mlload.quant.formats.tensors import shape
from mlload.quant.spec import Scheme

AWQ = Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False)
FP8 = Scheme("fp8", "block", 8, "float", "block", 128, (128, 128), activation="dynamic", activation_bits=8)
DECLARED: dict[str, dict[str, Any]] = {
    "bf16": {},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
}
# What a load test takes when nothing is said would be most of the time of the whole script.
FLAGS = ("--batch", "1,16", "--prompt-len", "128", "--decode", "64")
MOST = 60
SCHEMES = {"bf16": None, "awq": AWQ, "fp8": FP8}


def write(folder: Path, kind: str, layers: int, hidden: int = 4096, inner: int = 14336, vocab: int = 32000) -> int:
    """A Llama checkpoint of random bits; returns its bytes."""
    heads = hidden // 128
    kv = max(1, heads // 4)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 128,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float16" if kind == "awq" else "bfloat16",
    }
    if DECLARED[kind]:
        config["quantization_config"] = DECLARED[kind]
    dtype = torch.float16 if kind == "awq" else torch.bfloat16
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    linears = {
        "self_attn.q_proj": (heads * 128, hidden),
        "self_attn.k_proj": (kv * 128, hidden),
        "self_attn.v_proj": (kv * 128, hidden),
        "self_attn.o_proj": (hidden, heads * 128),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    index: dict[str, str] = {}
    total = 0
    ends = {
        "model.embed_tokens.weight": torch.randn(vocab, hidden).to(dtype),
        "lm_head.weight": torch.randn(vocab, hidden).to(dtype),
        "model.norm.weight": torch.ones(hidden, dtype=dtype),
    }
    for i in range(layers + 1):
        tensors: dict[str, Tensor] = ends if i == layers else {}
        if i < layers:
            prefix = f"model.layers.{i}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{prefix}{norm}.weight"] = torch.ones(hidden, dtype=dtype)
            for name, (n, k) in linears.items():
                for suffix, tensor in random_linear(SCHEMES[kind], n, k, dtype).items():
                    tensors[f"{prefix}{name}.{suffix}"] = tensor
        file = f"model-{i + 1:05}-of-{layers + 1:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, file))
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    whole = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(whole))
    return total


def random_linear(scheme: Scheme | None, n: int, k: int, dtype: torch.dtype) -> dict[str, Tensor]:
    if scheme is None:
        return {"weight": drawn("normal", (n, k)).to(dtype)}
    tensors = {}
    for tensor in stored_spec(scheme, n, k):
        size = shape(tensor, n, k)
        if tensor.role == "scale":
            stored = torch.float16 if scheme.format == "awq" else torch.float32
            tensors[tensor.suffix] = (torch.rand(size) * 0.002 + 0.001).to(stored)
        elif tensor.dtype == "I32":
            tensors[tensor.suffix] = drawn("words", size)
        else:
            tensors[tensor.suffix] = drawn("e4m3", size).view(torch.float8_e4m3fn)
    return tensors


def drawn(kind: str, size: tuple[int, ...]) -> Tensor:
    pool, count = _pool(kind), prod(size)
    return pool.repeat(-(-count // len(pool)))[:count].reshape(size)


@cache
def _pool(kind: str) -> Tensor:
    """Values of weights, of packed words, or codes of e4m3 with both signs and no NaN."""
    count = 1 << 24
    if kind == "normal":
        return torch.randn(count) * 0.02
    if kind == "words":
        return torch.randint(-(2**31), 2**31 - 1, (count,), dtype=torch.int32)
    size, sign = torch.randint(0, 127, (count,), dtype=torch.uint8), torch.randint(0, 2, (count,), dtype=torch.uint8)
    return size | (sign << 7)


def line(kind: str, result: dict[str, Any]) -> str:
    """Of what was found, what a person looks at first."""
    report = result["report"]
    if result["exit_code"] is None or not isinstance(report, dict) or "stderr" in report:
        tail = report if isinstance(report, str) else str(report.get("stderr", ""))[-500:]
        return f"{kind}: exit code {result['exit_code']}, {tail}"
    rows = report.get("sweep") or []
    pace = ", ".join(f"{row['decode_tokens_per_s']:.0f} tokens/s at {row['batch']}" for row in rows)
    first = report["ranks"][0]
    weights = f"weights {first['weight_bytes_measured']} bytes of {first['weight_bytes_predicted']} predicted"
    return f"{kind}: exit code {result['exit_code']}, {weights}, decode {pace or 'not measured'}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="layers 256 wide, to try the script itself")
    arguments = parser.parse_args()
    sizes = {"hidden": 256, "inner": 512, "vocab": 64} if arguments.small else {}
    results: dict[str, Any] = {}
    out = Path(os.environ.get("OUT", ".")) / "load_test.json"
    for kind in DECLARED:
        folder = Path(tempfile.mkdtemp(prefix=f"mlload-{kind}-"))
        try:
            size = write(folder, kind, arguments.layers, **sizes)
            command = [sys.executable, "-m", "mlload", "load-test", str(folder), "--format", "json", *FLAGS]
            command += ["--device", arguments.device]
            done = subprocess.run(command, capture_output=True, text=True, timeout=MOST)
            try:
                report: Any = json.loads(done.stdout)
            except ValueError:
                report = {"stdout": done.stdout[-2000:], "stderr": done.stderr[-2000:]}
            results[kind] = {"bytes": size, "exit_code": done.returncode, "report": report}
        except subprocess.TimeoutExpired:
            results[kind] = {"exit_code": None, "report": f"more than {MOST} s"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(line(kind, results[kind]), flush=True)
        # After each: the next may be cut off.
        out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(result["exit_code"] == 0 for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
