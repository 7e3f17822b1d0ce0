"""The inline PTX, evaluated over every word, says what its plain twin says.

The interpreter cannot run PTX, so its few instructions are evaluated here by their definitions: lop3 by its truth
table, shifts on 32 bits, fma on packed halves in float64 (exact for these operands) with one rounding at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mlload.kernels.triton.decode import PAIR_BF16, PAIR_F16, PTX_TABLE

Words = NDArray[np.uint32]
ALL = np.arange(65536, dtype=np.uint32)
# Both halves of the register hold every word, in different company.
PAIRS = ALL | (ALL[::-1] << 16)


def evaluate(code: str, outputs: int, inputs: list[Words]) -> list[Words]:
    """Registers $0 .. $(outputs - 1) after the block, given the ones that follow."""
    registers: dict[str, Words] = {f"${outputs + i}": value for i, value in enumerate(inputs)}

    def read(operand: str) -> Words:
        return registers[operand] if operand in registers else np.uint32(int(operand, 0))

    for line in code.strip().strip("{}").split(";"):
        line = line.strip()
        if not line or line.startswith(".reg"):
            continue
        op, _, rest = line.partition(" ")
        target, *operands = [part.strip() for part in rest.split(",")]
        registers[target] = OPS[op](*(read(operand) for operand in operands))
    return [registers[f"${i}"] for i in range(outputs)]


def lop3(a: Words, b: Words, c: Words, table: Any) -> Words:
    """Bit i of the table is the result for a, b, c = the bits of i, a the highest."""
    total = np.zeros_like(a | b | c)
    for i in range(8):
        if int(table) >> i & 1:
            total |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return total


def permuted(a: Words, b: Words, order: int) -> Words:
    """Byte i of the result is the byte of b, a (counted from a's lowest) that nibble i of the order names."""
    both = a.astype(np.uint64) | (np.uint64(int(b)) << np.uint64(32))
    total = np.zeros_like(both)
    for i in range(4):
        nibble = order >> (4 * i) & 15
        assert nibble < 8, "no sign is spread"
        total |= ((both >> np.uint64(8 * nibble)) & np.uint64(255)) << np.uint64(8 * i)
    return total.astype(np.uint32)


def packed_fma(dtype: torch.dtype) -> Callable[..., Words]:
    def half(words: Words, shift: int) -> Any:
        bits = ((words >> np.uint32(shift)) & 0xFFFF).astype(np.uint16).reshape(-1)
        return torch.from_numpy(bits.view(np.int16)).view(dtype).double()

    def fma(a: Words, b: Words, c: Words) -> Words:
        a, b, c = np.broadcast_arrays(a, b, c)
        halves = []
        for shift in (0, 16):
            value = (half(a, shift) * half(b, shift) + half(c, shift)).to(dtype)
            halves.append(value.view(torch.int16).numpy().view(np.uint16).astype(np.uint32))
        result: Words = halves[0] | (halves[1] << np.uint32(16))
        return result

    return fma


OPS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "lop3.b32": lop3,
    "prmt.b32": lambda a, b, order: permuted(a, b, int(order)),
    "fma.rn.bf16x2": packed_fma(torch.bfloat16),
    "fma.rn.f16x2": packed_fma(torch.float16),
}


def expected(code: str, field: NDArray[np.uint32], zero: int) -> torch.Tensor:
    """What a code stands for, by the format's definition."""
    if code in ("int4", "int8"):
        return torch.from_numpy(field.astype(np.int64) - zero).double()
    if code == "e4m3":
        return torch.from_numpy(field.astype(np.uint8)).view(torch.float8_e4m3fn).double()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    return torch.cat([table, -table])[torch.from_numpy(field.astype(np.int64))]


def bias_word(code: str, zero: int, bf16: bool) -> int:
    """What `decode._bias` hands over: the magic number and the zero point; of int8 in bf16, 128 less the zero point."""
    value = 1024.0 + zero if not bf16 else 128.0 + zero if code == "int4" else 128.0 - zero
    bits = torch.tensor(value, dtype=torch.bfloat16 if bf16 else torch.float16).view(torch.int16).item() & 0xFFFF
    return bits | bits << 16


@pytest.mark.parametrize(("ptx", "bf16"), [(PAIR_BF16, True), (PAIR_F16, False)])
def test_zero_points_of_any_word(ptx: Any, bf16: bool) -> None:
    """A scale may stand above the zero point."""
    words = np.arange(256, dtype=np.uint32) | np.uint32(0x3C80A500)
    (found,) = evaluate("{" + ptx.value + "}", 1, [words])
    most = 128 if bf16 else 256
    assert found[:most].tolist() == [bias_word("int4", zero, bf16) for zero in range(most)]


@pytest.mark.parametrize("key", PTX_TABLE, ids=lambda key: f"{key[0]}{'-zero' * key[1]}-{'bf16' if key[2] else 'f16'}")
def test_every_word(key: tuple[str, bool, bool]) -> None:
    code, has_zero, bf16 = key
    bits = 4 if code in ("int4", "e2m1") else 8
    dtype = torch.bfloat16 if bf16 else torch.float16
    middle = 1 << (bits - 1)
    for zero in (0, (1 << bits) - 1) if has_zero else (middle,):
        inputs = [PAIRS]
        if has_zero:
            inputs.append(np.full_like(PAIRS, bias_word(code, zero, bf16)))
        planes = evaluate(PTX_TABLE[key], 16 // bits, inputs)
        for plane, registers in enumerate(planes):
            for shift in (0, 16):
                word = (PAIRS >> np.uint32(shift)) & 0xFFFF
                field = (word >> np.uint32(plane * bits)) & np.uint32((1 << bits) - 1)
                found = torch.from_numpy(((registers >> np.uint32(shift)) & 0xFFFF).astype(np.uint16).view(np.int16))
                wanted = expected(code, field, zero)
                # e4m3's NaN codes read as 480 and are answered for by the scale.
                wanted = torch.where(wanted.isnan(), torch.where(torch.from_numpy(field > 127), -480.0, 480.0), wanted)
                assert torch.equal(found.view(dtype).double(), wanted)
                signs = torch.from_numpy(field.astype(np.int64) >> (bits - 1)).bool()
                if code in ("e4m3", "e2m1"):
                    assert torch.equal(found < 0, signs), "the sign of zero is kept"
