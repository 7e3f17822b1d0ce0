"""Shapes and cuts of stored tensors, against the tables of the formats."""

from __future__ import annotations

import pytest

from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats import effective_bits, roles, spec
from mlload.quant.formats.tensors import Misaligned, Piece, cut, fits, shape, tensor_name, unit
from mlload.quant.spec import Scheme

N, K = 1024, 4096
AWQ = Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False)
GPTQ = Scheme("gptq", "gptq", 4, "int", "group", 128)
CT4 = Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128)
FP8 = Scheme("fp8", "block", 8, "float", "block", 128, (128, 128))


def layout_of(value: object) -> str:
    return f"{value.format}-{value.layout}" if isinstance(value, Scheme) else ""


def shapes(scheme: Scheme, n: int = N, k: int = K, experts: int | None = None) -> dict[str, tuple[int, ...]]:
    return {s.suffix: shape(s, n, k, experts) for s in spec(scheme, n, k, experts=experts)}


# Written from the formats' own tables: suffix -> stored shape for N = 1024, K = 4096.
TABLE = [
    (AWQ, {"qweight": (4096, 128), "qzeros": (32, 128), "scales": (32, 1024)}),
    (
        Scheme("awq", "gemm", 4, "int", "channel", -1, symmetric=False),
        {"qweight": (4096, 128), "qzeros": (1, 128), "scales": (1, 1024)},
    ),
    (
        Scheme("awq", "gemv", 4, "int", "group", 64, symmetric=False),
        {"qweight": (1024, 512), "qzeros": (1024, 8), "scales": (1024, 64)},
    ),
    (
        Scheme("awq", "gemv_fast", 4, "int", "group", 128, symmetric=False),
        {"qweight": (256, 4096), "qzeros": (32, 1024), "scales": (32, 1024)},
    ),
    (GPTQ, {"qweight": (512, 1024), "qzeros": (32, 128), "scales": (32, 1024), "g_idx": (4096,)}),
    (
        Scheme("gptq", "gptq", 8, "int", "group", 32),
        {"qweight": (1024, 1024), "qzeros": (128, 256), "scales": (128, 1024), "g_idx": (4096,)},
    ),
    (
        Scheme("gptq", "gptq", 3, "int", "channel", -1),
        {"qweight": (384, 1024), "qzeros": (1, 96), "scales": (1, 1024), "g_idx": (4096,)},
    ),
    (CT4, {"weight_packed": (1024, 512), "weight_scale": (1024, 32), "weight_shape": (2,)}),
    (
        Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128, symmetric=False),
        {
            "weight_packed": (1024, 512),
            "weight_scale": (1024, 32),
            "weight_zero_point": (128, 32),
            "weight_shape": (2,),
        },
    ),
    (
        Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", -1, activation="dynamic"),
        {"weight": (1024, 4096), "weight_scale": (1024, 1)},
    ),
    (
        Scheme("compressed_tensors", "float-quantized", 8, "float", "block", None, (128, 128)),
        {"weight": (1024, 4096), "weight_scale": (8, 32)},
    ),
    (
        Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16, activation="dynamic"),
        {
            "weight_packed": (1024, 2048),
            "weight_scale": (1024, 256),
            "weight_global_scale": (1,),
            "input_global_scale": (1,),
        },
    ),
    (
        Scheme("compressed_tensors", "mxfp4-pack-quantized", 4, "mx", "group", 32),
        {"weight_packed": (1024, 2048), "weight_scale": (1024, 128)},
    ),
    (FP8, {"weight": (1024, 4096), "weight_scale_inv": (8, 32)}),
    (
        Scheme("fp8", "static", 8, "float", "tensor", activation="static"),
        {"weight": (1024, 4096), "weight_scale": (1,), "input_scale": (1,)},
    ),
    (Scheme("fp8", "fbgemm", 8, "float", "channel"), {"weight": (1024, 4096), "weight_scale": (1024, 1)}),
    (
        Scheme("modelopt", "NVFP4", 4, "float", "tensor_group", 16, activation="static"),
        {"weight": (1024, 2048), "weight_scale": (1024, 256), "weight_scale_2": (1,), "input_scale": (1,)},
    ),
    (
        Scheme("modelopt", "FP8_PB_WO", 8, "float", "block", 128, (128, 128)),
        {"weight": (1024, 4096), "weight_scale": (8, 1, 32, 1)},
    ),
    (Scheme("modelopt", "MXFP8", 8, "mx", "group", 32), {"weight": (1024, 4096), "weight_scale": (1024, 128)}),
    (
        Scheme("quark", "int4", 4, "int", "group", 128, symmetric=False),
        {"weight": (4096, 128), "weight_scale": (32, 1024), "weight_zero_point": (32, 128)},
    ),
    (Scheme("quark", "mxfp6", 6, "mx", "group", 32), {"weight": (1024, 3072), "weight_scale": (1024, 128)}),
    (
        Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64),
        {
            "weight": (2097152, 1),
            "weight.absmax": (65536,),
            "weight.quant_map": (16,),
            "weight.quant_state.bitsandbytes__nf4": (),
        },
    ),
    (
        Scheme("bitsandbytes", "int8", 8, "int", "channel", -1),
        {"weight": (1024, 4096), "SCB": (1024,), "weight_format": ()},
    ),
    (Scheme("gguf", "Q4_K", 4, "int", "group", 256), {"weight": (1024, 2304)}),
    (Scheme("gguf", "Q6_K", 6, "int", "group", 256), {"weight": (1024, 3360)}),
    (Scheme("gguf", "TQ1_0", 2, "int", "group", 256), {"weight": (1024, 864)}),
    (Scheme("gguf", "TQ2_0", 2, "int", "group", 256), {"weight": (1024, 1056)}),
    (
        Scheme("torchao", "int4", 4, "int", "group", 128),
        {"_weight_qdata": (1024, 2048), "_weight_scale": (32, 1024), "_weight_zero_point": (32, 1024)},
    ),
]


