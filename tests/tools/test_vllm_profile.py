"""The generator reads a release as text: facts with the line that they stand on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import vllm_profile
from tools.vllm_profile import Release, assigned, fact, literal


@pytest.fixture
def release(tmp_path: Path) -> Release:
    package = tmp_path / "vllm"
    (package / "config").mkdir(parents=True)
    (package / "config" / "model.py").write_text('X = 1\n\nREFUSED = {\n    "gemma9": "unstable",\n}\n')
    meta = tmp_path / "vllm-9.9.9.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Name: vllm\nVersion: 9.9.9\nRequires-Dist: transformers<6,>=5.16.1\n")
    return Release(tmp_path, "vllm")


def test_version_and_requirements_come_from_the_metadata(release: Release) -> None:
    assert release.field("Version") == "9.9.9"
    assert release.requires("transformers") == "<6,>=5.16.1"


def test_a_fact_keeps_file_and_line(release: Release) -> None:
    value, line = assigned(release.tree("config/model.py"), "REFUSED")
    assert fact(sorted(literal(value)), "config/model.py", line) == {
        "value": ["gemma9"],
        "source": "config/model.py:3",
    }


def test_what_is_gone_from_a_release_is_an_error_not_a_guess(release: Release) -> None:
    with pytest.raises(KeyError):
        assigned(release.tree("config/model.py"), "NOT_THERE")


def test_names_stand_for_themselves() -> None:
    tree = ast.parse("x = [torch.half, Platform.CUDA, 4, 'a', frozenset({90})]")
    value, _ = assigned(tree, "x")
    assert literal(value) == ["half", "CUDA", 4, "a", [90]]


def test_the_wheel_is_never_imported() -> None:
    source = Path(vllm_profile.__file__).read_text()
    names = {alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import) for alias in node.names}
    assert "vllm" not in names and "importlib" not in names


def test_a_model_file_that_is_built_with_one_activation(release: Release) -> None:
    release.texts["model_executor/models/one.py"] = (
        "class MLP:\n    def __init__(self, hidden_act):\n        if hidden_act != 'silu':\n            raise E\n"
    )
    release.texts["model_executor/models/two.py"] = "def f(hidden_act):\n    if hidden_act != 0:\n        return 1\n"
    found = vllm_profile.activations(release)
    assert found["value"] == {"model_executor/models/one.py": "silu"}
