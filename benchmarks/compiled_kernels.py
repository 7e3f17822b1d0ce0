"""Compiles every shipped kernel for every target without a GPU and writes the table of what came out.

    python -m benchmarks.compiled_kernels [--only TEXT] [--target 90] [--out benchmarks/results/compiled.json]

With --only or --target the other rows of the file stay. Needs triton alone (no torch): run it under each release that
is supported, the one of the tests and 3.6 (compiled_triton36.json).
One row a kernel and target: registers, spills, shared memory, widths of loads, matrix instructions, and main-loop
instructions per weight. tests/kernels/test_compiled.py holds them to thresholds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

HERE = Path(__file__).parent / "results"


def compile_all(only: str = "", target: int | None = None) -> list[dict[str, Any]]:
    from mlload.kernels.triton.machine_code import compile_for, measure
    from mlload.kernels.triton.shipped import cases

    rows = []
    for case in cases():
        if only not in case.name:
            continue
        for capability in case.targets:
            if target not in (None, capability):
                continue
            compiled = compile_for(
                case.kernel,
                case.signature,
                case.constants,
                capability,
                num_warps=case.warps_on(capability),
                num_stages=case.stages,
                even=case.even,
            )
            found = measure(compiled)
            row: dict[str, Any] = {"kernel": case.name, "sm": capability, **found._asdict()}
            row["in_flight"] = (case.stages - 1) * weight_bytes(case)
            if case.weights:
                each = case.weights / (32 * case.warps_on(capability))
                row["per_weight"] = round(found.loop / each, 2)
                row["integer_per_weight"] = round(found.integer / each, 2)
            rows.append(row)
            print(text(row), file=sys.stderr)
    return rows


def weight_bytes(case: Any) -> int:
    """Bytes of one tile of weights."""
    bits = {"int4": 4, "e2m1": 4, "float": 16}.get(case.constants.get("CODE"), 8)
    return int(case.weights * bits // 8)


def text(row: dict[str, Any]) -> str:
    matrix = " ".join(f"{count} {name}" for name, count in row["matrix"].items()) or "-"
    counts = f"{row['per_weight']:5.2f} {row['integer_per_weight']:5.2f}" if "per_weight" in row else "          -"
    return (
        f"{row['kernel']:32} sm_{row['sm']:<4}{row['registers']:4} {row['spills']:4} {row['shared']:7} {counts} "
        f"{row['conversions']:3} {row['stores']:3} {','.join(map(str, row['widths'])):14} {matrix}"
        f"{' from registers' if row['from_registers'] else ''}"
    )


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The old table with the rows that were compiled again, and with those of kernels that it did not have."""
    from mlload.kernels.triton.shipped import cases

    known = {(row["kernel"], row["sm"]): row for row in (*old, *new)}
    order = [(case.name, capability) for case in cases() for capability in case.targets]
    return [known[key] for key in order if key in known]


HEAD = (
    f"{'kernel':32} {'target':7}{'reg':>4} {'spill':>4} {'shared':>6} {'ins':>5} {'int':>5} {'i2f':>3} {'sts':>3} "
    f"{'load bits':14} matrix instructions in the main loop\n"
    "ins, int: instructions and integer instructions of the main loop per weight; i2f: integer-to-float conversions "
    "and sts: stores to shared memory in it\n"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--target", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    import triton

    started = time.time()
    rows = compile_all(arguments.only, arguments.target)
    print(f"{len(rows)} kernels in {time.time() - started:.0f} s", file=sys.stderr)
    if arguments.out is None:
        print(json.dumps({"triton": triton.__version__, "rows": rows}))
        return
    if arguments.only or arguments.target:
        rows = merged(json.loads(arguments.out.read_text())["rows"], rows)
    result = {"triton": triton.__version__, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    table = HEAD + "\n".join(text(row) for row in rows) + "\n"
    arguments.out.with_suffix(".txt").write_text(f"triton {triton.__version__}\n{table}")


if __name__ == "__main__":
    main()