@pytest.mark.parametrize(("scheme", "expected"), TABLE, ids=layout_of)
def test_stored_shapes(scheme: Scheme, expected: dict[str, tuple[int, ...]]) -> None:
    assert shapes(scheme) == expected


def test_stacked_experts() -> None:
    scheme = Scheme("mxfp4", "gpt_oss", 4, "mx", "group", 32)
    tensors = spec(scheme, 5760, 2880, bias=True, experts=32)
    assert [(s.suffix, shape(s, 5760, 2880, 32)) for s in tensors] == [
        ("_blocks", (32, 5760, 90, 16)),
        ("_scales", (32, 5760, 90)),
        ("_bias", (32, 5760)),
    ]
    assert tensor_name("m.experts.gate_up_proj", "_blocks") == "m.experts.gate_up_proj_blocks"
    assert tensor_name("m.q_proj", "qweight") == "m.q_proj.qweight"
    assert tensor_name("m.q_proj", "_weight_qdata") == "m.q_proj._weight_qdata"
    # A scale per tensor becomes one per expert.
    static = Scheme("fp8", "tensor", 8, "float", "tensor")
    assert shapes(static, 64, 32, experts=4) == {"weight": (4, 64, 32), "weight_scale": (4,)}


def pieces(scheme: Scheme, axis: str, start: int, stop: int, n: int = N, k: int = K) -> dict[str, object]:
    length = {"N": n, "K": k}[axis]
    return {s.suffix: cut(s, axis, start, stop, length) for s in spec(scheme, n, k)}  # type: ignore[arg-type]


WHOLE = Piece(None, 0, 0)


