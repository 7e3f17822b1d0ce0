"""The command that people already have, in its usual wrappings."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlload.checkpoint.finding import MlloadError
from mlload.profiles import load
from mlload.profiles.hf_overrides import overridden
from mlload.profiles.serve_config import words_of_config
from mlload.profiles.serve_flags import flag_table
from mlload.profiles.serve_line import ServeLine, read_line, with_config
from mlload.profiles.serve_words import human_int, read_words

TABLE = flag_table(load("vllm", "0.33"))


def line(text: str) -> ServeLine:
    return read_line(shlex.split(text), TABLE)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve org/model -tp 8 --max-model-len 32k",
        "vllm serve org/model --tensor-parallel-size=8 --max_model_len=32000",
        "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0,1 vllm serve --max-model-len 32000 --tensor_parallel_size 8 org/model",
        "python3 -m vllm.entrypoints.openai.api_server --model org/model -tp=8 --max-model-len 32000",
        "uv run vllm serve org/model -tp 8 --max-model-len 32000",
        "/opt/venv/bin/vllm serve org/model -tp 8 --max-model-len 32000",
        "docker run --rm --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:v0.33.0 --model org/model -tp 8"
        " --max-model-len 32000",
        "bash -c 'vllm serve org/model -tp 8 --max-model-len 32000'",
    ],
)
def test_wrappings(text: str) -> None:
    found = line(text)
    assert (found.source, found.value("tensor-parallel-size"), found.value("max-model-len")) == ("org/model", 8, 32000)
    assert found.findings == ()


def test_one_quoted_word_with_continuations() -> None:
    found = read_line(["vllm serve org/model \\\n  -tp 4 \\\n  --enforce-eager  # as in production"], TABLE)
    assert (found.model, found.value("tensor-parallel-size"), found.value("enforce-eager")) == ("org/model", 4, True)


@pytest.mark.parametrize(
    "text",
    [
        "cd /x && vllm serve m -tp 2 > log 2>&1 &",
        "vllm serve m -tp 2 >>log 2> err && echo done",
        "vllm serve m -tp 2 2>&1 | tee log",
        "sleep 3; . venv/bin/activate ; vllm serve m -tp 2 &> log &",
        "bash -c 'vllm serve m -tp 2 > log'",
        "vllm serve m -tp 2 < /dev/null",
    ],
)
def test_what_a_shell_takes_for_itself(text: str) -> None:
    asked = read_line([text], TABLE)
    assert (asked.source, asked.value("tensor-parallel-size"), asked.findings) == ("m", 2, ())
    assert asked.at(tp=4, pp=1, dp=1, ep=False) == "vllm serve m -tp 4"


def test_a_container_sees_the_folder_by_another_name() -> None:
    found = line("docker run -v /data/models:/models:ro -e X=1 vllm/vllm-openai --model /models/a/b")
    assert (found.model, found.source) == ("/models/a/b", "/data/models/a/b")
    found = line("docker run --mount type=bind,source=/data,target=/models img vllm serve /models")
    assert found.source == "/data"


def test_values_by_type() -> None:
    found = line(
        "vllm serve m --served-model-name a b --no-enable-prefix-caching -O3 --gpu-memory-utilization 0.5"
        " --hf-overrides.text_config.rope.factor 4 --hf-overrides.x+ 1,2 --max-model-len -1"
    )
    assert found.value("served-model-name") == ["a", "b"]
    assert found.value("enable-prefix-caching") is False
    assert found.value("optimization-level") == "3"
    assert found.value("gpu-memory-utilization") == 0.5
    assert found.value("max-model-len") == -1
    assert found.value("hf-overrides") == {"text_config": {"rope": {"factor": 4}}, "x": [1, 2]}


@pytest.mark.parametrize(("text", "value"), [("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2M", 2 * 2**20), ("7", 7)])
def test_human_integers(text: str, value: int) -> None:
    assert human_int(text) == value


def test_the_last_one_wins() -> None:
    assert line("vllm serve m -tp 2 --tensor-parallel-size 4").value("tensor-parallel-size") == 4


def test_what_the_engine_refuses_is_found_and_the_rest_is_read() -> None:
    found = line("vllm serve m --tensor-paralel-size 8 --dtype bf16 --swap-space 4 -tp 2 -pp x")
    assert [(f.code, f.where) for f in found.findings] == [
        ("EN050", "--tensor-paralel-size"),
        ("EN051", "--dtype"),
        ("EN050", "--swap-space"),
        ("EN051", "-pp"),
    ]
    assert "--tensor-parallel-size" in found.findings[0].hints[0].what
    assert found.value("tensor-parallel-size") == 2


def test_the_same_line_at_another_size_keeps_every_other_word() -> None:
    asked = line("X=1 vllm serve 'my model' --port 80 -tp 8 --served-model-name a b --swap-space 4 --enforce_eager")
    assert asked.at(tp=4, pp=2, dp=1, ep=False) == (
        "X=1 vllm serve 'my model' --port 80 -tp 4 --served-model-name a b --enforce_eager --pipeline-parallel-size 2"
    )
    # A size of one need not be said.
    assert line("vllm serve m -tp=8 -ep").at(tp=1, pp=1, dp=1, ep=False) == "vllm serve m"
    module = line("python -m vllm.entrypoints.openai.api_server --model m --tensor-parallel-size=8")
    assert module.at(tp=2, pp=1, dp=1, ep=True) == (
        "python -m vllm.entrypoints.openai.api_server --model m --tensor-parallel-size=2 --enable-expert-parallel"
    )


def test_no_server() -> None:
    with pytest.raises(MlloadError, match="no server"):
        line("echo hello --tp 8")


def test_yaml_as_the_engine_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: org/model\ntensor_parallel_size: 4\nenforce-eager: true\nenable-prefix-caching: false\n"
        "served-model-name: [a, b]\nhf-overrides:\n  text_config:\n    x: 1\n"
    )
    words = words_of_config(str(path), TABLE)
    assert words == [
        "--model", "org/model", "--tensor_parallel_size", "4", "--enforce-eager", "--no-enable-prefix-caching",
        "--served-model-name", "a", "b", "--hf-overrides", '{"text_config": {"x": 1}}',
    ]  # fmt: skip
    assert read_words(words, TABLE).findings == ()
    for text in ("[1, 2]", "a: [", "\0"):
        path.write_text(text)
        with pytest.raises(MlloadError):
            words_of_config(str(path), TABLE)


@pytest.mark.parametrize("text", ["tensor-parallel-size: two", "flag-of-nobody: 1"])
def test_no_line_starts_while_its_config_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "serve.yaml").write_text(text)
    read = read_words(words_of_config(str(tmp_path / "serve.yaml"), TABLE), TABLE)
    assert read.findings
    asked = with_config(line("vllm serve m --config serve.yaml"), read.given, read.findings, None)
    assert asked.at(tp=1, pp=1, dp=1, ep=False) is None


def test_overrides_reach_into_nested_configs() -> None:
    config: dict[str, Any] = {"a": 1, "text_config": {"b": 2, "c": 3}, "rope_parameters": {"factor": 1, "theta": 2}}
    changed = overridden(config, {"a": 9, "text_config": {"b": 8}, "rope_parameters": {"factor": 4}})
    assert changed == {"a": 9, "text_config": {"b": 8, "c": 3}, "rope_parameters": {"factor": 4}}
    assert config["text_config"] == {"b": 2, "c": 3}


LINES = json.loads((Path(__file__).parents[1] / "data" / "vllm" / "serve_lines_0_32_0.json").read_text())["lines"]


@pytest.mark.parametrize(
    ("text", "accepted", "changed"), LINES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_same_lines_as_the_real_parser(text: str, accepted: bool, changed: list[str] | None) -> None:
    """What vLLM 0.32.0 itself took and refused. What stands inside a JSON value is not read here."""
    found = read_line(["serve", *text.split()], flag_table(load("vllm", "0.32")))
    assert (found.findings == ()) is accepted
    if changed is not None:  # values that were given though they are the default differ from nothing
        assert set(changed) <= {entry.name.replace("-", "_") for entry in found.given}


WORDS = st.one_of(
    st.sampled_from(sorted(TABLE.by_spelling)),
    st.text(max_size=12),
    st.builds("{}={}".format, st.sampled_from(sorted(TABLE.by_spelling)), st.text(max_size=8)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, max_size=12))
def test_no_command_line_breaks_the_reader(words: list[str]) -> None:
    read = read_words(words, TABLE)
    kept = [word for entry in read.given for word in entry.words] + list(read.positional)
    assert sorted(kept) == sorted(words)
