"""The generator of flags: annotations of config classes become arities, as vLLM's own code makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.vllm_flags import flags
from tools.vllm_profile import Release

CONFIG = """
Kind = Literal["a", "b"]

@config
class Inner:
    x: int = 1

@config
class ModelConfig:
    eager: bool = False
    maybe: bool | str | None = None
    kind: Kind = "a"
    loose: Kind | str = "a"
    names: list[str] = field(default_factory=list)
    length: int | None = None
    max_model_len: int = 1
    share: float = 0.9
    table: dict[str, Any] | None = None
    inner: Inner = field(default_factory=Inner)
    late: dict[str, Any] | None = None
"""
ARGUMENTS = """
human_readable_int_args = {"tokens"}

class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        kw = get_kwargs(ModelConfig)
        kw["late"]["type"] = optional_type(json.loads)
        kw["kind"]["choices"].remove(HIDDEN)
        group = parser.add_argument_group()
        group.add_argument("--eager", "-e", **kw["eager"])
        group.add_argument("--maybe", **kw["maybe"])
        group.add_argument("--kind", **kw["kind"])
        group.add_argument("--loose", **kw["loose"])
        group.add_argument("--names", **kw["names"])
        group.add_argument("--length", **{**kw["length"], "default": None})
        group.add_argument("--max-model-len", **kw["max_model_len"])
        group.add_argument("--share", **kw["share"])
        group.add_argument("--table", **kw["table"])
        group.add_argument("--inner", **kw["inner"])
        group.add_argument("--late", **kw["late"])
        group.add_argument("--plain", type=int, default=3)
        group.add_argument("--on", action="store_true")
"""
FRONTEND = """
class FrontendArgs:
    host: str | None = None
    origins: list[str] = field(default_factory=list)

    def customize(cls, frontend_kwargs):
        frontend_kwargs["origins"]["type"] = json.loads

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--headless", action="store_true")
"""


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    for name, text in {
        "config/model.py": CONFIG,
        "config/hidden.py": 'HIDDEN = "b"\n',
        "engine/arg_utils.py": ARGUMENTS,
        "entrypoints/common/cli_args.py": FRONTEND,
    }.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return dict(flags(Release(tmp_path, "vllm"))["flags"])


@pytest.mark.parametrize(
    ("name", "takes", "kind"),
    [
        ("eager", "switch", None),
        ("maybe", "optional", "str"),
        ("kind", "value", "str"),
        ("names", "list", "str"),
        ("length", "value", "int"),
        ("max-model-len", "value", "human int"),
        ("share", "value", "float"),
        ("table", "value", "json"),
        ("inner", "value", "json"),
        ("late", "value", "json"),
        ("plain", "value", "int"),
        ("on", "switch", None),
        ("host", "value", "str"),
        ("origins", "value", "json"),
        ("headless", "switch", None),
    ],
)
def test_how_a_flag_takes_its_value(found: dict[str, Any], name: str, takes: str, kind: str | None) -> None:
    assert (found[name]["takes"], found[name].get("type")) == (takes, kind)


def test_choices_opposites_and_other_spellings(found: dict[str, Any]) -> None:
    assert found["kind"]["choices"] == ["a"]  # the hidden one is taken out
    assert "choices" not in found["loose"]  # any text is allowed
    assert (found["eager"]["no"], found["eager"]["also"]) == (True, ["-e"])
    assert found["on"]["no"] is False
    assert found["eager"]["line"] == "engine/arg_utils.py:11"
    assert "model_tag" not in found