def test_cuts_of_awq_and_gptq() -> None:
    assert pieces(AWQ, "N", 256, 512) == {
        "qweight": Piece(1, 32, 64),
        "qzeros": Piece(1, 32, 64),
        "scales": Piece(1, 256, 512),
    }
    assert pieces(AWQ, "K", 1024, 2048) == {
        "qweight": Piece(0, 1024, 2048),
        "qzeros": Piece(0, 8, 16),
        "scales": Piece(0, 8, 16),
    }
    assert pieces(GPTQ, "K", 1024, 2048) == {
        "qweight": Piece(0, 128, 256),
        "qzeros": Piece(0, 8, 16),
        "scales": Piece(0, 8, 16),
        "g_idx": Piece(0, 1024, 2048),
    }
    assert pieces(GPTQ, "N", 0, 512)["g_idx"] == WHOLE


def test_cuts_that_leave_scales_whole() -> None:
    act_order = Scheme("gptq", "gptq", 4, "int", "group", 128, act_order=True)
    got = pieces(act_order, "K", 1024, 2048)
    assert got["scales"] == WHOLE and got["qzeros"] == WHOLE
    assert got["qweight"] == Piece(0, 128, 256) and got["g_idx"] == Piece(0, 1024, 2048)
    per_channel = Scheme("gptq", "gptq", 4, "int", "channel", -1)
    got = pieces(per_channel, "K", 8, 16)
    assert got["scales"] == WHOLE and got["qweight"] == Piece(0, 1, 2)
    static = Scheme("fp8", "static", 8, "float", "tensor", activation="static")
    got = pieces(static, "N", 0, 512)
    assert got["weight_scale"] == WHOLE and got["input_scale"] == WHOLE


def test_misaligned_cuts_say_by_how_much() -> None:
    # 29568 wide, groups of 128, two ranks: 14784 % 128 = 64.
    got = pieces(AWQ, "K", 0, 14784, k=29568)
    assert got["qweight"] == Piece(0, 0, 14784)
    assert got["scales"] == Misaligned("scales", "K", 128, 0, 14784)
    assert str(got["scales"]) == "scales holds K in units of 128: 14784 % 128 = 64"
    # Three-bit words: 32 values in 3.
    three = Scheme("gptq", "gptq", 3, "int", "channel", -1)
    assert pieces(three, "K", 32, 64)["qweight"] == Piece(0, 3, 6)
    assert pieces(three, "K", 16, 64)["qweight"] == Misaligned("qweight", "K", 32, 16, 64)
    assert pieces(three, "N", 0, 16)["qzeros"] == Misaligned("qzeros", "N", 32, 0, 16)
    # 64 rows of a block of 128 (a shared expert of 512 over 8 ranks).
    assert pieces(FP8, "N", 64, 128, n=512)["weight_scale_inv"] == Misaligned("weight_scale_inv", "N", 128, 64, 128)


def test_last_part_may_be_ragged() -> None:
    # 576 rows in blocks of 128: five scale rows, the last of 64.
    assert shapes(FP8, 576, 7168)["weight_scale_inv"] == (5, 56)
    assert pieces(FP8, "N", 512, 576, n=576)["weight_scale_inv"] == Piece(0, 4, 5)
    # A dense stream stops at the last word that it needs: 3 bits x 8 values are 1 word.
    ct3 = Scheme("compressed_tensors", "pack-quantized", 3, "int", "channel", -1)
    assert shapes(ct3, 4, 8)["weight_packed"] == (4, 1)
    assert shapes(ct3, 4, 44)["weight_packed"] == (4, 5)


def test_cuts_of_flattened_and_blocked_rows() -> None:
    nf4 = Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64)
    got = pieces(nf4, "N", 512, 1024)
    assert got["weight"] == Piece(0, 1048576, 2097152) and got["weight.absmax"] == Piece(0, 32768, 65536)
    assert str(pieces(nf4, "K", 0, 2048)["weight"]).startswith("weight holds the flattened matrix")
    # 3 rows of 40 values: a block of 64 ends inside a row until 8 rows are taken together.
    assert unit(spec(nf4, 16, 40), "N") == 8
    assert unit(spec(nf4, 16, 40), "K") == 0
    q4k = Scheme("gguf", "Q4_K", 4, "int", "group", 256)
    assert pieces(q4k, "K", 256, 512)["weight"] == Piece(1, 144, 288)
    assert pieces(q4k, "K", 0, 128)["weight"] == Misaligned("weight", "K", 256, 0, 128)
    assert pieces(q4k, "N", 3, 5)["weight"] == Piece(0, 3, 5)


