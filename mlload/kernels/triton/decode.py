"""Codes -> 16-bit floats, in registers: a fast form in PTX and a plain twin for each.

A word of 16 bits holds one code of each plane, lowest bits first (`planes`). The PTX takes two words at a time and
makes one packed pair a plane. All results are exact: integers below 256, e2m1 and e4m3 have at most 8 significant
bits, bf16's own.
    int4  bf16: bits 0x4300 | q are 128 + q; a fused multiply-add takes off 128 + zero. fp16: 0x6400 | q is 1024 + q
    int8  bf16: 0x4300 | (q & 127) is 128 + (q & 127); what has to go is 128 or 256, by the top bit
    e4m3, e2m1: the fields are moved to where the wider format has them, and a product with a power of two mends the
          exponent's bias, subnormals included. e4m3's NaN is not seen here: see `weight_only.pack_elements`
The interpreter cannot run PTX, so tests run the twins, and evaluate the PTX over every word against them.
Sources: the magic numbers are FasterTransformer's and Marlin's idea; instructions counted from compiled code.
"""

from __future__ import annotations

import triton
import triton.language as tl

INT4_BF16 = """{
.reg .b32 t, o, b;
mov.b32 o, 0x3f803f80;
mov.b32 b, 0xc308c308;
lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
shr.u32 t, $4, 4;
lop3.b32 $1, t, 0x000f000f, 0x43004300, 0xea;
shr.u32 t, $4, 8;
lop3.b32 $2, t, 0x000f000f, 0x43004300, 0xea;
shr.u32 t, $4, 12;
lop3.b32 $3, t, 0x000f000f, 0x43004300, 0xea;
fma.rn.bf16x2 $0, $0, o, b;
fma.rn.bf16x2 $1, $1, o, b;
fma.rn.bf16x2 $2, $2, o, b;
fma.rn.bf16x2 $3, $3, o, b;
}"""
INT4_BF16_ZERO = """{
.reg .b32 t, o;
mov.b32 o, 0xbf80bf80;
lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
shr.u32 t, $4, 4;
lop3.b32 $1, t, 0x000f000f, 0x43004300, 0xea;
shr.u32 t, $4, 8;
lop3.b32 $2, t, 0x000f000f, 0x43004300, 0xea;
shr.u32 t, $4, 12;
lop3.b32 $3, t, 0x000f000f, 0x43004300, 0xea;
fma.rn.bf16x2 $0, $5, o, $0;
fma.rn.bf16x2 $1, $5, o, $1;
fma.rn.bf16x2 $2, $5, o, $2;
fma.rn.bf16x2 $3, $5, o, $3;
}"""
INT4_F16 = """{
.reg .b32 t, o, b, c, s;
mov.b32 o, 0x3c003c00;
mov.b32 b, 0xe408e408;
mov.b32 s, 0x2c002c00;
mov.b32 c, 0xd480d480;
lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
lop3.b32 $1, $4, 0x00f000f0, 0x64006400, 0xea;
shr.u32 t, $4, 8;
lop3.b32 $2, t, 0x000f000f, 0x64006400, 0xea;
lop3.b32 $3, t, 0x00f000f0, 0x64006400, 0xea;
fma.rn.f16x2 $0, $0, o, b;
fma.rn.f16x2 $1, $1, s, c;
fma.rn.f16x2 $2, $2, o, b;
fma.rn.f16x2 $3, $3, s, c;
}"""
INT4_F16_ZERO = """{
.reg .b32 t, o;
mov.b32 o, 0xbc00bc00;
lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
shr.u32 t, $4, 4;
lop3.b32 $1, t, 0x000f000f, 0x64006400, 0xea;
shr.u32 t, $4, 8;
lop3.b32 $2, t, 0x000f000f, 0x64006400, 0xea;
shr.u32 t, $4, 12;
lop3.b32 $3, t, 0x000f000f, 0x64006400, 0xea;
fma.rn.f16x2 $0, $5, o, $0;
fma.rn.f16x2 $1, $5, o, $1;
fma.rn.f16x2 $2, $5, o, $2;
fma.rn.f16x2 $3, $5, o, $3;
}"""
INT8_BF16 = """{
.reg .b32 t, o, b;
mov.b32 o, 0x3f803f80;
lop3.b32 $0, $2, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, $2, 0x00800080, 0xc380c380, 0x6a;
fma.rn.bf16x2 $0, $0, o, b;
shr.u32 t, $2, 8;
lop3.b32 $1, t, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, t, 0x00800080, 0xc380c380, 0x6a;
fma.rn.bf16x2 $1, $1, o, b;
}"""
INT8_BF16_ZERO = """{
.reg .b32 t, o, b;
mov.b32 o, 0x3f803f80;
lop3.b32 $0, $2, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, $2, 0x00800080, 0xc380c380, 0x6a;
fma.rn.bf16x2 $0, $0, o, b;
fma.rn.bf16x2 $0, $0, o, $3;
shr.u32 t, $2, 8;
lop3.b32 $1, t, 0x007f007f, 0x43004300, 0xea;
lop3.b32 b, t, 0x00800080, 0xc380c380, 0x6a;
fma.rn.bf16x2 $1, $1, o, b;
fma.rn.bf16x2 $1, $1, o, $3;
}"""
INT8_F16 = """{
.reg .b32 t, o, b;
mov.b32 o, 0x3c003c00;
mov.b32 b, 0xe480e480;
lop3.b32 $0, $2, 0x00ff00ff, 0x64006400, 0xea;
shr.u32 t, $2, 8;
lop3.b32 $1, t, 0x00ff00ff, 0x64006400, 0xea;
fma.rn.f16x2 $0, $0, o, b;
fma.rn.f16x2 $1, $1, o, b;
}"""
INT8_F16_ZERO = """{
.reg .b32 t, o;
mov.b32 o, 0xbc00bc00;
lop3.b32 $0, $2, 0x00ff00ff, 0x64006400, 0xea;
shr.u32 t, $2, 8;
lop3.b32 $1, t, 0x00ff00ff, 0x64006400, 0xea;
fma.rn.f16x2 $0, $3, o, $0;
fma.rn.f16x2 $1, $3, o, $1;
}"""
# x * 2**120 and x * 2**8: a product is a fused multiply-add with -0, which keeps the sign of zero.
E4M3_BF16 = """{
.reg .b32 t, u, m, z;
mov.b32 m, 0x7b807b80;
mov.b32 z, 0x80008000;
shl.b32 t, $2, 4;
shl.b32 u, $2, 8;
and.b32 t, t, 0x07f007f0;
lop3.b32 $0, u, 0x80008000, t, 0xea;
shr.u32 t, $2, 4;
and.b32 t, t, 0x07f007f0;
lop3.b32 $1, $2, 0x80008000, t, 0xea;
fma.rn.bf16x2 $0, $0, m, z;
fma.rn.bf16x2 $1, $1, m, z;
}"""
E4M3_F16 = """{
.reg .b32 t, u, m, z;
mov.b32 m, 0x5c005c00;
mov.b32 z, 0x80008000;
shl.b32 t, $2, 7;
shl.b32 u, $2, 8;
and.b32 t, t, 0x3f803f80;
lop3.b32 $0, u, 0x80008000, t, 0xea;
shr.u32 t, $2, 1;
and.b32 t, t, 0x3f803f80;
lop3.b32 $1, $2, 0x80008000, t, 0xea;
fma.rn.f16x2 $0, $0, m, z;
fma.rn.f16x2 $1, $1, m, z;
}"""
E2M1_BF16 = """{
.reg .b32 t, u, m, z;
mov.b32 m, 0x7e807e80;
mov.b32 z, 0x80008000;
shl.b32 t, $4, 6;
shl.b32 u, $4, 12;
and.b32 t, t, 0x01c001c0;
lop3.b32 $0, u, 0x80008000, t, 0xea;
shl.b32 t, $4, 2;
shl.b32 u, $4, 8;
and.b32 t, t, 0x01c001c0;
lop3.b32 $1, u, 0x80008000, t, 0xea;
shr.u32 t, $4, 2;
shl.b32 u, $4, 4;
and.b32 t, t, 0x01c001c0;
lop3.b32 $2, u, 0x80008000, t, 0xea;
shr.u32 t, $4, 6;
and.b32 t, t, 0x01c001c0;
lop3.b32 $3, $4, 0x80008000, t, 0xea;
fma.rn.bf16x2 $0, $0, m, z;
fma.rn.bf16x2 $1, $1, m, z;
fma.rn.bf16x2 $2, $2, m, z;
fma.rn.bf16x2 $3, $3, m, z;
}"""
E2M1_F16 = """{
.reg .b32 t, u, m, z;
mov.b32 m, 0x74007400;
mov.b32 z, 0x80008000;
shl.b32 t, $4, 9;
shl.b32 u, $4, 12;
and.b32 t, t, 0x0e000e00;
lop3.b32 $0, u, 0x80008000, t, 0xea;
shl.b32 t, $4, 5;
shl.b32 u, $4, 8;
and.b32 t, t, 0x0e000e00;
lop3.b32 $1, u, 0x80008000, t, 0xea;
shl.b32 t, $4, 1;
shl.b32 u, $4, 4;
and.b32 t, t, 0x0e000e00;
lop3.b32 $2, u, 0x80008000, t, 0xea;
shr.u32 t, $4, 3;
and.b32 t, t, 0x0e000e00;
lop3.b32 $3, $4, 0x80008000, t, 0xea;
fma.rn.f16x2 $0, $0, m, z;
fma.rn.f16x2 $1, $1, m, z;
fma.rn.f16x2 $2, $2, m, z;
fma.rn.f16x2 $3, $3, m, z;
}"""


