"""fp8 caches against transformers with keys and values rounded on the way in; bytes against the plan's arithmetic."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mlload.engine.cache import cache_bytes
from mlload.engine.native import NativeEngine
from mlload.plan.plan import Plan
from tests.engine.architectures import CONFIGS, small
from tests.engine.ranks import on_ranks
from tests.engine.tiny import planned, save

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

IDS = torch.randint(3, 80, (2, 9), generator=torch.Generator().manual_seed(1))
LARGEST = 448.0
# Sliding and full layers, a window of 4 over 9 tokens.
WINDOWS = small(
    model_type="gemma3_text", head_dim=12, sliding_window=4,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
)  # fmt: skip


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    """[batch, heads, T, D] as e4m3 keeps it under a scale a head."""
    scale = scale.reshape(1, -1, 1, 1)
    return (x / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float() * scale


def their_logits(model: Any, scales: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
    """transformers with an ordinary cache that is handed rounded keys and values; all but three tokens at once, then
    one after another."""
    from transformers import DynamicCache

    class Rounding(DynamicCache):
        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
            k, v = scales[layer_idx]
            return super().update(rounded(key_states, k), rounded(value_states, v), layer_idx, *args, **kwargs)

    cache = Rounding(config=model.config)
    with torch.inference_mode():
        found = [model(input_ids=IDS[:, :6], past_key_values=cache).logits]
        found += [model(input_ids=IDS[:, at : at + 1], past_key_values=cache).logits for at in range(6, 9)]
    return torch.cat(found, 1)


def our_logits(engine: NativeEngine) -> tuple[Tensor, Any]:
    cache = engine.cache(9)
    found = [engine.step(IDS[:, :6], cache, every=True)]
    found += [engine.step(IDS[:, at : at + 1], cache, every=True) for at in range(6, 9)]
    return torch.cat(found, 1), cache


def on_rank(plan: Plan, rank: int, group: Any) -> Tensor:
    return our_logits(NativeEngine(plan, rank, group).start())[0]


def close(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).abs().max()) <= 2e-5 * float(theirs.abs().max())


def test_sliding_windows_keep_fp8(tmp_path: Path) -> None:
    model = save(tmp_path, WINDOWS)
    one = torch.ones(1)
    want = their_logits(model, dict.fromkeys(range(3), (one, one)))
    engine = NativeEngine(planned(tmp_path, kv_dtype="fp8")).start()
    have, cache = our_logits(engine)
    assert close(have, want)
    # What a plain cache would say differs by far more than what was allowed.
    full, _ = our_logits(NativeEngine(planned(tmp_path)).start())
    assert float((full - want).abs().max()) > 1e-3 * float(want.abs().max())
    # 2 KV heads of 12, 2 sequences, one byte: three tokens behind the window of 4, all nine in the full layer.
    assert [layer.keys.nbytes for layer in cache.layers] == [2 * 2 * 3 * 12, 2 * 2 * 9 * 12, 2 * 2 * 3 * 12]
    assert {layer.values.dtype for layer in cache.layers} == {torch.float8_e4m3fn}


def with_scales(folder: Path, scales: dict[int, tuple[Tensor, Tensor]], shape: tuple[int, ...]) -> None:
    tensors = load_file(folder / "model.safetensors")
    for layer, (k, v) in scales.items():
        tensors[f"model.layers.{layer}.self_attn.k_scale"] = k.reshape(shape).clone()
        tensors[f"model.layers.{layer}.self_attn.v_scale"] = v.reshape(shape).clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["llama", "windows"])
@pytest.mark.parametrize("strategy", ["tensor", "attn_head"])
def test_scales_of_the_checkpoint(name: str, strategy: str, tmp_path: Path) -> None:
    """Scales that differ by layer, by key and value and (attn_head) by head, some so small that values saturate."""
    model = save(tmp_path, small(model_type="llama") if name == "llama" else WINDOWS)
    heads = 2 if strategy == "attn_head" else 1
    generator = torch.Generator().manual_seed(5)
    scales = {
        layer: (torch.rand(heads, generator=generator) * 0.01 + 0.002, torch.rand(heads, generator=generator) * 0.01)
        for layer in range(3)
    }
    with_scales(tmp_path, scales, (heads, 1, 1) if strategy == "attn_head" else (1,))
    want = their_logits(model, scales)
    have, _ = our_logits(NativeEngine(planned(tmp_path, kv_dtype="fp8")).start())
    assert close(have, want)
    for tp in (2, 4):  # one head a rank, then one head on two ranks
        cut = planned(tmp_path, tp, kv_dtype="fp8")
        for have in on_ranks(tp, partial(on_rank, cut)):
            assert close(have, want)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", ["llama", "deepseek_v2", "deepseek_v3", "gpt2"])
def test_bytes_are_the_plans(name: str, tp: int, kv_dtype: str, tmp_path: Path) -> None:
    """MLA keeps one latent vector of 20 + 8 values, on every rank."""
    save(tmp_path, CONFIGS[name])
    plan = planned(tmp_path, tp, kv_dtype=kv_dtype)
    predicted = [sizes.kv_bytes_per_token for sizes in plan.ranks()]
    size = 4 if kv_dtype == "auto" else 1
    by_hand = 28 if "deepseek" in name else 2 * 12 * {"llama": max(2 // tp, 1), "gpt2": 4 // tp}.get(name, 0)
    layers = 2 if name == "gpt2" else 3
    assert predicted == [by_hand * size * layers] * tp

    def used(rank: int, group: Any) -> int:
        engine = NativeEngine(plan, rank, group).start()
        cache = engine.cache(9)
        engine.step(IDS, cache)
        return cache_bytes(cache)

    assert on_ranks(tp, used) == [one * 2 * 9 for one in predicted]