def test_units() -> None:
    assert unit(spec(AWQ, N, K), "K") == 128 and unit(spec(AWQ, N, K), "N") == 8
    assert unit(spec(GPTQ, N, K), "N") == 8
    assert unit(spec(CT4, N, K), "K") == 128 and unit(spec(CT4, N, K), "N") == 1
    odd = Scheme("compressed_tensors", "pack-quantized", 3, "int", "group", 40)
    assert unit(spec(odd, N, K), "K") == 160


def test_one_element_may_be_a_scalar() -> None:
    scale = next(s for s in spec(Scheme("fp8", "tensor", 8, "float", "tensor"), N, K) if s.role == "scale")
    for dims, good in (((), True), ((1,), True), ((2,), False), ((1, 1), False)):
        assert fits(scale, TensorRef("s", "F32", dims, 0, 0, 0), N, K) is good
    q4k = spec(Scheme("gguf", "Q4_K", 4, "int", "group", 256), N, K)[0]
    assert fits(q4k, TensorRef("w", "Q4_K", (N, K), 0, 0, 0), N, K)


# Section 1.3 of the formats' fact sheet.
BITS = [
    (AWQ, 4 + 20 / 128),
    (GPTQ, 4 + 20 / 128),
    (CT4, 4.125),
    (Scheme("gptq", "gptq", 8, "int", "group", 128), 8 + 24 / 128),
    (FP8, 8 + 32 / 16384),
    (Scheme("compressed_tensors", "nvfp4-pack-quantized", 4, "float", "tensor_group", 16), 4.5),
    (Scheme("modelopt", "NVFP4", 4, "float", "tensor_group", 16, activation="static"), 4.5),
    (Scheme("mxfp4", "gpt_oss", 4, "mx", "group", 32), 4.25),
    (Scheme("compressed_tensors", "mxfp8-quantized", 8, "mx", "group", 32), 8.25),
    (Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64), 4.5),
    (
        Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64, options=(("nested_blocksize", 256),)),
        4 + 8 / 64 + 32 / (64 * 256),
    ),
    (Scheme("gguf", "Q4_0", 4, "int", "group", 32), 4.5),
    (Scheme("gguf", "Q4_1", 4, "int", "group", 32), 5.0),
    (Scheme("gguf", "Q8_0", 8, "int", "group", 32), 8.5),
    (Scheme("gguf", "Q4_K", 4, "int", "group", 256), 4.5),
    (Scheme("gguf", "Q6_K", 6, "int", "group", 256), 6.5625),
    (Scheme("gguf", "MXFP4", 4, "mx", "group", 32), 4.25),
    (Scheme("gguf", "TQ1_0", 2, "int", "group", 256), 1.6875),
    (Scheme("gguf", "TQ2_0", 2, "int", "group", 256), 2.0625),
    (Scheme("unquantized", bits=16, kind="none"), 16.0),
]


@pytest.mark.parametrize(("scheme", "bits"), BITS, ids=layout_of)
def test_effective_bits(scheme: Scheme, bits: float) -> None:
    assert effective_bits(scheme) == pytest.approx(bits, abs=1e-4)


def test_roles() -> None:
    found = roles(GPTQ)
    assert found.required == {"qweight", "qzeros", "scales"} and found.optional == {"g_idx"}
    assert found.of["qzeros"] == "zero"
    assert roles(AWQ).required == {"qweight", "qzeros", "scales"}
    assert roles(FP8).required == {"weight", "weight_scale_inv"}