# The first operand's lowest byte under 0x43 or 0x64, twice: 128 + zero in bf16, 1024 + zero in fp16. An instruction
# holds one constant, the order here; the other is the one that codes meet, which stands in a register already.
PAIR_BF16 = tl.constexpr("prmt.b32 $0, $1, 0x43004300, 0x5050;")
PAIR_F16 = tl.constexpr("prmt.b32 $0, $1, 0x64006400, 0x5050;")

# (code, with zero points, bf16) -> PTX.
PTX_TABLE = {
    ("int4", False, True): INT4_BF16,
    ("int4", True, True): INT4_BF16_ZERO,
    ("int4", False, False): INT4_F16,
    ("int4", True, False): INT4_F16_ZERO,
    ("int8", False, True): INT8_BF16,
    ("int8", True, True): INT8_BF16_ZERO,
    ("int8", False, False): INT8_F16,
    ("int8", True, False): INT8_F16_ZERO,
    ("e4m3", False, True): E4M3_BF16,
    ("e4m3", False, False): E4M3_F16,
    ("e2m1", False, True): E2M1_BF16,
    ("e2m1", False, False): E2M1_F16,
}


@triton.constexpr_function
def ptx(code: str, zero: bool, dtype: tl.dtype) -> str:
    return PTX_TABLE[code, bool(zero), dtype == tl.bfloat16]


