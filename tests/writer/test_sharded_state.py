"""vLLM's sharded_state: the names, shapes and bytes of each worker's state, worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlload.cli.app import main
from tests.acceptance.extent import everything
from tests.plan.tiny_models import DEEPSEEK, LLAMA, MIXTRAL, TIED
from tests.real_models import RealModel
from tests.writer.build import read_folder, read_safetensors, write_checkpoint, write_quantized
from tools import vllm_cpu

ATTENTION = "model.layers.0.self_attn"
SCALES = {f"{ATTENTION}.attn.{name}" for name in ("_k_scale", "_prob_scale", "_q_scale", "_v_scale")}


def shard(source: Path, out: Path, *words: str) -> None:
    assert main(["shard", str(source), "-o", str(out), "--layout", "vllm", *words]) == 0


def rows(raw: bytes, start: int, stop: int, width: int) -> bytes:
    """bf16 rows [start, stop) of a matrix `width` wide."""
    return raw[start * width * 2 : stop * width * 2]


@pytest.mark.parametrize("tp", [1, 2])
def test_names_and_shapes_of_one_rank(tp: int, tmp_path: Path) -> None:
    """hidden 64, 8 heads of 8, 2 KV heads, 96 wide, 100 words padded to 128."""
    source = write_checkpoint(tmp_path / "source", LLAMA)
    shard(source, tmp_path / "out", "--tp", str(tp))
    held = read_safetensors(tmp_path / "out" / f"model-rank-{tp - 1}-part-0.safetensors")
    outside = {name: shape for name, (_, shape, _) in held.items() if ".layers." not in name}
    assert outside == {
        "model.embed_tokens.weight": (128 // tp, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (128 // tp, 64),
    }
    layer = {name: shape for name, (_, shape, _) in held.items() if ".layers.0." in name}
    assert layer == {
        "model.layers.0.input_layernorm.weight": (64,),
        f"{ATTENTION}.qkv_proj.weight": ((64 + 16 + 16) // tp, 64),
        f"{ATTENTION}.o_proj.weight": (64, 64 // tp),
        "model.layers.0.post_attention_layernorm.weight": (64,),
        "model.layers.0.mlp.gate_up_proj.weight": (192 // tp, 64),
        "model.layers.0.mlp.down_proj.weight": (64, 96 // tp),
        **dict.fromkeys(SCALES, ()),
    }
    assert {held[name][::2] for name in SCALES} == {("F32", b"\x00\x00\x80\x3f")}
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == tp
    assert (tmp_path / "out" / "config.json").exists()


def test_bytes_of_fused_and_padded_parameters(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    whole = {name: raw for name, (_, _, raw) in read_folder(source).items()}
    shard(source, tmp_path / "out", "--tp", "2")
    held = read_safetensors(tmp_path / "out" / "model-rank-1-part-0.safetensors")
    q, k, v = (whole[f"{ATTENTION}.{name}_proj.weight"] for name in "qkv")
    assert held[f"{ATTENTION}.qkv_proj.weight"][2] == (rows(q, 32, 64, 64) + rows(k, 8, 16, 64) + rows(v, 8, 16, 64))
    words = whole["model.embed_tokens.weight"]
    assert held["model.embed_tokens.weight"][2] == rows(words, 64, 100, 64) + bytes(28 * 64 * 2)


def test_a_tied_table_has_the_name_that_sorts_first(tmp_path: Path) -> None:
    """On the last stage it is head and table; on the first of two stages only the table."""
    source = write_checkpoint(tmp_path / "source", TIED)
    shard(source, tmp_path / "one", "--tp", "2")
    held = read_safetensors(tmp_path / "one" / "model-rank-0-part-0.safetensors")
    assert "lm_head.weight" in held and "model.embed_tokens.weight" not in held
    shard(source, tmp_path / "two", "--pp", "2")
    first = read_safetensors(tmp_path / "two" / "model-pp-0-tp-0-part-0.safetensors")
    last = read_safetensors(tmp_path / "two" / "model-pp-1-tp-0-part-0.safetensors")
    assert "model.embed_tokens.weight" in first and "lm_head.weight" not in first
    assert "lm_head.weight" in last and "model.embed_tokens.weight" not in last


@pytest.mark.parametrize("words", [("--tp", "2"), ("--tp", "2", "--ep")], ids=["tp", "ep"])
def test_experts_are_stacked(words: tuple[str, ...], tmp_path: Path) -> None:
    """6 experts of 96: w13 holds w1 above w3. Rank 1 has half of each, or experts 3 to 5."""
    source = write_checkpoint(tmp_path / "source", MIXTRAL)
    whole = {name: raw for name, (_, _, raw) in read_folder(source).items()}
    shard(source, tmp_path / "out", *words)
    held = read_safetensors(tmp_path / "out" / "model-rank-1-part-0.safetensors")
    name = next(key for key in held if ".layers.0." in key and key.endswith("w13_weight"))
    root = "model.layers.0.block_sparse_moe.experts"
    if "--ep" in words:
        assert held[name][1] == (3, 192, 64)
        expected = b"".join(whole[f"{root}.{e}.{w}.weight"] for e in (3, 4, 5) for w in ("w1", "w3"))
    else:
        assert held[name][1] == (6, 96, 64)
        expected = b"".join(rows(whole[f"{root}.{e}.{w}.weight"], 48, 96, 64) for e in range(6) for w in ("w1", "w3"))
    assert held[name][2] == expected


@pytest.mark.parametrize("name", ["gptq", "gptq-act-order", "fp8-block", "w4a16", "nvfp4"])
def test_quantized_models_whose_state_is_not_known(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_quantized(tmp_path / "source", name)
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--tp", "2", "--layout", "vllm"]) == 1
    told = capsys.readouterr().err
    assert "was not compared with the engine's own layers" in told and "--layout mlload" in told
    assert not (tmp_path / "out").exists()


# hidden 1024, 8 heads and 2 KV heads of 128, intermediate 2048, group 128; at tp 2: q 512, k and v 128 rows each.
HALF = ATTENTION + ".qkv_proj."
DOWN = "model.layers.0.mlp.down_proj."
QUANTIZED_STATE: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "awq": {
        HALF + "qweight": ("I32", (1024, 96)), HALF + "qzeros": ("I32", (8, 96)), HALF + "scales": ("F16", (8, 768)),
        DOWN + "qweight": ("I32", (1024, 128)), DOWN + "qzeros": ("I32", (8, 128)), DOWN + "scales": ("F16", (8, 1024)),
    },
    "w8a8": {
        HALF + "weight": ("I8", (768, 1024)), HALF + "weight_scale": ("F32", (768, 1)),
        DOWN + "weight": ("I8", (1024, 1024)), DOWN + "weight_scale": ("F32", (1024, 1)),
        **{f"{ATTENTION}.attn.{which}_{what}": ("F32", (1,)) for which in "qkv" for what in ("scale", "zero_point")},
    },
    "fp8": {
        HALF + "weight": ("F8_E4M3", (768, 1024)), HALF + "weight_scale": ("F32", (3,)),
        HALF + "input_scale": ("F32", (3,)), DOWN + "weight_scale": ("F32", (1,)), DOWN + "input_scale": ("F32", (1,)),
        **{f"{ATTENTION}.attn.{which}_scale": ("F32", ()) for which in ("q", "k", "v", "prob")},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZED_STATE)
def test_quantized_state_is_the_checkpoints_fused(name: str, tmp_path: Path) -> None:
    """Rank 1's k is the second KV head, and of what has rows of its own (scales of q, k, v) each part follows."""
    source = write_quantized(tmp_path / "source", name)
    whole = {tensor: raw for tensor, (_, _, raw) in read_folder(source).items()}
    dtypes = {tensor: dtype for tensor, (dtype, _, _) in read_folder(source).items()}
    shard(source, tmp_path / "out", "--tp", "2")
    held = read_safetensors(tmp_path / "out" / "model-rank-1-part-0.safetensors")
    for tensor, (dtype, shape) in QUANTIZED_STATE[name].items():
        stored = dtypes.get(tensor.replace("qkv_proj", "q_proj"), dtype)
        assert held[tensor][:2] == (stored, shape), tensor
    first = HALF + ("qweight" if name == "awq" else "weight")
    parts = [whole[first.replace("qkv", part)] for part in "qkv"]
    if name == "awq":
        columns = [rows_of(part, 1024)[:, -half:] for part, half in zip(parts, (256, 64, 64), strict=True)]
        assert held[first][2] == np.concatenate(columns, axis=1).tobytes()
    else:
        assert held[first][2] == b"".join(part[len(part) // 2 :] for part in parts)
    if name == "fp8":
        assert held[HALF + "weight_scale"][2] == b"".join(whole[f"{ATTENTION}.{p}_proj.weight_scale"] for p in "qkv")
        assert held[f"{ATTENTION}.attn.k_scale"][2] == b"\x00\x00\x80\xbf"


def rows_of(raw: bytes, count: int) -> Any:
    """uint8 [count, bytes of a row]"""
    return np.frombuffer(raw, np.uint8).reshape(count, -1)


def test_classes_with_more_state_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "source", DEEPSEEK)
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--tp", "2", "--layout", "vllm"]) == 1
    assert "latent attention" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["vllm", "tensorizer"])
