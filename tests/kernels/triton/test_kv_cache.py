"""Keys and values stored as fp8 at their slots."""

from __future__ import annotations

import pytest
import torch

from mlload.kernels.triton import kv_cache

T, H, D, B = 5, 3, 24, 4


@pytest.mark.parametrize("native", [True, False], ids=["conversion", "bits"])
@pytest.mark.parametrize("heads", [1, H], ids=["tensor", "head"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_slots_scales_and_padding(native: bool, heads: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    k = (torch.randn(T, H, D, generator=generator) * 20).to(dtype)
    v = (torch.randn(T, 2 * H, D, generator=generator) * 20).to(dtype)[:, ::2]
    caches = [torch.zeros(3, B, H, D, dtype=torch.uint8) for _ in range(2)]
    scales = [torch.rand(heads, generator=generator) * 0.3 + 0.05 for _ in range(2)]
    slots = torch.tensor([9, 0, -1, 11, 4])
    kv_cache.store(k, v, *caches, slots, *scales, native=native)
    for x, cache, scale in zip((k, v), caches, scales, strict=True):
        wanted = torch.zeros(3 * B, H, D, dtype=torch.uint8)
        kept = slots >= 0
        wanted[slots[kept]] = kv_cache.reference(x, scale).view(torch.uint8)[kept]
        assert torch.equal(cache.reshape(3 * B, H, D), wanted)


@pytest.mark.parametrize("native", [True, False], ids=["conversion", "bits"])
def test_every_bf16_number(native: bool) -> None:
    """All 65,536 of them: subnormals, ties, overflow, infinities and NaN."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(64, 1, 1024)
    caches = [torch.zeros(16, 4, 1, 1024, dtype=torch.uint8) for _ in range(2)]
    one = torch.ones(1)
    kv_cache.store(x, x, *caches, torch.arange(64), one, one, native=native)
    wanted = kv_cache.reference(x, one).reshape(-1)
    found = caches[0].reshape(-1).view(torch.float8_e4m3fn)
    assert torch.equal(found.float().nan_to_num(), wanted.float().nan_to_num())
    assert torch.equal(found.float().isnan(), x.reshape(-1).isnan())
    assert torch.equal(found.float().signbit()[~found.float().isnan()], x.reshape(-1).signbit()[~found.float().isnan()])
