"""Gated DeltaNet's narrow projection, which vLLM cuts or not, by the quantization method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload import profiles
from mlload.plan.mesh import Mesh
from mlload.plan.plan import make_plan
from tests.plan.tiny_models import model

QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 16,
    "vocab_size": 128,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("assume", "heads"),
    [
        (None, 4),  # 8 value heads on two ranks
        ("fp8", 4),
        ("awq:g32", 8),
        ("gptq:g32", 8),
    ],
)
def test_b_and_a_are_whole_where_marlin_would_find_them_too_narrow(
    tmp_path: Path, assume: str | None, heads: int
) -> None:
    plan = make_plan(model(tmp_path, QWEN3_5, assume_quant=assume), profiles.load("vllm", "0.33"), Mesh(tp=2))
    narrow = next(layer for layer in plan.layers() if layer.path.endswith("in_proj_ba"))
    assert narrow.shape.parts == (heads, heads)
    wide = next(layer for layer in plan.layers() if layer.path.endswith("in_proj_qkvz"))
    # q and k: 2 heads of 32; v and z: 8 heads of 16; halved
    assert wide.shape.parts == (32, 32, 64, 64)
