"""`mlload validate`: verdicts, exit codes, and the two questions that are never mixed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mlload.checkpoint.finding import Finding, Question, Severity
from mlload.cli.app import main
from mlload.plan.unknowns import Unknown
from mlload.validators import chat_render
from mlload.validators.verdict import combine
from tests.cli.conftest import CONFIG, Run, llama_shapes, write_llama, write_safetensors

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "validate-1.json").read_text())


def validated(mlload: Run, *words: str | Path, code: int) -> dict[str, Any]:
    done = mlload("validate", *words, "--format", "json")
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


def test_one_size_that_works(mlload: Run, llama: Path) -> None:
    shown = validated(mlload, llama, "--tp", "2", "--gpu", "cc:9.0", code=0)
    assert shown["engine"]["name"] == "vllm" and shown["not_judged"] == []
    (result,) = shown["results"]
    assert (result["source"], result["tp"], result["gpu"]) == (str(llama), 2, "cc:9.0")
    assert (result["starts"], result["verdict"], result["fits"]) == (True, "ok", None)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    assert result["serve"] == f"vllm serve {llama} --tensor-parallel-size 2"


def test_one_size_that_does_not(mlload: Run, llama: Path) -> None:
    # 1, 2, 3 and 6 divide 6 heads; 3 does not divide 2 KV heads; 6 does not divide a vocabulary of 1024.
    (result,) = validated(mlload, llama, "--tp", "4", code=1)["results"]
    assert (result["starts"], result["verdict"]) == (False, "fail")
    assert result["findings"][0]["code"] == "TP001"
    assert {size["tp"] for size in result["sizes_that_work"] if size["pp"] == 1 and not size["ep"]} == {1, 2}
    assert result["serve"] is not None and "--tensor-parallel-size 4" not in result["serve"]


def test_a_list_of_sizes_gives_one_table(mlload: Run, llama: Path) -> None:
    done = mlload("validate", llama, "--tp", "1,2,4")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(line.startswith("FAIL  vLLM would refuse to start at tp 4; it starts at tp 1, 2") for line in lines)
    assert [line.split()[2] for line in lines if line.startswith("tp ")] == ["yes", "yes", "no"]
    assert lines[-1] == f"would start: vllm serve {llama} --tensor-parallel-size 2"
    assert sum(line.startswith("error ") for line in lines) == 1


def test_vllm_spellings(mlload: Run, llama: Path) -> None:
    ours = validated(mlload, llama, "--tp", "2", "--pp", "2", code=0)
    short = validated(mlload, llama, "-tp", "2", "-pp", "2", code=0)
    assert short == validated(mlload, llama, "--tensor-parallel-size=2", "--pipeline-parallel-size=2", code=0) == ours
    whole = validated(mlload, llama, "--tp", "2", "--ep", code=1)
    assert whole == validated(mlload, llama, "--tp", "2", "--enable-expert-parallel", code=1)


def test_several_sources(mlload: Run, llama: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "eight heads", num_attention_heads=8)
    done = mlload("validate", llama, other, "--tp", "4")
    assert done.returncode == 1
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("small-llama  tp", "eight heads"))]
    assert [row[-3:] for row in rows] == [["no", "fail", "TP001"], ["yes", "ok", "-"]]
    results = validated(mlload, llama, other, tmp_path / "nowhere", "--tp", "4", code=1)["results"]
    assert [result["verdict"] for result in results] == ["fail", "ok", "unknown"]
    assert "nowhere" in results[2]["unknowns"][0]["why"]


def test_sources_of_one_name_are_told_apart(mlload: Run, tmp_path: Path) -> None:
    sources = [write_llama(tmp_path / folder / "model") for folder in ("a", "b")]
    shown = mlload("validate", *sources, "--tp", "4").stdout.splitlines()
    for source in sources:
        assert sum(f"{source.parent.name}/model" in line for line in shown) == 2  # a heading and a row


def test_the_engines_command_without_dashes(mlload: Run, llama: Path) -> None:
    for words in (("vllm", "serve", str(llama), "-tp", "2"), (f"vllm serve {llama} -tp 2",)):
        done = mlload("validate", *words)
        assert done.returncode == 2 and "mlload validate -- vllm serve" in done.stderr


def test_too_long_a_request_is_shortened_in_the_line_that_starts(mlload: Run, llama: Path) -> None:
    """2048 positions; 6 heads do not divide by 4."""
    for size in ("2", "4"):
        asked = ("--tp", size, "--max-model-len", "4096", "--gpu", "h100")
        (result,) = validated(mlload, llama, *asked, code=1)["results"]
        assert "CF010" in {finding["code"] for finding in result["findings"]}
        assert {size["max_model_len"] for size in result["sizes_that_work"]} == {2048}
        assert result["serve"].endswith("--max-model-len 2048")
        done = mlload("validate", "--gpu", "h100", "--", *shlex.split(result["serve"]))
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("value", "code"), [("1", 0), (" True", 0), ("0", 1), ("yes", 1)])
def test_the_variable_that_allows_more_tokens(mlload: Run, llama: Path, value: str, code: int) -> None:
    line = (f"VLLM_ALLOW_LONG_MAX_MODEL_LEN={value}", "vllm", "serve", str(llama), "--max-model-len", "4096")
    done = mlload("validate", "--gpu", "cc:9.0", "--", *line)
    assert done.returncode == code and "CF010" in done.stdout and "not judged" not in done.stdout


@pytest.mark.parametrize(
    "asked",
    [
        ("--load-format", "gguf"),
        ("--load-format", "sharded_state"),
        ("--load-format", "nonsense"),
        ("--kv-cache-dtype", "nonsense"),
        ("--speculative", '{"method": "ngram"}'),
        ("--quantization", "nonsense"),
    ],
)
@pytest.mark.parametrize("tp", ["1", "4"])
def test_no_line_is_offered_that_repeats_what_is_refused(
    mlload: Run, llama: Path, asked: tuple[str, ...], tp: str
) -> None:
    (result,) = validated(mlload, llama, "--gpu", "h100", "--tp", tp, *asked, code=1)["results"]
    assert (result["starts"], result["sizes_that_work"], result["serve"]) == (False, [], None)


def test_a_quoted_command_that_starts_no_server(mlload: Run, llama: Path) -> None:
    for line in ("docker compose up", "python -c 'from vllm import LLM'"):
        done = mlload("validate", "--", line)
        assert done.returncode == 2 and "no server is started" in done.stderr
    spaced = write_llama(llama.parent / "with a space")
    assert mlload("validate", "--", spaced).returncode == 0


def test_missing_tensor(mlload: Run, llama: Path) -> None:
    shapes = llama_shapes(CONFIG)
    del shapes["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(llama / "model.safetensors", shapes)
    (result,) = validated(mlload, llama, code=1)["results"]
    assert result["verdict"] == "fail" and result["sizes_that_work"] == [] and result["serve"] is None
    assert any("up_proj" in finding["where"] for finding in result["findings"])


def test_config_only_is_judged_as_if_its_weights_were_fine(mlload: Run, llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    validated(mlload, llama, "--tp", "2", code=0)
    validated(mlload, llama, "--tp", "4", code=1)


def test_unknown_is_an_answer(mlload: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    (result,) = validated(mlload, tmp_path, code=3)["results"]
    assert (result["starts"], result["verdict"]) == (None, "unknown")
    assert validated(mlload, tmp_path, "--allow-unknown", code=0)["results"] == [result]


def test_the_report_in_a_file(mlload: Run, llama: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = mlload("validate", llama, "--tp", "4", "--format", "json", "--output", report)
    assert done.returncode == 1 and done.stdout == "" and str(report) in done.stderr
    jsonschema.validate(json.loads(report.read_text()), SCHEMA)


def finding(severity: Severity, question: Question) -> Finding:
    return Finding("XX001", severity, question, "here", "something")


OPEN = Unknown("a thing", "no header", "read it")


@pytest.mark.parametrize(
    ("findings", "unknowns", "starts", "word"),
    [
        ([], [], True, "ok"),
        ([finding("info", "right")], [], True, "ok"),
        ([finding("warning", "right")], [], True, "warn"),
        ([finding("error", "right")], [], True, "fail"),
        ([finding("error", "content")], [], True, "fail"),
        ([finding("warning", "right"), finding("error", "starts")], [], False, "fail"),
        ([], [OPEN], None, "unknown"),
        ([finding("warning", "right")], [OPEN], None, "unknown"),
        ([finding("error", "starts")], [OPEN], False, "fail"),
        ([finding("error", "right")], [OPEN], None, "fail"),
    ],
)
def test_starting_and_being_right_are_two_questions(
    findings: list[Finding], unknowns: list[Unknown], starts: bool | None, word: str
) -> None:
    verdict = combine(findings, unknowns)
    assert (verdict.starts, verdict.verdict) == (starts, word)


def test_memory_is_judged_where_its_size_is_named(mlload: Run, llama: Path) -> None:
    assert validated(mlload, llama, "--gpu", "cc:9.0", code=0)["results"][0]["fits"] is None
    (result,) = validated(mlload, llama, "--gpu", "h100", code=0)["results"]
    assert result["fits"] == "yes" and result["memory"]["budget_bytes"] == int(int(79.2 * 2**30) * 0.92)
    assert {size["fits"] for size in result["sizes_that_work"]} == {"yes"}
    assert "the KV cache holds" in mlload("validate", llama, "--gpu", "h100").stdout


def test_without_a_gpu_there_is_a_row_a_generation(mlload: Run, llama: Path) -> None:
    (result,) = validated(mlload, llama, code=0)["results"]
    assert (result["gpu"], result["judged_for"], result["memory"]) == (None, "cc:9.0", None)
    assert [row["capability"] for row in result["generations"]] == ["7.5", "8.0", "8.9", "9.0", "10.0"]
    assert {row["starts"] for row in result["generations"]} == {True}
    shown = mlload("validate", llama).stdout
    assert all(name in shown for name in ("T4", "A100", "L40S", "H100", "B200"))


def test_kernels_are_those_of_the_gpu_that_is_judged(mlload: Run, llama: Path) -> None:
    assert validated(mlload, llama, code=0)["results"][0]["kernels"]
    kernels = validated(mlload, llama, "--tp", "2", "--gpu", "cc:9.0", code=0)["results"][0]["kernels"]
    shapes = {kernel["layers"]: kernel["shape"] for kernel in kernels}
    assert shapes["QKVParallelLinear[qkv_proj]"] == [(6 + 2 + 2) * 16 // 2, 96]
    assert shapes["RowParallelLinear[down_proj]"] == [96, 256 // 2]


def test_without_jinja2_it_is_said_once_and_is_no_finding(
    llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(chat_render, "available", lambda: False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (llama / "chat_template.jinja").write_text("{{ messages[0].content }}")
    reports = {}
    for form in ("text", "json", "github", "sarif", "junit"):
        file = tmp_path / form
        assert main(["validate", str(llama), "--tp", "1,2", "--format", form, "--output", str(file)]) == 0
        reports[form] = file.read_text()
    said = "chat template rendering (pip install 'mlload[chat]')"
    assert json.loads(reports["json"])["not_judged"] == [said]
    assert reports["text"].count("render") == 1 and f"not judged: {said}\n" in reports["text"]
    assert all("render" not in reports[form] for form in ("github", "sarif", "junit"))


def test_of_several_sizes_that_fail_the_line_has_the_gpus_of_the_first(mlload: Run, tmp_path: Path) -> None:
    """3 KV heads on 2 ranks; 2 GPUs remain 2 GPUs, as the hint beside the finding has it."""
    folder = write_llama(tmp_path / "m", num_key_value_heads=3)
    done = mlload("validate", folder, "--tp", "2", "--pp", "1,2")
    assert done.stdout.splitlines()[-1] == f"would start: vllm serve {folder} --pipeline-parallel-size 2"
