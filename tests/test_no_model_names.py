"""Rules follow from causes: no code decides by the name of a published model.

Model types and architectures are keys of tables; the names that people publish checkpoints under are nowhere. The
names looked for are those of the skeletons, of the configs that vLLM was asked about, and, where they are there, of
the published ones.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mlload"
# Words that a GGUF file itself carries: its tokenizer's kind, which is called after the model that had it first.
OF_THE_FORMAT = ("writer/gguf_tokenizer.py", "checkpoint/gguf_config.py")


def plain(text: str) -> str:
    return re.sub(r"[\s_.]+", "-", text.lower())


def names() -> set[str]:
    """Names of published checkpoints: a family with a version or a size, so that a model type alone is none."""
    found = set(json.loads((ROOT / "tools" / "skeletons.json").read_text()))
    found |= {path.name for path in (ROOT / "tests" / "data" / "vllm" / "configs").iterdir()}
    if truth := os.environ.get("MLLOAD_TRUTH"):
        found |= {path.name for path in (Path(truth) / "public").iterdir()}
    types = model_types()
    return {plain(name) for name in found if re.search(r"\d", name) and plain(name) not in types}


def model_types() -> set[str]:
    """What configs call their architecture; some are called as their first model was."""
    facts = json.loads((PACKAGE / "profiles" / "vllm_0_33_0.json").read_text())["facts"]
    known = {*facts["transformers_types"]["value"], *facts["config_registry"]["value"]}
    return {plain(str(name)) for name in known}


def constants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that code can compare with: all but docstrings."""
    spoken = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                spoken.add(id(first.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            yield node.lineno, node.value


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).as_posix() not in OF_THE_FORMAT]


def test_no_string_in_the_code_names_a_published_model() -> None:
    published = names()
    assert len(published) > 40 and len(sources()) > 100
    pattern = whole(*published)
    met = []
    for path in sources():
        for line, text in constants(ast.parse(path.read_text(encoding="utf-8"))):
            met += [f"{path.relative_to(ROOT)}:{line}: {found}" for found in pattern.findall(plain(text))]
    assert met == []


def whole(*published: str) -> re.Pattern[str]:
    """Any of the names, not as a part of a longer one: "qwen3-8b" is not in "qwen3-80b"."""
    return re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, sorted(published)))})(?![a-z0-9])")


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [("meta/Llama_3.1 8B", "llama-3-1-8b", True), ("qwen3-80b", "qwen3-8b", False), ("llama", "llama-3-8b", False)],
)
def test_how_a_name_is_met(text: str, name: str, found: bool) -> None:
    assert bool(whole(name).search(plain(text))) is found
