"""Peak memory of AWQ on a model of more than 2 billion random parameters, and a tool that holds the model whole.

    python -m benchmarks.quantize_memory [--layers 21] [--through 21] [--peer PYTHON] [--folder DIR] [--keep]

A Llama of width 2560 (MLP 8704, 93 million parameters a layer) in bf16 is written; 21 layers are 2.03 billion
parameters with its table. Then

    mlload    mlload quantize --method awq, 8 samples of 128 tokens; the peak of RssAnon + RssShmem, sampled from /proc
              every 20 ms, against one layer in float32 + 1.5 GiB
    limited   the same under RLIMIT_DATA of that bound
    llm-compressor  its AWQ of the same folder with the python of --peer (`python -m tools.peers`), stopped after its
              third layer; mlload's peak is to be a quarter of its own or less
    whole     transformers' from_pretrained of the same folder (bf16, its own dtype) under the same limit

--through N stops after N layers (the peak of a layer is that of the next): the run is ended with SIGKILL once its
record says so, and its folder is gone with the scratch folder.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.shard import RESULTS, held
from mlload.demo.checkpoint import VOCAB
from mlload.demo.tokenizer import tokenizer_json

HIDDEN, MLP, HEADS, VOCABULARY = 2560, 8704, 20, 32000
SAMPLES, LENGTH = 8, 128
ROOM = 3 * 2**29  # 1.5 GiB
MIB = 2**20
WHOLE = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
# What a tool that holds the model does next: every weight is read.
print(sum(float(p.float().abs().amax()) for p in model.parameters()) > 0)
"""


