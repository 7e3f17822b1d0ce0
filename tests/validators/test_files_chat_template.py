"""Chat templates: found in each place, rendered in a sandbox, and ended by a token at which the engine stops."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.validators import chat_render
from mlload.validators.chat_template import not_rendered, rendered
from mlload.validators.chat_template_files import templates_of
from tests.real_models import RealModel
from tests.validators.chat_styles import STYLES
from tests.validators.served import CHATML, SPECIAL, found, judged, loud, one, tokenizer_json, write_model

CODES = ("FI080", "FI081", "FI083", "FI084")


def chat_model(folder: Path, style: str, template: str | None = None, **files: Any) -> Path:
    own = STYLES[style]
    first = next(iter(own.special))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": first, "eos_token": own.end}
    usual = {
        "tokenizer.json": tokenizer_json(own.special),
        "tokenizer_config.json": config,
        "generation_config.json": {"eos_token_id": own.special[own.end]},
        "chat_template.jinja": own.template if template is None else template,
    }
    return write_model(folder, {**usual, **files}, eos_token_id=own.special[own.end])


@pytest.mark.parametrize("style", STYLES)
def test_styles_in_use_pass(tmp_path: Path, style: str) -> None:
    assert loud(judged(chat_model(tmp_path, style))) == []


@pytest.mark.parametrize("style", [name for name, style in STYLES.items() if style.prompt])
def test_a_question_is_rendered_as_the_style_says(tmp_path: Path, style: str) -> None:
    (shown,) = rendered(Checkpoint.open(str(chat_model(tmp_path, style))))
    assert shown.cases["prompt"].text == STYLES[style].prompt.format(chat_render.USER)


@pytest.mark.parametrize("style", STYLES)
def test_the_broken_twin_does_not(tmp_path: Path, style: str) -> None:
    """The same template with its loop left open."""
    twin = STYLES[style].template.replace("{% endfor %}", "").replace("{%- endfor %}", "")
    verdict = judged(chat_model(tmp_path, style, twin))
    finding = one(verdict, "FI081")
    assert (finding.severity, finding.question, verdict.starts) == ("error", "right", True)
    assert "no valid template" in finding.message and finding.numbers["line"]


@pytest.mark.parametrize("style", STYLES)
def test_a_style_whose_end_is_not_among_the_stops_warns(tmp_path: Path, style: str) -> None:
    """The engine stops at id 499, a word, instead."""
    own = STYLES[style]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": next(iter(own.special)), "eos_token": "w499"}
    template = own.template.replace("eos_token", f"'{own.end}'")
    files = {"tokenizer_config.json": config, "generation_config.json": {"eos_token_id": [499]}}
    finding = one(judged(chat_model(tmp_path, style, template, **files)), "FI083")
    assert finding.severity == "warning" and "generations will not stop" in finding.message
    assert finding.numbers["eos_token_ids"] == [499]
    assert finding.numbers["end_of_turn_id"] in own.special.values()


def test_both_ids_are_in_the_message(tmp_path: Path) -> None:
    files = {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
        "generation_config.json": {"eos_token_id": 500},
    }
    finding = one(judged(write_model(tmp_path, files)), "FI083")
    assert "<|im_end|> (id 502)" in finding.message and "500 <|endoftext|>" in finding.message
    assert finding.hints[0].command == "--override-generation-config '{\"eos_token_id\": [502, 500]}'"


def test_one_stop_of_several_is_enough(tmp_path: Path) -> None:
    files = {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
        "generation_config.json": {"eos_token_id": [500, 502]},
    }
    assert found(judged(write_model(tmp_path, files)), *CODES) == []


def test_without_a_generation_config_the_configs_own_ids_count(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": {"eos_token": "<|endoftext|>"}, "generation_config.json": None}
    assert found(judged(write_model(tmp_path / "a", files, eos_token_id=502)), "FI083") == []
    assert found(judged(write_model(tmp_path / "b", files, eos_token_id=500)), "FI083") == [("warning", "FI083")]


def test_an_end_that_is_no_token_warns(tmp_path: Path) -> None:
    """ChatML over a tokenizer that was never given its tokens: the markers are spelled out letter by letter."""
    plain = {"<s>": 503, "</s>": 504}
    files = {
        "tokenizer.json": tokenizer_json(plain),
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"},
        "generation_config.json": {"eos_token_id": 504},
    }
    finding = one(judged(write_model(tmp_path, files)), "FI083")
    assert "is no token of this tokenizer" in finding.message


def test_a_format_of_plain_text_is_not_judged(tmp_path: Path) -> None:
    template = "{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n\n{% endfor %}"
    assert found(judged(write_model(tmp_path, {"chat_template.jinja": template})), *CODES) == []


# Where templates are kept.
NAMED = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": CHATML + "{{ tools | tojson }}"}]


@pytest.mark.parametrize(
    "place",
    [
        {"chat_template.jinja": CHATML},
        {"tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": CHATML}},
        {"tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": NAMED}},
        {"chat_template.json": {"chat_template": CHATML}},
        {"processor_config.json": {"chat_template": CHATML}},
        {"chat_template.jinja": CHATML, "additional_chat_templates/tool_use.jinja": CHATML},
    ],
    ids=["file", "tokenizer config", "named", "processor", "processor config", "additional"],
)
def test_case_98_a_template_in_any_place_passes(tmp_path: Path, place: dict[str, Any]) -> None:
    verdict = judged(write_model(tmp_path, {"chat_template.jinja": None, **place}))
    assert loud(verdict) == []
    assert len(templates_of(Checkpoint.open(str(tmp_path)))) >= 1


def test_case_98_a_chat_model_without_one_warns(tmp_path: Path) -> None:
    verdict = judged(write_model(tmp_path, {"chat_template.jinja": None}))
    finding = one(verdict, "FI080")
    assert (finding.severity, verdict.starts, verdict.verdict) == ("warning", True, "warn")
    assert "<|im_end|>" in finding.message


def test_case_98_readers_of_the_old_place_are_named_where_vllm_is_not_asked(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    assert found(judged(folder), "FI084") == []
    finding = one(judged(folder, engine="transformers"), "FI084")
    assert finding.severity == "info" and "tokenizer_config.json only" in finding.message


def test_a_base_model_needs_none(tmp_path: Path) -> None:
    """It ends where a text ends, though the chat tokens are in its vocabulary as well."""
    files = {
        "chat_template.jinja": None,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"},
        "generation_config.json": {"eos_token_id": 500},
    }
    assert found(judged(write_model(tmp_path, files, eos_token_id=500))) == []


def test_another_template_was_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"chat_template.jinja": None})
    assert found(judged(folder, options={"chat-template": "mine.jinja"}), *CODES) == []


def test_templates_that_differ_are_mentioned(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>", "chat_template": CHATML + " "}
    same = write_model(tmp_path / "a", {"tokenizer_config.json": config})
    other = write_model(tmp_path / "b", {"tokenizer_config.json": {**config, "chat_template": "{{ messages }}"}})
    assert found(judged(same), "FI084") == []
    assert "chat_template.jinja and tokenizer_config.json" in one(judged(other), "FI084").message


# What goes wrong while rendering.
@pytest.mark.parametrize(
    ("template", "severity", "says"),
    [
        ("{{ messages[0].content.nothing.more }}", "error", "every chat request fails"),
        ("{{ raise_exception('not today') }}", "error", "not today"),
        ("{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}", "error", "leaves out the user's message"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "error", "every chat request fails"),
        (CHATML + "{{ tools[0].function.parameters.nothing.more if tools }}", "warning", "requests with tools fail"),
        (CHATML + "{{ messages[2].x.y if messages | length > 2 }}", "warning", "second question"),
        ("{{ raise_exception('no system') if messages[0].role == 'system' }}" + CHATML, "info", "no system"),
    ],
)
def test_a_template_that_fails(tmp_path: Path, template: str, severity: str, says: str) -> None:
    finding = one(judged(write_model(tmp_path, {"chat_template.jinja": template})), "FI081")
    assert finding.severity == severity and says in finding.message


def test_the_line_is_the_templates(tmp_path: Path) -> None:
    template = "{# one #}\n{# two #}\n{{ messages[0].content.nothing.more }}\n"
    finding = one(judged(write_model(tmp_path, {"chat_template.jinja": template})), "FI081")
    assert finding.numbers["line"] == 3 and "in line 3" in finding.message


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ '%999999999999d' | format(1) }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
    ids=["loops", "doubling", "repeat", "padding", "power", "recursion"],
)
def test_a_hostile_template_ends_soon(tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_render, "CPU_SECONDS", 1)
    started = time.monotonic()
    finding = one(judged(write_model(tmp_path, {"chat_template.jinja": template})), "FI081")
    assert finding.severity == "error"
    assert time.monotonic() - started < 30


def test_a_template_that_never_ends_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_render, "CPU_SECONDS", 1)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    results = chat_render.render([CHATML, endless, CHATML], chat_render.cases({}))
    assert [entry["prompt"].kind for entry in results] == ["", "time", ""]


def test_without_jinja2_templates_are_not_rendered_and_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_render, "available", lambda: False)
    path = write_model(tmp_path, {"chat_template.jinja": "{{ undefined( }}"})
    assert judged(path).findings == ()
    assert not_rendered(Checkpoint.open(str(path)))


def test_special_tokens_are_the_templates_variables(tmp_path: Path) -> None:
    template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ messages[0].content }}"
    checkpoint = Checkpoint.open(str(write_model(tmp_path, {"chat_template.jinja": template})))
    (shown,) = rendered(checkpoint)
    assert shown.cases["plain"].text == f"<|endoftext|>|<|im_end|>|<|endoftext|>|{chat_render.USER}"
    assert set(SPECIAL) >= {"<|endoftext|>", "<|im_end|>"}


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize("style", STYLES)
def test_transformers_renders_the_same(style: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    own = STYLES[style]
    tokens = {"bos_token": next(iter(own.special)), "eos_token": own.end}
    cases = chat_render.cases(tokens)
    (ours,) = chat_render.render([own.template], cases)
    compared = 0
    for name, case in cases.items():
        if ours[name].text is None:
            continue
        variables = {key: value for key, value in case.items() if key not in ("messages", "tools", "documents")}
        (theirs,), _ = utils.render_jinja_template(
            [case["messages"]], tools=case.get("tools"), chat_template=own.template, **variables
        )
        assert ours[name].text == theirs, name
        compared += 1
    assert compared >= 4


@pytest.mark.slow
@pytest.mark.transformers
def test_the_real_model_renders_as_transformers_does(real_model: RealModel) -> None:
    transformers = pytest.importorskip("transformers")
    folder = real_model("smollm2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    (shown,) = rendered(Checkpoint.open(str(folder)))
    cases = chat_render.cases({})
    for name, entry in shown.cases.items():
        case = cases[name]
        assert entry.text == tokenizer.apply_chat_template(
            case["messages"],
            tools=case["tools"],
            add_generation_prompt=case["add_generation_prompt"],
            tokenize=False,
        )
    assert loud(judged(folder)) == []
