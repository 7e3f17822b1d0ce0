"""Stored tensors read by torch mean what was packed."""

from __future__ import annotations

import pytest
import torch

from mlload.kernels.stored import dequantized, e8m0, elements, integers
from mlload.quant.spec import Scheme
from tests.kernels import linears

INTEGERS = [
    linears.grouped("awq", symmetric=False),
    linears.grouped("awq", group=32, symmetric=False),
    linears.grouped("gptq"),
    linears.grouped("gptq", symmetric=False),
    linears.grouped("gptq", symmetric=False, layout="gptq_v2"),
    linears.grouped("gptq", group=32, symmetric=False, act_order=True),
    linears.grouped("gptq", bits=8, group=64, symmetric=False),
    linears.grouped("gptq", group=-1),
    linears.grouped("compressed_tensors"),
    linears.grouped("compressed_tensors", symmetric=False, group=64),
    linears.grouped("compressed_tensors", bits=8, group=-1),
    linears.grouped("compressed_tensors", act_order=True, group=64),
    linears.grouped("quark", symmetric=False),
]


@pytest.mark.parametrize("scheme", INTEGERS, ids=lambda s: f"{s.format}-{s.bits}-{s.group_size}-{s.layout}")
def test_integers_mean_what_was_packed(scheme: Scheme) -> None:
    n, k = 48, 256
    linear = linears.integer(scheme, n, k)
    parts = integers(scheme, linear.tensors, n, k)
    groups = parts.scale.shape[1]
    index = parts.g_idx if parts.g_idx is not None else torch.arange(k) // (k // groups)
    zero = torch.full((n, groups), 1 << (scheme.bits - 1)) if parts.zero is None else parts.zero
    weight = (parts.codes.double() - zero.double()[:, index]) * parts.scale.double()[:, index]
    assert torch.equal(weight, linear.weight)
    assert (parts.g_idx is not None) == scheme.act_order


def test_a_zero_point_of_zero_in_gptq_v1_borrows_from_its_neighbours() -> None:
    """Zeros 0..7 less one over a word: 0x76543210 - 0x11111111 = 0x6543_20FF: not the zeros less one."""
    scheme = linears.grouped("gptq", symmetric=False, group=-1)
    tensors = {
        "qweight": torch.zeros(1, 8, dtype=torch.int32),
        "qzeros": torch.tensor([[0x76543210 - 0x11111111]], dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
    }
    assert integers(scheme, tensors, 8, 8).zero.flatten().tolist() == list(range(8))


@pytest.mark.parametrize(
    ("scheme", "linear"),
    [
        (linears.FP8_TENSOR, linears.fp8(linears.FP8_TENSOR, 48, 160)),
        (linears.FP8_CHANNEL, linears.fp8(linears.FP8_CHANNEL, 48, 160)),
        (linears.FP8_BLOCK, linears.fp8(linears.FP8_BLOCK, 160, 224)),
        (linears.MXFP4, linears.fp4(linears.MXFP4, 24, 64)),
        (linears.MXFP4_GPT_OSS, linears.fp4(linears.MXFP4_GPT_OSS, 24, 64)),
        (linears.NVFP4, linears.fp4(linears.NVFP4, 24, 64)),
        (linears.NVFP4_MODELOPT, linears.fp4(linears.NVFP4_MODELOPT, 24, 64)),
    ],
    ids=lambda v: v.layout if isinstance(v, Scheme) else "",
)
def test_elements_mean_what_was_packed(scheme: Scheme, linear: linears.Linear) -> None:
    n, k = linear.weight.shape
    parts = elements(scheme, linear.tensors, n, k)
    if scheme.bits == 4:
        table = torch.from_numpy(linears.E2M1)
        values = table[torch.stack([parts.codes & 15, parts.codes >> 4], -1).reshape(n, k).long()]
        scale = e8m0(parts.scale).double() if parts.global_scale is None else parts.scale.double() * parts.global_scale
        weight = values * scale.repeat_interleave(k // scale.shape[1], 1)
    else:
        scale = parts.scale.double()
        if scheme.block is not None:
            scale = scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        weight = parts.codes.double() * (scale[:, None] if scale.dim() == 1 else scale)
    # compressed-tensors' global scale divides: its inverse is rounded once, in float32.
    torch.testing.assert_close(weight, linear.weight, rtol=2**-23, atol=0)


def test_the_reference_reads_what_no_kernel_does() -> None:
    """Three-bit GPTQ."""
    scheme = linears.grouped("gptq", bits=3, group=32)
    linear = linears.integer(scheme, 32, 64)
    assert torch.equal(dequantized(scheme, linear.tensors, 32, 64).double(), linear.weight)


def test_e8m0_by_its_definition() -> None:
    values = e8m0(torch.tensor([0, 1, 126, 127, 128, 254, 255], dtype=torch.uint8))
    assert values[:6].tolist() == [2.0**-127, 2.0**-126, 0.5, 1.0, 2.0, 2.0**127]
    assert values[6].isnan()
