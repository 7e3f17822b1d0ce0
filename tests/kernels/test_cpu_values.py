"""Vectorized dequantization is the formats' own, bit for bit."""

from __future__ import annotations

import pytest
import torch

from mlload.kernels.cpu.values import fp8_values, values
from mlload.kernels.stored import dequantized
from mlload.quant.spec import Scheme
from tests.kernels import linears

INTEGERS = [
    linears.grouped("awq", group=64, symmetric=False),
    linears.grouped("gptq", group=32),
    linears.grouped("gptq", bits=8, group=32, symmetric=False),
    linears.grouped("gptq", group=64, act_order=True, symmetric=False),
    linears.grouped("compressed_tensors", group=-1),
    linears.grouped("compressed_tensors", bits=8, group=64, symmetric=False),
    linears.grouped("gptq", bits=3, group=64),
]


@pytest.mark.parametrize("scheme", INTEGERS, ids=lambda s: f"{s.format} {s.bits} {s.group_size} {s.act_order}")
def test_integers(scheme: Scheme) -> None:
    linear = linears.integer(scheme, 48, 192)
    found = values(scheme, linear.tensors, 48, 192)
    assert found.dtype == torch.float32 and torch.equal(found, dequantized(scheme, linear.tensors, 48, 192))
    assert torch.equal(found, linear.weight.float())


@pytest.mark.parametrize("scheme", [linears.MXFP4, linears.MXFP4_GPT_OSS, linears.NVFP4, linears.NVFP4_MODELOPT])
def test_four_bit_floats(scheme: Scheme) -> None:
    linear = linears.fp4(scheme, 48, 192)
    found = values(scheme, linear.tensors, 48, 192)
    assert torch.equal(found, dequantized(scheme, linear.tensors, 48, 192))
    torch.testing.assert_close(found.double(), linear.weight, rtol=2**-22, atol=0)


def test_every_fp8_code() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(16, 16)
    found = fp8_values(codes)
    # Sign, four bits of exponent with bias 7, three of mantissa; 0x7F and 0xFF are NaN.
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
        value = float(found[code // 16, code % 16])
        assert value != value if code & 127 == 127 else value == (-size if code > 127 else size)
