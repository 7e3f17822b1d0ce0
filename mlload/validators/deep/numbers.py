"""Floating-point formats by their bits: what is a NaN, what is denormal, what value do bits stand for.

Bits are taken without their sign ("magnitude bits"), which order as the values do.
Sources: IEEE 754; OCP 8-bit Floating Point (E4M3, E5M2), OCP Microscaling (E8M0); FNUZ as torch defines it.
"""

from __future__ import annotations

from typing import NamedTuple


class Number(NamedTuple):
    """exponent, mantissa: bits; bias: of the exponent
    nonfinite: the smallest magnitude bits that are infinite or not a number
    infinite:  magnitude bits of infinity, None where there is none
    fnuz:      the only value that is no number is the bits of -0
    signed:    has a sign bit
    """

    exponent: int
    mantissa: int
    bias: int
    nonfinite: int
    infinite: int | None = None
    fnuz: bool = False
    signed: bool = True

    @property
    def nbytes(self) -> int:
        return (self.signed + self.exponent + self.mantissa) // 8

    @property
    def mask(self) -> int:
        """Everything but the sign."""
        return (1 << (self.exponent + self.mantissa)) - 1

    @property
    def normal(self) -> int:
        """The smallest magnitude bits that are not denormal; 0 where the format has no zero and no denormals."""
        return 1 << self.mantissa if self.mantissa else 0

    @property
    def largest(self) -> int:
        """Magnitude bits of the largest finite value."""
        return self.nonfinite - 1

    def value(self, bits: int) -> float:
        """The value of finite magnitude bits."""
        exponent, fraction = bits >> self.mantissa, bits & ((1 << self.mantissa) - 1)
        if self.normal and exponent == 0:
            return float(fraction) * 2.0 ** (1 - self.bias - self.mantissa)
        return (1.0 + fraction / (1 << self.mantissa)) * 2.0 ** (exponent - self.bias)


NUMBERS: dict[str, Number] = {
    "F64": Number(11, 52, 1023, 0x7FF0000000000000, 0x7FF0000000000000),
    "F32": Number(8, 23, 127, 0x7F800000, 0x7F800000),
    "F16": Number(5, 10, 15, 0x7C00, 0x7C00),
    "BF16": Number(8, 7, 127, 0x7F80, 0x7F80),
    "F8_E4M3": Number(4, 3, 7, 0x7F),
    "F8_E5M2": Number(5, 2, 15, 0x7C, 0x7C),
    "F8_E4M3FNUZ": Number(4, 3, 8, 0x80, fnuz=True),
    "F8_E5M2FNUZ": Number(5, 2, 16, 0x80, fnuz=True),
    "F8_E8M0": Number(8, 0, 127, 0xFF, signed=False),
}
