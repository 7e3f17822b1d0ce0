"""Small checkpoints written by hand: a header, a config, no torch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BITS = {"BF16": 16, "F32": 32, "I32": 32, "F16": 16}

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a small Llama, written out from the published architecture."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        root = f"model.layers.{layer}"
        shapes[f"{root}.input_layernorm.weight"] = (hidden,)
        shapes[f"{root}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{root}.self_attn.q_proj.weight"] = (q, hidden)
        shapes[f"{root}.self_attn.k_proj.weight"] = (kv, hidden)
        shapes[f"{root}.self_attn.v_proj.weight"] = (kv, hidden)
        shapes[f"{root}.self_attn.o_proj.weight"] = (hidden, q)
        shapes[f"{root}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{root}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{root}.mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = BITS[dtype] // 8
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def write_llama(folder: Path, **changes: Any) -> Path:
    """A complete folder; `changes` overwrite config fields, and the tensors follow."""
    config = {**CONFIG, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    write_safetensors(folder / "model.safetensors", llama_shapes(config))
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "small-llama")


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def mlload(tmp_path: Path) -> Run:
    """The command as a person starts it, in a process of its own; `env` adds to a clean environment."""

    def run(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Any:
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            [sys.executable, "-m", "mlload", *map(str, words)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=cwd or tmp_path,
            env={**clean, **(env or {})},
            timeout=300,
        )

    return run
