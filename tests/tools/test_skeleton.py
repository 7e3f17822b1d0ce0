"""Skeletons: counts and bytes by hand from published figures, files that safetensors' own reader accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.skeletons import Skeleton
from tools.sparse_safetensors import Entry, split, split_into, write_sharded


def index_of(folder: Path) -> tuple[dict[str, str], int]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return index["weight_map"], index["metadata"]["total_size"]


def test_deepseek_v3_has_the_published_names(skeleton: Skeleton) -> None:
    weight_map, total = index_of(skeleton("deepseek-v3"))
    attention = 2 * 5 + 2  # q_a, q_b, kv_a, kv_b, o with scales; two norms
    dense = attention + 2 + 3 * 2
    sparse = attention + 2 + 2 + 3 * 2 + 256 * 3 * 2  # router weight and bias, shared expert, experts
    draft = sparse + 6  # embed_tokens, enorm, hnorm, eh_proj, shared_head.norm, shared_head.head
    assert len(weight_map) == 3 * dense + 58 * sparse + draft + 3 == 91_991
    assert len(set(weight_map.values())) == 163
    assert min(weight_map.values()) == "model-00001-of-000163.safetensors"
    for name in (
        "model.layers.3.mlp.experts.255.down_proj.weight_scale_inv",
        "model.layers.61.mlp.experts.0.gate_proj.weight",
        "model.layers.61.eh_proj.weight",
        "model.layers.61.shared_head.head.weight",
        "model.layers.10.mlp.gate.e_score_correction_bias",
    ):
        assert name in weight_map
    assert "model.layers.2.mlp.gate.weight" not in weight_map

    def fp8(n: int, k: int) -> int:
        return n * k + 4 * -(-n // 128) * -(-k // 128)

    attention_bytes = (
        fp8(1536, 7168) + fp8(128 * 192, 1536) + fp8(512 + 64, 7168) + fp8(128 * 256, 512) + fp8(7168, 128 * 128)
    ) + 2 * (1536 + 512 + 2 * 7168)
    dense_bytes = attention_bytes + 2 * fp8(18432, 7168) + fp8(7168, 18432)
    expert = 2 * fp8(2048, 7168) + fp8(7168, 2048)
    sparse_bytes = attention_bytes + 257 * expert + 2 * 256 * 7168 + 4 * 256
    table = 2 * 129_280 * 7168
    draft_bytes = sparse_bytes + 2 * table + 2 * 7168 * 2 * 7168 + 2 * 3 * 7168
    # Scales and the router's bias are stored in float32.
    assert total == 3 * dense_bytes + 58 * sparse_bytes + draft_bytes + 2 * table + 2 * 7168


def test_llama_405b_is_what_its_parameters_weigh(skeleton: Skeleton) -> None:
    weight_map, total = index_of(skeleton("llama-3.1-405b"))
    layer = 2 * 16384 * 16384 + 2 * 1024 * 16384 + 3 * 16384 * 53248 + 2 * 16384
    assert total == 2 * (126 * layer + 2 * 128_256 * 16384 + 16384)
    assert len(weight_map) == 126 * 9 + 3
    assert len(set(weight_map.values())) == 191


def test_gpt_oss_120b_keeps_experts_in_blocks(skeleton: Skeleton) -> None:
    folder = skeleton("gpt-oss-120b")
    weight_map, _ = index_of(folder)
    root = "model.layers.0.mlp.experts."
    assert {name.removeprefix(root) for name in weight_map if name.startswith(root)} == {
        "gate_up_proj_blocks",
        "gate_up_proj_scales",
        "gate_up_proj_bias",
        "down_proj_blocks",
        "down_proj_scales",
        "down_proj_bias",
    }
    assert sorted(set(weight_map.values()))[0] == "model-00000-of-00014.safetensors"
    assert len(set(weight_map.values())) == 15


def test_awq_words_hold_eight_columns_of_the_padded_width(skeleton: Skeleton) -> None:
    from safetensors import safe_open

    folder = skeleton("qwen2.5-72b-awq")
    weight_map, _ = index_of(folder)
    down = "model.layers.79.mlp.down_proj."
    shapes = {}
    for suffix in ("qweight", "qzeros", "scales"):
        with safe_open(folder / weight_map[down + suffix], framework="numpy") as opened:
            shapes[suffix] = tuple(opened.get_slice(down + suffix).get_shape())
    assert shapes == {"qweight": (29696, 1024), "qzeros": (232, 1024), "scales": (232, 8192)}


@pytest.mark.parametrize("name", ["qwen3-235b-a22b-fp8", "mixtral-8x7b-gptq", "gpt-oss-120b"])
def test_safetensors_reads_the_headers_and_the_disk_is_spared(skeleton: Skeleton, name: str) -> None:
    from safetensors import safe_open

    folder = skeleton(name)
    found = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as opened:
            found += len(opened.keys())
    indexed = folder / "model.safetensors.index.json"
    if indexed.exists():
        assert found == len(json.loads(indexed.read_text())["weight_map"])
    else:
        # 32 layers: q, k, v, o and 8 x 3 expert linears of qweight, qzeros, scales, g_idx; a router, two norms
        assert found == 32 * ((4 + 8 * 3) * 4 + 1 + 2) + 3
    assert sum(path.stat().st_blocks * 512 for path in folder.iterdir()) < 30e6


def test_tokenizer_stub_is_one(skeleton: Skeleton) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(skeleton("mixtral-8x7b-gptq") / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("any text").ids) == "any text"


def test_split_fills_in_order_and_never_over_the_limit() -> None:
    entries = [Entry(str(number), "U8", (size,)) for number, size in enumerate((4, 4, 4, 11, 1, 9))]
    files = [[entry.nbytes for entry in file] for file in split(entries, 10)]
    assert files == [[4, 4], [4], [11], [1, 9]]
    assert [len(file) for file in split_into(entries, 2)] == [3, 3]
    assert len(split_into(entries, 1)) == 1


def test_files_say_how_many_they_are(tmp_path: Path) -> None:
    entries = [Entry("a", "BF16", (3, 5)), Entry("b", "F32", (2,)), Entry("c", "I32", ())]
    write_sharded(tmp_path, split(entries, 30), digits=6)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-000002.safetensors",
        "model-00002-of-000002.safetensors",
        "model.safetensors.index.json",
    ]
    assert index_of(tmp_path) == (
        {
            "a": "model-00001-of-000002.safetensors",
            "b": "model-00002-of-000002.safetensors",
            "c": "model-00002-of-000002.safetensors",
        },
        30 + 8 + 4,
    )
