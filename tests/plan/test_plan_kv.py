"""KV-cache bytes per token and fixed state per sequence, by arithmetic on published sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlload import profiles
from mlload.plan.architectures import AttentionSpec
from mlload.plan.architectures.attention import StateSpec
from mlload.plan.kv import kv_classes
from mlload.plan.mesh import Mesh
from mlload.plan.params import Part
from mlload.plan.plan import make_plan
from tests.plan.tiny_models import DEEPSEEK, GPT_OSS, LLAMA, model


def token(folder: Path, config: dict[str, Any], mesh: Mesh, kv_dtype: str = "auto") -> list[int]:
    plan = make_plan(model(folder, config), profiles.load("vllm", "0.33"), mesh, kv_dtype=kv_dtype)
    return [sizes.kv_bytes_per_token for sizes in plan.ranks()]


def test_grouped_heads_are_divided_and_then_shared(tmp_path: Path) -> None:
    """3 layers, keys and values, 2 heads of 8, two bytes each."""
    assert token(tmp_path, LLAMA, Mesh()) == [3 * 2 * 2 * 8 * 2]
    assert token(tmp_path, LLAMA, Mesh(2)) == [3 * 2 * 1 * 8 * 2] * 2
    assert token(tmp_path, LLAMA, Mesh(8)) == [3 * 2 * 1 * 8 * 2] * 8


def test_a_stage_keeps_its_own_layers(tmp_path: Path) -> None:
    """3 layers on 2 stages: the spare one goes to the first."""
    each = 2 * 2 * 8 * 2
    assert token(tmp_path, LLAMA, Mesh(pp=2)) == [2 * each, each]


def test_eight_bit_cache_is_half(tmp_path: Path) -> None:
    assert token(tmp_path, LLAMA, Mesh(), "fp8") == [3 * 2 * 2 * 8]


def test_a_latent_cache_is_whole_on_every_rank(tmp_path: Path) -> None:
    """3 layers of 32 + 8 values."""
    assert token(tmp_path, DEEPSEEK, Mesh()) == [3 * 40 * 2]
    assert token(tmp_path, DEEPSEEK, Mesh(4)) == [3 * 40 * 2] * 4


def test_windows_are_told_apart(tmp_path: Path) -> None:
    plan = make_plan(model(tmp_path, GPT_OSS), profiles.load("vllm", "0.33"), Mesh())
    each = 2 * 2 * 8 * 2
    found = {(kind.kind, kind.window): (kind.layers, kind.bytes_per_token) for kind in plan.kv(0)}
    assert found == {("sliding", 16): (2, 2 * each), ("full", None): (1, each)}


def test_recurrent_layers_have_a_state_and_no_tokens() -> None:
    """Mamba2: a conv of 4 - 1 steps over x (8 heads of 4) and B, C (2 groups of 16), a state of 8 x 4 x 16 in float32;
    2 groups on 4 ranks are shared like KV heads."""
    group = AttentionSpec(
        "ssm",
        range(5),
        states=(
            StateSpec("conv", (Part("x", 32, 4), Part("B", 32, 16, "kv"), Part("C", 32, 16, "kv")), 3),
            StateSpec("ssm", (Part("", 8),), 4 * 16, "F32"),
        ),
    )
    whole = kv_classes((group,), Mesh(), 0, 5, dtype="BF16", kv_dtype="BF16")
    assert [(kind.bytes_per_token, kind.state_bytes) for kind in whole] == [(0, 5 * (96 * 3 * 2 + 8 * 64 * 4))]
    halves = kv_classes((group,), Mesh(2), 1, 5, dtype="BF16", kv_dtype="BF16")
    assert halves[0].state_bytes == 5 * ((16 + 16 + 16) * 3 * 2 + 4 * 64 * 4)
    quarter = kv_classes((group,), Mesh(4), 0, 5, dtype="BF16", kv_dtype="BF16")
    assert quarter[0].state_bytes == 5 * ((8 + 16 + 16) * 3 * 2 + 2 * 64 * 4)


def test_the_state_dtype_is_the_engines_setting() -> None:
    group = AttentionSpec("ssm", range(1), states=(StateSpec("ssm", (Part("", 8),), 16, "ssm"),))
    sizes = [
        kv_classes((group,), Mesh(), 0, 1, dtype="BF16", kv_dtype="BF16", ssm_dtype=dtype)[0].state_bytes
        for dtype in (None, "F32")
    ]
    assert sizes == [8 * 16 * 2, 8 * 16 * 4]


def test_shared_caches_are_counted_once() -> None:
    group = AttentionSpec("full", range(4), heads=4, kv_heads=2, head_dim=8, v_head_dim=8, shares=(2, 3))
    (found,) = kv_classes((group,), Mesh(), 0, 4, dtype="BF16", kv_dtype="BF16")
    assert (found.layers, found.bytes_per_token) == (2, 2 * 2 * 16 * 2)


def test_an_indexer_keeps_bytes_and_scales_beside_the_latent() -> None:
    group = AttentionSpec("mla", range(1), heads=4, latent=576, index_dim=128)
    (found,) = kv_classes((group,), Mesh(8), 0, 1, dtype="BF16", kv_dtype="BF16")
    assert found.bytes_per_token == 576 * 2 + 128 + 4
    (packed,) = kv_classes((group,), Mesh(8), 0, 1, dtype="BF16", kv_dtype="F8_E4M3")
    assert packed.bytes_per_token == 656 + 128 + 4  # the row that DeepSeek publishes


@pytest.mark.parametrize(("kv_dtype", "size"), [("auto", 2), ("bfloat16", 2), ("fp8_e5m2", 1), ("float32", 4)])
def test_spellings_of_the_cache_dtype(kv_dtype: str, size: int, tmp_path: Path) -> None:
    assert token(tmp_path, LLAMA, Mesh(), kv_dtype) == [3 * 2 * 2 * 8 * size]