@pytest.mark.parametrize("config", [LLAMA, TIED, MIXTRAL], ids=lambda config: str(config["model_type"]))
def test_it_can_be_a_source(config: dict[str, Any], layout: str, tmp_path: Path) -> None:
    """Merged, cut for another size, and in the other layout: the bytes are those of the first checkpoint."""
    if layout == "tensorizer" and config is MIXTRAL:
        pytest.skip("tensorizer files hold no experts")
    source = write_checkpoint(tmp_path / "source", config)
    cut, again, ranks = tmp_path / "cut", tmp_path / "again", tmp_path / "ranks"
    assert main(["shard", str(source), "-o", str(cut), "--tp", "4", "--layout", layout]) == 0
    assert main(["shard", str(cut), "-o", str(tmp_path / "merged"), "--merge", "--verify"]) == 0
    assert read_folder(tmp_path / "merged") == read_folder(source)
    shard(cut, again, "--tp", "2")
    shard(source, tmp_path / "straight", "--tp", "2")
    for rank in range(2):
        file = f"model-rank-{rank}-part-0.safetensors"
        assert read_safetensors(again / file) == read_safetensors(tmp_path / "straight" / file)
    assert main(["shard", str(cut), "-o", str(ranks), "--tp", "2"]) == 0
    assert main(["shard", str(ranks), "-o", str(tmp_path / "last"), "--merge"]) == 0
    assert read_folder(tmp_path / "last") == read_folder(source)


