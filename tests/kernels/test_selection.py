"""Which kernel a CPU runs each scheme with, and that it computes x W^T."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from mlload import kernels
from mlload.checkpoint.finding import MlloadError
from mlload.kernels.selection import first
from mlload.quant.spec import Scheme
from tests.kernels import linears

N, K = 64, 256
WEIGHT_ONLY = [
    (linears.grouped("awq", symmetric=False), "int4pack"),
    (linears.grouped("gptq", group=32), "int4pack"),
    (linears.grouped("gptq", group=64, act_order=True), "dequantized"),
    (linears.grouped("gptq", bits=3), "dequantized"),
    (linears.grouped("compressed_tensors", group=-1, symmetric=False), "int4pack"),
    (linears.grouped("compressed_tensors", bits=8, group=-1), "int8pack"),
    (linears.grouped("compressed_tensors", bits=8, group=64), "dequantized"),
]


def bound(x: Tensor, weight: Tensor, unit: float) -> Tensor:
    """|error| of a product whose factors and result are rounded to a relative `unit` each: three roundings of the
    terms, accumulated with their magnitudes."""
    return 3.5 * unit * (x.double().abs() @ weight.abs().T) + 1e-6


@pytest.mark.parametrize(("scheme", "name"), WEIGHT_ONLY, ids=lambda v: v if isinstance(v, str) else v.format)
@pytest.mark.parametrize("rows", [1, 5])
def test_integers_on_the_cpu(scheme: Scheme, name: str, rows: int) -> None:
    linear = linears.integer(scheme, N, K)
    chosen = kernels.select(scheme, N, K, torch.bfloat16)
    assert (chosen.kernel.name, chosen.provider) == (name, "torch")
    x = torch.randn(rows, K, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    bias = torch.randn(N).to(torch.bfloat16)
    y = chosen.kernel.apply(x, chosen.kernel.prepare(linear.tensors), bias)
    assert (y.dtype, y.shape) == (torch.bfloat16, (rows, N))
    # int4pack rounds (8 - z) s apart from s: twice the largest zero's product, 8 s, may be off.
    magnitude = linear.weight.abs() + (8 * linear.weight.abs().max() / 15 if not scheme.symmetric else 0)
    reference = x.double() @ linear.weight.T + bias.double()
    error = (y.double() - reference).abs()
    assert (error <= bound(x, magnitude, 2**-8) + 2**-8 * (bias.double().abs() + reference.abs())).all()


@pytest.mark.parametrize(
    "scheme", [linears.FP8_TENSOR, linears.FP8_STATIC, linears.FP8_CHANNEL, linears.FP8_BLOCK], ids=lambda s: s.layout
)
def test_fp8_on_the_cpu_rounds_activations_as_the_engine_does(scheme: Scheme) -> None:
    linear = linears.fp8(scheme, 160, 224)
    chosen = kernels.select(scheme, 160, 224, torch.float32)
    assert chosen.kernel.name == "fp8_emulated"
    x = torch.randn(2, 3, 224, generator=torch.Generator().manual_seed(2))
    y = chosen.kernel.apply(x, chosen.kernel.prepare(linear.tensors))
    # e4m3 has three stored bits: half a unit is 2**-4 of a value, and 2**-10 of the scale near zero.
    step = 2**-4 * x.double().abs() + 2**-10 * 0.02
    if scheme.activation != "static":
        step = 2**-4 * x.double().abs() + 2**-10 * x.double().abs().amax(-1, keepdim=True) / 448
    error = (y.double() - x.double() @ linear.weight.T).abs()
    assert (error <= step @ linear.weight.abs().T * 1.001 + 1e-5).all()
    assert error.max() > 0


def test_int8_on_the_cpu_is_exact_for_its_codes() -> None:
    linear = linears.int8(N, K)
    chosen = kernels.select(linears.INT8, N, K, torch.float32)
    assert chosen.kernel.name == "int8_dynamic"
    # Rows whose largest magnitude is 127 are their own codes.
    x = torch.randint(-126, 127, (3, K)).float()
    x[:, 0] = 127
    y = chosen.kernel.apply(x, chosen.kernel.prepare(linear.tensors))
    torch.testing.assert_close(y.double(), x.double() @ linear.weight.T, rtol=2**-21, atol=0)


@pytest.mark.parametrize("scheme", [linears.MXFP4, linears.NVFP4, linears.NVFP4_MODELOPT], ids=lambda s: s.layout)
def test_four_bit_floats_on_the_cpu(scheme: Scheme) -> None:
    linear = linears.fp4(scheme, 32, 64)
    chosen = kernels.select(scheme, 32, 64, "float32")
    x = torch.randn(4, 64)
    y = chosen.kernel.apply(x, chosen.kernel.prepare(linear.tensors))
    reference = x.double() @ linear.weight.T
    assert ((y.double() - reference).abs() <= 66 * 2**-24 * (x.double().abs() @ linear.weight.abs().T)).all()


def test_reasons_are_kept_in_the_order_of_the_table() -> None:
    _, declined = first(linears.grouped("gptq", bits=3), N, K, "bfloat16", "cpu")
    assert [name for name, _ in declined] == ["int4pack", "int8pack", "int8_dynamic", "fp8_emulated"]
    assert all(reason for _, reason in declined)


def test_a_layout_of_one_kernel_is_refused_with_a_sentence() -> None:
    with pytest.raises(MlloadError, match="shuffled for one kernel"):
        kernels.select(linears.grouped("awq", layout="gemv_fast"), N, K, torch.bfloat16)


def test_asking_the_table_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from mlload.kernels.selection import first\n"
        "from mlload.quant.spec import Scheme\n"
        "s = Scheme('gptq', 'gptq', 4, 'int', 'group', 128)\n"
        "first(s, 4096, 4096, 'bfloat16', 'cpu'), first(s, 4096, 4096, 'bfloat16', 'cuda', (9, 0))\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