class Outcome(NamedTuple):
    """code: of the process, None where it was stopped on purpose; seconds; peak in bytes; said: its last line"""

    code: int | None
    seconds: float
    peak: int
    said: str


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        root = f"model.layers.{layer}"
        found |= {f"{root}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        found |= {f"{root}.mlp.{name}_proj.weight": (MLP, HIDDEN) for name in ("gate", "up")}
        found[f"{root}.mlp.down_proj.weight"] = (HIDDEN, MLP)
        found |= {f"{root}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    return found | {"model.norm.weight": (HIDDEN,)}


def write_model(folder: Path, layers: int) -> int:
    """Gives the number of parameters. A layer a file, so that nothing here holds more than one either."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    # One run of noise, begun elsewhere for each weight: drawing billions of numbers would take longer than the rest.
    noise = torch.randn(1 << 25, generator=torch.Generator().manual_seed(0)).mul_(HIDDEN**-0.5).bfloat16()
    begin = 0
    files: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes(layers).items():
        part = name.split(".")[2] if ".layers." in name else "outside"
        files.setdefault(f"model-{part}.safetensors", {})[name] = shape
    weight_map, total = {}, 0
    for file, named in files.items():
        tensors = {}
        for name, shape in named.items():
            count, begin = math.prod(shape), (begin + 7919 * 1009) % len(noise)
            repeats = -(-(begin + count) // len(noise))
            values = noise.repeat(repeats)[begin : begin + count].reshape(shape)
            tensors[name] = torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else values.clone()
            weight_map[name] = file
            total += values.numel()
        save_file(tensors, folder / file, metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": MLP,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "rope_theta": 10000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(VOCAB)))
    index = {"metadata": {"total_size": 2 * total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def watched(
    command: list[str], log: Path, *, limit: int | None = None, enough: Callable[[], bool] | None = None
) -> Outcome:
    """limit: RLIMIT_DATA; enough: ends it, once true"""
    began, peak, code = time.monotonic(), 0.0, None
    lower = None if limit is None else (lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
    with open(log, "w") as handle:
        child = subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT, preexec_fn=lower)
        while child.poll() is None:
            peak = max(peak, held(child.pid))
            if enough is not None and enough():
                child.send_signal(signal.SIGKILL)
                child.wait()
                break
            time.sleep(0.02)
        else:
            code = child.returncode
    lines = log.read_text(errors="replace").strip().splitlines()
    return Outcome(code, time.monotonic() - began, int(peak * MIB), lines[-1][:160] if lines else "")


def peer(python: str, folder: Path, scratch: Path) -> Outcome:
    """llm-compressor's AWQ until it begins its fourth layer."""
    samples, log = scratch / "samples.json", scratch / "peer.log"
    ids = [[(7 * at + 31 * sample) % VOCAB for at in range(LENGTH)] for sample in range(SAMPLES)]
    samples.write_text(json.dumps(ids))
    tool = Path(__file__).with_name("quantize_peers_tool.py")
    command = [python, str(tool), "llmcompressor", "awq-asym", str(folder), str(scratch / "peer"), str(samples), "128"]
    return watched(command, log, enough=lambda: "(4/" in log.read_text(errors="replace"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=21)
    parser.add_argument("--through", type=int, help="stop after so many layers")
    parser.add_argument("--peer", help="python of an environment with llm-compressor")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    asked = parser.parse_args()
    layer = 4 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP + 2 * HIDDEN)
    bound = layer + ROOM
    through = asked.through if asked.through is not None and asked.through < asked.layers else None
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        folder, out = Path(scratch) / "model", Path(scratch) / "out"
        parameters = write_model(folder, asked.layers)
        words = ["--method", "awq", "--samples", str(SAMPLES), "--seq-len", str(LENGTH), "--no-check"]

        def run(name: str, limit: int | None) -> Outcome:
            record = Path(f"{out}-{name}.partial/mlload-progress.json")

            def enough() -> bool:
                try:
                    return through is not None and json.loads(record.read_text())["done"] >= through
                except (OSError, ValueError):
                    return False

            command = [sys.executable, "-m", "mlload", "quantize", str(folder), "-o", f"{out}-{name}", *words]
            return watched(command, Path(scratch) / f"{name}.log", limit=limit, enough=enough)

        found = {"mlload": run("mlload", None), "limited": run("limited", bound)}
        whole = [sys.executable, "-c", WHOLE, str(folder)]
        found["whole"] = watched(whole, Path(scratch) / "whole.log", limit=bound)
        free = watched(whole, Path(scratch) / "free.log")
        found["whole, no limit"] = free
        if asked.peer is not None:
            found["llm-compressor"] = peer(asked.peer, folder, Path(scratch))
    until = "to the end" if through is None else f"stopped after layer {through}"
    lines = [
        f"AWQ of {parameters / 1e9:.2f} billion random parameters, {SAMPLES} samples of {LENGTH} tokens, {until}, "
        f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}",
        f"one layer in float32 {layer / MIB:,.0f} MiB; bound {bound / MIB:,.0f} MiB",
        "",
        f"{'':17}{'peak MiB':>9}{'s':>8}  ended",
    ]
    for name, one in found.items():
        said = one.said.replace(scratch, "...")
        ended = "stopped" if one.code is None else f"{one.code}: {said}" if one.code else "0"
        lines.append(f"{name:17}{one.peak / MIB:9,.0f}{one.seconds:8.1f}  {ended}")
    ours = all(found[name].code in (0, None) for name in ("mlload", "limited")) and found["mlload"].peak <= bound
    theirs = bool(found["whole"].code) and found["whole, no limit"].code == 0
    lines += [
        "",
        f"bound {'held' if ours else 'NOT held'}; a whole model {'fails' if theirs else 'does not fail'} there",
    ]
    if "llm-compressor" in found:
        share = found["mlload"].peak / found["llm-compressor"].peak
        lines.append(f"mlload / llm-compressor: {share:.2f}, at most 0.25: {'holds' if share <= 0.25 else 'MISSED'}")
    print("\n".join(lines))
    if asked.keep:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "quantize_memory.txt").write_text("\n".join(lines) + "\n")
    return 0 if ours and theirs else 1


if __name__ == "__main__":
    sys.exit(main())
