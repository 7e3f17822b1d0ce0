"""Host memory for weights."""

from __future__ import annotations

import gc

import pytest
import torch

from mlload.loader.memory import HUGE, host_zeros


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (3, 5), (1 << 12, 1 << 11), (2 * HUGE + 6,)])
def test_zeros_of_exactly_the_size_that_was_asked_for(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = host_zeros(shape, dtype)
    assert found.shape == torch.Size(shape) and found.dtype == dtype and found.is_contiguous()
    assert found.untyped_storage().nbytes() == found.numel() * found.element_size()
    assert not found.view(torch.uint8).any() if found.dim() else not found.float()
    if found.untyped_storage().nbytes() >= 2 * HUGE:
        assert found.data_ptr() % HUGE == 0


def test_memory_lives_as_long_as_its_tensor() -> None:
    found = host_zeros((1 << 22,), torch.float32)
    found.fill_(3)
    view = found[5:]
    del found
    gc.collect()
    assert float(view.sum()) == 3.0 * ((1 << 22) - 5)
