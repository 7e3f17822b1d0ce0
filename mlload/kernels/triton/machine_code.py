"""Compiles a kernel for a GPU that need not be there, and reads its machine code. Needs triton alone.

    compile_for(kernel, signature, constants, capability) -> the compiled kernel
    measure(compiled) -> Measured: registers, spills, shared memory, and what stands in the main loop
Disassembled by the `cuobjdump` of Triton's own wheel.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# What the 64 integer lanes of a multiprocessor execute. Uniform instructions (U...) run once a warp, elsewhere.
INTEGER = {
    "I2F", "I2FP", "F2FP", "F2F", "LOP3", "SHF", "PRMT", "IMAD", "IADD3", "LEA", "ISETP", "SEL", "MOV", "BFE", "VIADD",
    "IABS", "IMNMX", "VIMNMX",
}  # fmt: skip
MATRIX = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")


class Measured(NamedTuple):
    """registers, spills (bytes of stack and local accesses), shared (bytes a program): of the kernel
    loop, integer, conversions, stores: instructions of the main loop, its integer ones (register moves too),
                                        integer-to-float ones, stores to shared memory
    matrix, from_registers: its matrix instructions by name, and whether the first operand lies in registers
    widths: bits of its loads from memory
    """

    registers: int
    spills: int
    shared: int
    loop: int
    integer: int
    conversions: int
    stores: int
    matrix: dict[str, int]
    from_registers: bool
    widths: tuple[int, ...]


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    capability: int,
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    even: tuple[str, ...] = (),
) -> Any:
    """signature: argument -> "*bf16", "i32", ...; even: integers that are multiples of 16, as the JIT finds out."""
    names = kernel.arg_names
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name not in constants and (signature[name].startswith("*") or name in even)
    }
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def measure(compiled: Any) -> Measured:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _dump("-res-usage", file.name)
        code = _dump("-sass", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    registers, stack = (int(value) for value in found.groups()) if found else (0, 0)
    body = main_loop(code)
    names = [_opcode(line) for line in body]
    matrix = {op: names.count(op) for op in MATRIX if op in names}
    first = next((line for line in body if _opcode(line) in ("HGMMA", "QGMMA", "IGMMA")), "")
    return Measured(
        registers=registers,
        spills=stack + len(re.findall(r"\b(?:LDL|STL)\b", code)),
        shared=compiled.metadata.shared,
        loop=len(body),
        integer=sum(name in INTEGER for name in names),
        conversions=sum(name in ("I2F", "I2FP") for name in names),
        stores=sum(name in ("STS", "STSM") for name in names),
        matrix=matrix,
        # "HGMMA.64x16x16.F32 R24, R4, gdesc[UR8], R24": a register where the first operand stands, not a descriptor.
        from_registers=bool(re.search(r"GMMA\S*\s+R\d+, R\d+, gdesc", first)),
        widths=tuple(sorted({_bits(line) for line in body if _opcode(line) in ("LDG", "LDGSTS")})),
    )


def main_loop(code: str) -> list[str]:
    """Instructions of the widest backward branch that holds a matrix instruction; the widest of all where none does.

    Waits are moved out of line and branch back, over more code than the loop itself."""
    lines = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", code)]
    best: tuple[bool, int] = (False, -1)
    body: list[str] = []
    for at, text in lines:
        target = re.search(r"BRA(?:\.\w+)*\s+.*?(0x[0-9a-f]+)", text)
        start = int(target.group(1), 16) if target else at
        if start >= at:
            continue
        inside = [line for place, line in lines if start <= place <= at]
        found = (any(_opcode(line) in MATRIX for line in inside), at - start)
        if found > best:
            best, body = found, inside
    return body


def _opcode(line: str) -> str:
    words = re.sub(r"^@!?U?P\w+\s+", "", line).split()
    return words[0].split(".")[0] if words else ""


def _bits(line: str) -> int:
    found = re.search(r"\.(128|64|U16|U8|S16|S8)\b", line)
    return {"128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}.get(found.group(1), 32) if found else 32


def _dump(option: str, path: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([str(tool), option, path], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr
