"""A few thousand inputs in every run of the tests; `make fuzz` runs 100,000."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import run
from tests.fuzz.targets import SHARES


@pytest.mark.fuzz
@pytest.mark.parametrize("target", SHARES)
def test_nothing_breaks(target: str) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("gguf")
    broken = run(80 * SHARES[target], seed=1, target=target)
    assert [f"{name} {number}: {found}" for number, name, found in broken] == []
