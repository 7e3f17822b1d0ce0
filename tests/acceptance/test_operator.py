"""What the acceptance supplies for 4-bit layers computes what vLLM's own operator computes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tools.vllm_cpu import python, ready

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
COMPARED = Path(__file__).with_name("compare_operator.py")


def test_the_stand_in_is_the_operator() -> None:
    """No engine is started. bf16 keeps 8 bits, and the sums of 128 products are added in another order."""
    if not ready():
        pytest.skip("no vLLM on this machine: python -m tools.vllm_cpu")
    done = subprocess.run([python(), COMPARED], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if not found["has"]:
        pytest.skip("this CPU's vLLM has no operator to compare with")
    assert found["error"] < 0.01
