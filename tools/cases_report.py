#!/usr/bin/env python3
"""Which publicly reported faults hold as tests, by their number in the list that they were collected in.

    python -m tools.cases_report [--output FILE] [--list]

A test holds case N when it is called test_case_N..., when its docstring says "case N", or when it is named below. All
such tests are run; a case holds when every one of its tests passes, and one that is skipped holds nothing.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Section -> (what it is about, its numbers).
SECTIONS: dict[str, tuple[str, tuple[int, ...]]] = {
    "A": ("parallel sizes", (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20)),
    "B": ("config fields", (22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43, 44)),
    "C": ("names", (46, 47, 49, 50, 52, 53, 55, 56, 58, 59)),
    "D": ("tensors and scales", (61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80)),
    "E": ("files", (82, 83, 85, 86, 88, 89, 91, 92, 94, 95, 97, 98, 100, 101)),
    "F": ("dtype, GPU, kernel", (103, 104, 106, 107, 109, 110)),
    "G": ("memory", (112, 113, 115, 116, 118)),
    "H": ("quantizing", (119, 121, 122, 124, 125)),
    "I": ("loading and sharding", (127, 128, 130, 131, 133)),
    "J": ("formats", (134, 136, 137, 139, 140)),
}

DEEP = "tests/validators/deep/test_findings.py"
# Tests that hold a case under another name.
NAMED: dict[int, tuple[str, ...]] = {
    19: ("tests/plan/test_memory_fit.py::test_cases_19_and_20_the_peak_stage_decides",),
    61: (f"{DEEP}::test_zero_points_under_the_other_label",),
    67: (f"{DEEP}::test_zero_block_scales_over_weights_that_are_not",),
    68: (f"{DEEP}::test_experts_that_were_never_calibrated",),
    100: (f"{DEEP}::test_a_flipped_exponent_bit_is_far_too_large",),
    128: (
        "tests/plan/test_plan_segments.py::test_the_ranks_put_the_model_together_again",
        "tests/plan/test_plan_segments.py::test_rows_of_gguf_heads_say_that_they_are_paired",
        "tests/writer/test_round_trips.py::test_merging_the_ranks_gives_the_checkpoint_back",
    ),
    104: (f"{DEEP}::test_near_the_end_of_float16",),
}

# Why no test of `validate` can hold it.
ELSEWHERE: dict[int, str] = {
    119: "quantize: the writer streams, measured under a memory limit",
    121: "quantize: the peak is estimated before the work begins",
    122: "quantize: as many layers written as were planned, else a non-zero exit",
    124: "quantize: an old quantization_config is merged, tensors left alone stay byte-identical",
    125: "quantize: no dependency on a library that ended; its output is read (the AWQ format's own tests)",
    127: "shard: a folder names the engine and version that it was cut for",
    131: "loading: a measurement, no rule",
    133: "shard: small files are put together again; no rule says when they are too small",
}


class Held(NamedTuple):
    """A test that claims a case."""

    case: int
    test: str


def claims() -> list[Held]:
    """Every test function that names a case."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            test = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
            found += [Held(number, test) for number in numbers(node)]
    known = {held.test for held in found}
    return found + [Held(case, test) for case, tests in NAMED.items() for test in tests if test not in known]


def numbers(node: ast.FunctionDef) -> set[int]:
    """test_case_47_and_49_..., or "(cases 77 and 139)" in the docstring."""
    named = re.match(r"test_cases?_((?:\d+_(?:and_)?)+)", node.name)
    said = re.findall(r"\b[Cc]ases? (\d+(?:(?:, | and )\d+)*)", ast.get_docstring(node) or "")
    return {int(number) for text in [named[1] if named else "", *said] for number in re.findall(r"\d+", text)}


class Outcomes:
    """Collects what became of each test function."""

    def __init__(self) -> None:
        self.of: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.of[report.nodeid.split("[")[0]].add(report.outcome)


def lines(held: list[Held], outcomes: Outcomes) -> list[str]:
    by_case: defaultdict[int, list[str]] = defaultdict(list)
    for entry in held:
        by_case[entry.case].append(entry.test)
    out, holding, total = [], 0, 0
    for letter, (about, cases) in SECTIONS.items():
        out += ["", f"{letter}. {about}"]
        for case in cases:
            total += 1
            tests = sorted(set(by_case[case]))
            results = set().union(*(outcomes.of[test] or {"not run"} for test in tests)) if tests else set()
            if results == {"passed"}:
                word, holding = "holds", holding + 1
            elif results:
                word = "DOES NOT HOLD: " + ", ".join(sorted(results - {"passed"}))
            else:
                word = f"elsewhere: {ELSEWHERE[case]}" if case in ELSEWHERE else "no test"
            out.append(f"  {case:4}  {word}")
            out += [f"          {test}" for test in tests]
    return [f"{holding} of {total} reported faults hold", *out]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the report there too")
    parser.add_argument("--list", action="store_true", help="only which tests there are, without running them")
    args = parser.parse_args()
    held, outcomes = claims(), Outcomes()
    tests = sorted({entry.test for entry in held})
    if args.list:
        print("\n".join(f"{entry.case:4} {entry.test}" for entry in sorted(held)))
        return 0
    pytest.main(["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", *tests], plugins=[outcomes])
    report = lines(held, outcomes)
    print("\n".join(report))
    if args.output:
        args.output.write_text("\n".join(report) + "\n", encoding="utf-8")
    return 1 if any("DOES NOT" in line for line in report) else 0


if __name__ == "__main__":
    sys.exit(main())
