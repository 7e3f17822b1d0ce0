"""The kernel of every linear and experts layer is the one that vLLM 0.33.0 chose, at every capability."""

from __future__ import annotations

import pytest

from tests.truth_rows import folder, own_rows, public_rows
from tools.kernels_report import compare


def test_configs_of_published_figures() -> None:
    agree, differ, absent = compare(own_rows(), folder)
    assert not differ, "\n".join(differ[:20])
    assert sum(agree.values()) > 2000
    assert not {name for name in absent if not name.endswith(": architecture")}, absent


@pytest.mark.truth
def test_published_configs() -> None:
    agree, differ, _ = compare(public_rows(), folder)
    assert not differ, "\n".join(differ[:20])
    assert sum(agree.values()) > 1000
    assert agree["refused: no FP8 MoE backend"] == 6
