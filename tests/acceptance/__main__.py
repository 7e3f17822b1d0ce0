"""Ask a real vLLM and `mlload validate` about the real model, damaged in every way of damages.py.

    python -m tests.acceptance [WORDS]     all damages, or those whose name holds one of the words

Needs `python -m tools.vllm_cpu` and `python -m tools.real_model smollm2`. A full run is kept in benchmarks/results.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.acceptance.damages import CASES
from tests.acceptance.judges import ask
from tests.acceptance.report import rows, text
from tools.real_model import smollm2
from tools.vllm_cpu import PROFILE, VLLM_CPU, ready

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def main() -> int:
    if not ready():
        raise SystemExit("no vLLM here: python -m tools.vllm_cpu makes it")
    words = sys.argv[1:]
    cases = [case for case in CASES if not words or any(word in case.name for word in words)]
    began = time.monotonic()
    answers = ask(cases, smollm2())
    head = f"{VLLM_CPU} on this CPU against mlload validate --engine {PROFILE}, {time.monotonic() - began:.0f} s\n\n"
    report = head + text(answers)
    print(report, end="")
    if not words:
        (RESULTS / "acceptance.txt").write_text(report)
        record = {"engine": VLLM_CPU, "profile": PROFILE, "cases": rows(answers)}
        (RESULTS / "acceptance.json").write_text(json.dumps(record, indent=1) + "\n")
    else:
        print(json.dumps(rows(answers), indent=1))
    return 0 if all(answer.agree or answer.case.apart for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
