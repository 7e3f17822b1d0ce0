"""GPTQ's zero points against their label (cases 61 and 62)."""

from __future__ import annotations

import pytest

from mlload.validators.quant_tensors import ZeroLabel, gptq_zero_label, symmetric_words


@pytest.mark.parametrize(
    ("bits", "v1", "v2"),
    [(4, 0x77777777, 0x88888888), (8, 0x7F7F7F7F, 0x80808080), (2, 0x55555555, 0xAAAAAAAA)],
)
def test_symmetric_words_of_both_versions(bits: int, v1: int, v2: int) -> None:
    assert symmetric_words(bits, "gptq") == (v1,) and symmetric_words(bits, "gptq_v2") == (v2,)
    assert gptq_zero_label([v1] * 6, bits, True, "gptq") == ZeroLabel("gptq", True, 0)
    assert gptq_zero_label([v2] * 6, bits, True, "gptq") == ZeroLabel("gptq_v2", False, 0)
    assert gptq_zero_label([v2] * 6, bits, True, "gptq_v2") == ZeroLabel("gptq_v2", True, 0)


def test_three_bits_are_one_stream_of_three_words() -> None:
    """32 fields of 0b100: bit 2 of every three, counted over 96 bits."""
    bits = "100" * 32
    expected = tuple(int(bits[96 - 32 * (word + 1) : 96 - 32 * word], 2) for word in range(3))
    assert symmetric_words(3, "gptq_v2") == expected
    assert gptq_zero_label([*expected, *expected], 3, True, "gptq") == ZeroLabel("gptq_v2", False, 0)


def test_signed_words_are_the_same_words() -> None:
    """Case 61: -2004318072 is 0x88888888 as int32."""
    assert gptq_zero_label([-2004318072], 4, True, "gptq").content == "gptq_v2"


def test_one_odd_word_leaves_it_open() -> None:
    assert gptq_zero_label([0x88888888, 0x88888887], 4, True) == ZeroLabel(None, True, 0)
    assert gptq_zero_label([], 4, True) == ZeroLabel(None, True, 0)


def test_asymmetric_words_cannot_tell_and_count_zeros() -> None:
    """v1 stores 5 and 0 as the word 0x50 - 0x11 = 0x3F: undone word by word, the second field is 0 again. The six
    fields above are 1, stored as 0."""
    word = (0x11111150 - 0x11111111) & 0xFFFFFFFF
    assert word == 0x3F
    assert gptq_zero_label([word], 4, False, "gptq") == ZeroLabel(None, True, 1)
    assert gptq_zero_label([0x11111111], 4, False, "gptq_v2") == ZeroLabel(None, True, 0)


def test_planes_are_not_dense() -> None:
    with pytest.raises(ValueError, match="5 bits"):
        gptq_zero_label([0], 5, True)