def test_replicas_of_a_source_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    shard(source, tmp_path / "cut", "--tp", "2")
    path = tmp_path / "cut" / "model-rank-1-part-0.safetensors"
    norm = read_safetensors(path)["model.norm.weight"][2]
    path.write_bytes(path.read_bytes().replace(norm, bytes(len(norm))))
    assert main(["shard", str(tmp_path / "cut"), "-o", str(tmp_path / "merged"), "--merge"]) == 1
    assert "model.norm.weight differs" in capsys.readouterr().err


SPEAK = """
import json, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    more = {"load_format": sys.argv[3]} if len(sys.argv) > 3 else {}
    llm = LLM(sys.argv[1], tensor_parallel_size=int(sys.argv[2]), max_model_len=512, enforce_eager=True, **more)
    said = llm.generate(["The capital of France is"], SamplingParams(max_tokens=20, temperature=0))
    print("SAID", json.dumps(said[0].outputs[0].text))
"""


def says(folder: Path, tp: int, script: Path, *load_format: str) -> Any:
    """What a real vLLM says from a folder."""
    if not vllm_cpu.ready():
        pytest.skip("no vLLM on this machine: python -m tools.vllm_cpu")
    script.write_text(SPEAK)
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(vllm_cpu.python()), str(script), str(folder), str(tp), *load_format],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("SAID "))


@pytest.mark.slow
@pytest.mark.vllm
def test_a_real_vllm_says_the_same(real_model: RealModel, tmp_path: Path) -> None:
    source, script = real_model("smollm2"), tmp_path / "speak.py"
    expected = says(source, 1, script)
    for tp in (1, 3) if everything() else (3,):
        shard(source, tmp_path / f"tp{tp}", "--tp", str(tp))
        assert says(tmp_path / f"tp{tp}", tp, script, "sharded_state") == expected
    if not everything():
        return  # CI starts the engine a counted number of times
    assert main(["shard", str(source), "-o", str(tmp_path / "ranks"), "--tp", "3"]) == 0
    assert main(["shard", str(tmp_path / "ranks"), "-o", str(tmp_path / "merged"), "--merge"]) == 0
    assert main(["shard", str(source), "-o", str(tmp_path / "small"), "--max-shard-size", "60MB"]) == 0
    assert says(tmp_path / "merged", 1, script) == says(tmp_path / "small", 1, script) == expected


@pytest.mark.parametrize("layout", ["mlload", "vllm", "tensorizer"])
def test_inspect_sees_the_checkpoint_that_was_cut(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    assert main(["shard", str(source), "-o", str(tmp_path / "cut"), "--tp", "2", "--layout", layout]) == 0
    found = []
    for folder in (source, tmp_path / "cut"):
        capsys.readouterr()
        assert main(["inspect", str(folder), "--format", "json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["architecture"]["parameters"] == found[1]["architecture"]["parameters"]
    assert found[1]["problems"] == []
