"""CI is held to eight starts of a real vLLM."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.damages import CASES, IN_CI
from tests.engine_vllm.test_real_engine import STARTS

WRITERS = Path(__file__).parents[1] / "writer" / "test_sharded_state.py"
OF_THE_WRITER = 2  # the whole model, and three ranks of it


def test_starts_of_the_engine_in_ci() -> None:
    assert set(IN_CI) <= {case.name for case in CASES}
    assert "for tp in (1, 3) if everything() else (3,):" in WRITERS.read_text()
    assert len(IN_CI) + sum(start.in_ci for start in STARTS) + OF_THE_WRITER <= 8
