"""Words and bytes worked out by hand."""

from __future__ import annotations

import numpy as np

from mlload.quant.formats import awq, bitstream, compressed_tensors, gptq
from mlload.quant.formats.elements import e2m1_table
from mlload.quant.spec import Scheme

AWQ = Scheme("awq", "gemm", 4, "int", "channel", -1, symmetric=False)
GPTQ = Scheme("gptq", "gptq", 4, "int", "channel", -1, symmetric=False)
ROW = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.uint8)
DEQUANTIZED = [-2.5, -3.5, -2, -3.5, -1.5, 0.5, -3, -1]


def unsigned(words: np.ndarray) -> list[int]:
    return [int(word) & 0xFFFFFFFF for word in words.reshape(-1)]


def test_awq_puts_columns_in_its_own_order() -> None:
    # One input row, columns 0..7: nibbles low to high hold 0, 2, 4, 6, 1, 3, 5, 7.
    values = {"weight": np.arange(8, dtype=np.uint8).reshape(8, 1), "scale": np.ones((8, 1), np.float16)}
    stored = awq.pack(AWQ, {**values, "zero": np.zeros((8, 1), np.uint8)})
    assert unsigned(stored["qweight"]) == [0x75316420]
    assert awq.unpack(AWQ, stored, 8, 1)["weight"].reshape(-1).tolist() == list(range(8))


def test_awq_word_and_values() -> None:
    eight = np.full((8, 1), 8, np.uint8)
    stored = awq.pack(AWQ, {"weight": ROW.reshape(8, 1), "scale": np.full((8, 1), 0.5, np.float16), "zero": eight})
    assert stored["qweight"].tolist() == [[1762731331]]
    assert awq.dequantize(AWQ, stored, 8, 1).reshape(-1).tolist() == DEQUANTIZED


def test_gptq_puts_rows_in_order() -> None:
    assert unsigned(bitstream.pack_words(np.arange(8, dtype=np.uint8), 4)) == [0x76543210]


def test_gptq_word_and_values() -> None:
    zero = np.full((8, 1), 8, np.uint8)
    one_row = {"weight": np.tile(ROW, (8, 1)), "scale": np.full((8, 1), 0.5, np.float16), "zero": zero}
    stored = gptq.pack(GPTQ, one_row)
    assert stored["qweight"].tolist() == [[1653937171] * 8]
    assert gptq.dequantize(GPTQ, stored, 8, 8)[0].tolist() == DEQUANTIZED


def test_gptq_symmetric_zero_words() -> None:
    for bits, layout, word in (
        (4, "gptq_v2", -2004318072),
        (4, "gptq", 2004318071),
        (8, "gptq_v2", -2139062144),
        (8, "gptq", 2139062143),
    ):
        scheme = Scheme("gptq", layout, bits, "int", "channel", -1)
        zero = np.full((8, 1), 1 << (bits - 1), np.uint8)
        stored = gptq.pack(
            scheme, {"weight": np.zeros((8, 8), np.uint8), "scale": zero.astype(np.float16), "zero": zero}
        )
        assert set(stored["qzeros"].reshape(-1).tolist()) == {word}, (bits, layout)


def test_compressed_tensors_offsets_by_half_the_range() -> None:
    scheme = Scheme("compressed_tensors", "pack-quantized", 4, "int", "channel", -1)
    stored = compressed_tensors.pack(
        scheme, {"weight": np.arange(-8, 0, dtype=np.int8).reshape(1, 8), "scale": np.ones((1, 1), np.float32)}
    )
    assert unsigned(stored["weight_packed"]) == [0x76543210]


def test_three_bit_stream() -> None:
    codes = (np.arange(32) % 8).astype(np.uint8)
    assert unsigned(bitstream.pack_words(codes, 3)) == [0x88FAC688, 0xC688FAC6, 0xFAC688FA]
    scheme = Scheme("compressed_tensors", "pack-quantized", 3, "int", "channel", -1)
    signed = (codes.astype(np.int8) - 4).reshape(1, 32)
    stored = compressed_tensors.pack(scheme, {"weight": signed, "scale": np.ones((1, 1), np.float32)})
    assert unsigned(stored["weight_packed"]) == [0x88FAC688, 0xC688FAC6, 0xFAC688FA]


def test_fp4_pair() -> None:
    pair = np.array([2, 13], np.uint8)
    assert e2m1_table()[pair].tolist() == [1.0, -3.0]
    assert bitstream.pack_nibbles(pair).tolist() == [0xD2]
    assert bitstream.pack_nibbles(pair, high_first=True).tolist() == [0x2D]


def test_v1_zeros_come_back_word_by_word() -> None:
    # Zero points 0 and 5 as v2 stores them: 0x50. v1 subtracts 0x11 from the whole: 0x3F. Adding 1 to each nibble
    # would give 0x40.
    v2 = np.array([0x50], np.int32)
    v1 = gptq.v2_to_v1(v2, 4)
    assert int(v1[0]) & 0xFF == 0x3F
    assert gptq.v1_to_v2(v1, 4).tolist() == [0x50]
