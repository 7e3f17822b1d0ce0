"""The tokenizer: there, readable, and no larger than the embedding. What transformers does was tried with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.validators.tokenizer_files import WHOLE, tokenizer_of
from tests.checkpoint.build import write_safetensors
from tests.validators.served import SPECIAL, found, judged, loud, one, tokenizer_json, write_model

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 3522871\n"


def test_a_whole_folder_is_clean(tmp_path: Path) -> None:
    verdict = judged(write_model(tmp_path))
    assert (verdict.starts, verdict.verdict, found(verdict)) == (True, "ok", [])


@pytest.mark.parametrize(
    ("kind", "question"),
    [("PreTrainedTokenizerFast", "starts"), ("TokenizersBackend", "starts"), ("Qwen2Tokenizer", "right")],
)
def test_the_vocabulary_got_lost(tmp_path: Path, kind: str, question: str) -> None:
    """transformers refuses a generic class without tokenizer.json, and builds others with an empty vocabulary."""
    config = {"tokenizer_class": kind, "eos_token": "<|im_end|>"}
    verdict = judged(write_model(tmp_path, {"tokenizer.json": None, "tokenizer_config.json": config}))
    finding = one(verdict, "FI070")
    assert (finding.severity, finding.question, verdict.verdict) == ("error", question, "fail")
    assert verdict.starts is (question == "right")


def test_no_sign_of_a_tokenizer(tmp_path: Path) -> None:
    """transformers 5 has no class for llama that could be built without files."""
    files = dict.fromkeys(("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"))
    verdict = judged(write_model(tmp_path, files))
    assert found(verdict) == [("error", "FI070")] and verdict.starts is False
    assert any(hint.command == "--tokenizer ORIGINAL" for hint in one(verdict, "FI070").hints)


@pytest.mark.parametrize("option", [{"tokenizer": "elsewhere"}, {"skip-tokenizer-init": True}])
def test_another_tokenizer_was_named(tmp_path: Path, option: dict[str, Any]) -> None:
    assert found(judged(write_model(tmp_path, {"tokenizer.json": None}), options=option)) == []


@pytest.mark.parametrize(
    "form",
    ["tokenizer.model", "tekken.json", "vocab.txt", "qwen.tiktoken", "spiece.model", "tokenizer.model.v3"],
)
def test_every_form_of_a_vocabulary_counts(tmp_path: Path, form: str) -> None:
    folder = write_model(tmp_path, {"tokenizer.json": None, form: "{}", "chat_template.jinja": None})
    assert found(judged(folder), "FI070") == []


def test_a_config_alone_is_judged_as_if_its_files_were_fine(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text((write_model(tmp_path / "whole") / "config.json").read_text())
    assert loud(judged(alone)) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (POINTER, "git-lfs pointer of a file of 3,522,871 bytes"),
        ("", "is empty: 0 bytes"),
        (json.dumps(tokenizer_json())[:4000], "breaks off"),
        ("[1]", "holds a list"),
        ('{"version": "1.0"}', "has no model in it"),
        ("<!DOCTYPE html><html>no</html>", "a download saved the error"),
    ],
)
def test_a_broken_tokenizer_stops_the_start(tmp_path: Path, content: str, says: str) -> None:
    verdict = judged(write_model(tmp_path, {"tokenizer.json": content}))
    finding = one(verdict, "FI071")
    assert (finding.severity, finding.question, verdict.starts) == ("error", "starts", False)
    assert says in finding.message


def test_the_vocabulary_is_another_models(tmp_path: Path) -> None:
    """600 words and a table of 512 rows: 88 of them have none, up to id 599."""
    verdict = judged(write_model(tmp_path, {"tokenizer.json": tokenizer_json(words=600)}))
    finding = one(verdict, "FI072")
    assert (finding.severity, finding.question) == ("error", "right")
    assert finding.numbers == {"largest_id": 599, "rows": 512, "tokens": 88}
    assert verdict.starts is True and verdict.verdict == "fail"


def test_the_last_row_is_inside_and_the_next_one_is_not(tmp_path: Path) -> None:
    inside = write_model(tmp_path / "a", {"tokenizer.json": tokenizer_json(SPECIAL, words=512)})
    outside = write_model(tmp_path / "b", {"tokenizer.json": tokenizer_json(SPECIAL, words=513)})
    assert found(judged(inside)) == []
    assert found(judged(outside)) == [("error", "FI072")]


def test_an_added_token_past_the_table_that_nothing_uses_is_only_mentioned(tmp_path: Path) -> None:
    special = {**SPECIAL, "<image_soft_token>": 512}
    verdict = judged(write_model(tmp_path, {"tokenizer.json": tokenizer_json(special)}))
    assert found(verdict) == [("info", "FI072")] and verdict.verdict == "ok"


def test_an_added_token_past_the_table_that_the_template_writes_is_wrong(tmp_path: Path) -> None:
    special = {**SPECIAL, "<|im_start|>": 512}
    verdict = judged(write_model(tmp_path, {"tokenizer.json": tokenizer_json(special)}))
    finding = one(verdict, "FI072")
    assert (finding.severity, finding.numbers["first"]) == ("error", "<|im_start|>")


def test_padding_past_the_table_is_never_read_by_a_server(tmp_path: Path) -> None:
    config = {"eos_token": "<|im_end|>", "pad_token": "[PAD]"}
    files = {"tokenizer.json": tokenizer_json({**SPECIAL, "[PAD]": 512}), "tokenizer_config.json": config}
    assert found(judged(write_model(tmp_path, files))) == [("info", "FI072")]


def test_a_large_file_gives_the_same_ids_as_a_whole_parse(tmp_path: Path) -> None:
    value = tokenizer_json(words=60_000)
    value["model"]["merges"] = [f"w{n} w{n + 1}" for n in range(60_000)]
    folder = write_model(tmp_path, {"tokenizer.json": value})
    assert (folder / "tokenizer.json").stat().st_size > WHOLE
    tokenizer = tokenizer_of(Checkpoint.open(str(folder)))
    assert tokenizer.vocab == value["model"]["vocab"] and tokenizer.added == SPECIAL


def test_a_large_file_that_is_cut_off_is_broken(tmp_path: Path) -> None:
    text = json.dumps(tokenizer_json(words=120_000))
    folder = write_model(tmp_path, {"tokenizer.json": text[: len(text) - 40]})
    assert len(text) > WHOLE + 40
    assert "breaks off" in one(judged(folder), "FI071").message


def test_unigram_ids_follow_the_order(tmp_path: Path) -> None:
    value = tokenizer_json()
    value["model"] = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5], ["b", -2.0]]}
    tokenizer = tokenizer_of(Checkpoint.open(str(write_model(tmp_path, {"tokenizer.json": value}))))
    assert tokenizer.vocab == {"<unk>": 0, "a": 1, "b": 2}


def test_added_tokens_of_the_config_count_where_there_is_no_tokenizer_json(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"502": {"content": "<|im_end|>"}}, "eos_token": {"content": "<|im_end|>"}}
    files = {"tokenizer.json": None, "tokenizer.model": "x", "tokenizer_config.json": config}
    tokenizer = tokenizer_of(Checkpoint.open(str(write_model(tmp_path, files))))
    assert tokenizer.added == {"<|im_end|>": 502} and tokenizer.roles["eos_token"] == "<|im_end|>"


def test_a_single_file_has_no_folder_to_miss_anything_in(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "one.safetensors", {"a.weight": ("BF16", [4, 4])})
    assert tokenizer_of(Checkpoint.open(str(path))).known is False


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize("content", [POINTER, "", json.dumps(tokenizer_json())[:4000], "[1]", '{"version": "1.0"}'])
def test_transformers_cannot_read_what_is_called_broken(tmp_path: Path, content: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_model(tmp_path, {"tokenizer.json": content})
    with pytest.raises(Exception):  # noqa: B017 - several kinds, all of which end a server
        transformers.AutoTokenizer.from_pretrained(str(folder))