@triton.jit
def decode_words(q, zero, CODE: tl.constexpr, ZERO: tl.constexpr, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """Words uint16 [rows, P] -> one DTYPE [rows, P] a plane.

    zero: zero points [rows] where ZERO, else not read: of int4 the lowest byte of any integer, of int8 uint8.
    """
    if PTX:
        if CODE == "int4" or CODE == "e2m1":
            if ZERO:
                bias = tl.broadcast_to(_bias(zero, CODE, DTYPE)[:, None], q.shape)
                if tl.bfloat16 == DTYPE:
                    return tl.inline_asm_elementwise(
                        ptx(CODE, ZERO, DTYPE),
                        "=r,=r,=r,=r,r,r,r",
                        [q, bias],
                        (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                        True,
                        2,
                    )
                else:
                    return tl.inline_asm_elementwise(
                        ptx(CODE, ZERO, DTYPE),
                        "=r,=r,=r,=r,r,r,r",
                        [q, bias],
                        (tl.float16, tl.float16, tl.float16, tl.float16),
                        True,
                        2,
                    )
            elif tl.bfloat16 == DTYPE:
                return tl.inline_asm_elementwise(
                    ptx(CODE, ZERO, DTYPE),
                    "=r,=r,=r,=r,r",
                    [q],
                    (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
                    True,
                    2,
                )
            else:
                return tl.inline_asm_elementwise(
                    ptx(CODE, ZERO, DTYPE),
                    "=r,=r,=r,=r,r",
                    [q],
                    (tl.float16, tl.float16, tl.float16, tl.float16),
                    True,
                    2,
                )
        elif ZERO:
            bias = tl.broadcast_to(_bias(zero, CODE, DTYPE)[:, None], q.shape)
            if tl.bfloat16 == DTYPE:
                return tl.inline_asm_elementwise(
                    ptx(CODE, ZERO, DTYPE), "=r,=r,r,r,r", [q, bias], (tl.bfloat16, tl.bfloat16), True, 2
                )
            else:
                return tl.inline_asm_elementwise(
                    ptx(CODE, ZERO, DTYPE), "=r,=r,r,r,r", [q, bias], (tl.float16, tl.float16), True, 2
                )
        elif tl.bfloat16 == DTYPE:
            return tl.inline_asm_elementwise(
                ptx(CODE, ZERO, DTYPE), "=r,=r,r", [q], (tl.bfloat16, tl.bfloat16), True, 2
            )
        else:
            return tl.inline_asm_elementwise(ptx(CODE, ZERO, DTYPE), "=r,=r,r", [q], (tl.float16, tl.float16), True, 2)
    else:
        if CODE == "int4" or CODE == "e2m1":
            return (
                plain(q & 15, zero, CODE, ZERO, DTYPE),
                plain((q >> 4) & 15, zero, CODE, ZERO, DTYPE),
                plain((q >> 8) & 15, zero, CODE, ZERO, DTYPE),
                plain((q >> 12) & 15, zero, CODE, ZERO, DTYPE),
            )
        else:
            return (plain(q & 255, zero, CODE, ZERO, DTYPE), plain((q >> 8) & 255, zero, CODE, ZERO, DTYPE))


@triton.jit
def _bias(zero, CODE: tl.constexpr, DTYPE: tl.constexpr):
    """Twice in a word: what the PTX takes off, the magic number and the zero point; of int8 in bf16 what it adds."""
    if CODE == "int4" or tl.float16 == DTYPE:
        wide = zero.to(tl.int32)
        if tl.bfloat16 == DTYPE:
            return tl.inline_asm_elementwise(PAIR_BF16, "=r,r", [wide], tl.int32, True, 1)
        else:
            return tl.inline_asm_elementwise(PAIR_F16, "=r,r", [wide], tl.int32, True, 1)
    else:
        one = (128.0 - zero.to(tl.float32)).to(tl.bfloat16).to(tl.uint16, bitcast=True)
        return one.to(tl.int32) * 0x10001


@triton.jit
def plain(code, zero, CODE: tl.constexpr, ZERO: tl.constexpr, DTYPE: tl.constexpr):
    """One plane's codes, uint16 [rows, P], in plain Triton."""
    if CODE == "int4":
        value = code.to(tl.float32)
        if ZERO:
            value -= (zero & 255).to(tl.float32)[:, None]
        else:
            value -= 8.0
    elif CODE == "int8":
        value = code.to(tl.float32)
        if ZERO:
            value -= zero.to(tl.float32)[:, None]
        else:
            value -= 128.0
    elif CODE == "e2m1":
        bits = ((code.to(tl.uint32) & 7) << 22) | ((code.to(tl.uint32) & 8) << 28)
        value = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
    else:
        value = e4m3_bits(code)
    return value.to(DTYPE)


@triton.jit
def e4m3_bits(code):
    """e4m3 bytes (any unsigned type) -> float32, without the hardware's conversion; NaN reads as 480."""
    wide = code.to(tl.uint32)
    bits = ((wide & 127) << 20) | ((wide & 128) << 24)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def encode_e4m3(value):
    """float32 -> e4m3 bytes, to nearest even, saturating at 448, NaN kept: for GPUs without the conversion."""
    bits = value.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    # Normal: round 23 mantissa bits to 3, then move the bias from 127 to 7. Overflow of the mantissa carries on.
    rounded = size + 0x7FFFF + ((size >> 20) & 1)
    normal = (rounded >> 20) - (120 << 3)
    # Below 2**-6: adding 2**14 leaves multiples of 2**-9 in the mantissa's last bits, rounded by the adder.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(size < 0x3C800000, small, normal)
    code = tl.where(size > 0x43E00000, 0x7E, code)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (sign | code).to(tl.uint8)
