"""GPUs by the names that people type."""

from __future__ import annotations

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.profiles.gpus import catalogue, find, generations


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("h100", "h100"),
        ("H100", "h100"),
        ("A100 40GB", "a100-40gb"),
        ("a100-80gb", "a100"),
        ("NVIDIA RTX 4090", "rtx4090"),
        ("GeForce RTX 3090", "rtx3090"),
        ("5090", "rtx5090"),
        ("mi300x", "mi300x"),
    ],
)
def test_names(typed: str, key: str) -> None:
    assert find(typed).key == key


def test_a_capability_alone_has_no_memory() -> None:
    gpu = find("cc:9.0")
    assert (gpu.capability, gpu.memory_gib, gpu.memory_bytes) == ((9, 0), None, None)
    assert find("cc:12.0,mem:80").memory_bytes == 80 * 2**30


@pytest.mark.parametrize(
    "typed", ["h900", "cc:9", "cc:", "mem:80", "cc:9.0,mem:-1", "cc:9.0,mem:x", "cc:9.0,foo:1", ""]
)
def test_nonsense_is_one_sentence(typed: str) -> None:
    with pytest.raises(MlloadError) as caught:
        find(typed)
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


def test_every_gpu_has_what_a_verdict_needs() -> None:
    for gpu in catalogue().values():
        assert gpu.memory_gib is not None and gpu.memory_gib > 10
        assert gpu.bandwidth_gbs is not None
        assert bool(gpu.capability) != bool(gpu.arch)
    assert [gpu.capability for gpu in generations()] == sorted(gpu.capability or (0, 0) for gpu in generations())
