"""Many sources in one go: every answer kept, nothing asked twice, a process that dies costs its own source alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlload.cli.batch_workers import QUESTIONS_EACH, answer_all

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def many(tmp_path: Path, llama: Path) -> tuple[Path, list[str]]:
    """A list of five names of one checkpoint (6 heads, 2 KV heads) and one that is not there."""
    names = []
    for at in range(5):
        link = tmp_path / f"copy-{at}"
        link.symlink_to(llama)
        names.append(str(link))
    names.insert(2, str(tmp_path / "missing"))
    path = tmp_path / "models.txt"
    path.write_text(
        "# audited every night\n\n" + "\n".join(f"{name}  # why" for name in names) + "\n" + names[0] + "\n"
    )
    return path, names


def batch(path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "mlload", "validate", "--batch", str(path), "--format", "json", *words],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.with_name(path.name + ".answers.jsonl").read_text().splitlines()]


def test_each_source_is_answered_once_in_the_order_of_the_list(many: tuple[Path, list[str]]) -> None:
    path, names = many
    code, document, _ = batch(path, "--tp", "1,4", "-j", "3")
    assert [answer["source"] for answer in document["answers"]] == names
    assert document["counts"] == {"ok": 0, "warn": 0, "fail": 5, "unknown": 1}
    assert code == 1
    first = document["answers"][0]
    assert [size["starts"] for size in first["sizes"]] == [True, False]  # 6 heads: 6 % 4 = 2
    assert "TP001" in first["sizes"][1]["codes"]
    assert "6" in first["sizes"][1]["why"]
    assert "no folder, file or Hub id" in document["answers"][2]["error"]


def test_the_answer_is_that_of_a_single_source(many: tuple[Path, list[str]]) -> None:
    path, names = many
    _, document, _ = batch(path, "--tp", "1,2,4")
    alone = subprocess.run(
        [sys.executable, "-m", "mlload", "validate", names[0], "--tp", "1,2,4", "--format", "json"],
        capture_output=True,
        text=True,
    )
    expected = [(e["tp"], e["starts"], e["verdict"]) for e in json.loads(alone.stdout)["results"]]
    assert [(s["tp"], s["starts"], s["verdict"]) for s in document["answers"][0]["sizes"]] == expected


def test_what_was_answered_is_not_asked_again(many: tuple[Path, list[str]]) -> None:
    path, names = many
    batch(path, "-j", "2")
    assert len(lines_of(path)) == 6
    batch(path, "-j", "2")  # the missing one alone: it may be there now
    assert [line["source"] for line in lines_of(path)[6:]] == [names[2]]
    batch(path, "-j", "2", "--tp", "2")  # another question
    assert len(lines_of(path)) == 13


def test_half_a_line_of_a_killed_run_is_asked_again(many: tuple[Path, list[str]]) -> None:
    path, names = many
    batch(path, "-j", "1")
    kept = path.with_name(path.name + ".answers.jsonl")
    whole = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(whole[:2]) + whole[3][:40])
    _, document, _ = batch(path, "-j", "1")
    assert [answer["source"] for answer in document["answers"]] == names
    assert document["counts"]["unknown"] == 1
    assert len([line for line in kept.read_bytes().splitlines() if line.startswith(b"{")]) == 2 + 1 + 4


def test_a_process_that_dies_costs_its_own_source_alone() -> None:
    def work(question: str) -> dict[str, Any]:
        if question == "bad":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"length": len(question)}

    questions = ["a", "bb", "bad", "cccc", "ddddd"]
    found = {one.question: one for one in answer_all(questions, work, 2)}
    assert {question: one.answer and one.answer["length"] for question, one in found.items()} == {
        "a": 1, "bb": 2, "bad": None, "cccc": 4, "ddddd": 5,
    }  # fmt: skip
    assert "SIGKILL" in found["bad"].died


def test_workers_are_replaced_and_none_is_left() -> None:
    questions = [str(at) for at in range(QUESTIONS_EACH * 2 + 3)]
    found = [one.answer for one in answer_all(questions, lambda text: {"n": int(text), "pid": os.getpid()}, 1)]
    assert [one["n"] for one in found if one is not None] == list(range(len(questions)))
    assert len({one["pid"] for one in found if one is not None}) == 3
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_iteration_that_stops_ends_its_processes() -> None:
    def work(question: str) -> dict[str, Any]:
        time.sleep(0 if question == "quick" else 60)
        return {}

    answers = answer_all(["quick", "slow", "slower"], work, 2)
    next(answers)
    answers.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_ctrl_c_keeps_what_is_answered(tmp_path: Path, llama: Path) -> None:
    names = []
    for at in range(400):
        (tmp_path / f"copy-{at}").symlink_to(llama)
        names.append(str(tmp_path / f"copy-{at}"))
    path = tmp_path / "models.txt"
    path.write_text("\n".join(names))
    kept = path.with_name(path.name + ".answers.jsonl")
    words = [sys.executable, "-m", "mlload", "validate", "--batch", str(path), "-j", "1"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not kept.exists() or not kept.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 130
    assert "of 400 sources have their answer" in said
    assert "The same command goes on" in said
    assert 0 < len(lines_of(path)) < 400


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "sarif"], "text or json"),
        (["--lock", "a.json"], "about one source"),
        (["-j", "none"], "from 1 to 256"),
        (["another"], "one more"),
    ],
)
def test_what_a_batch_cannot_do_is_said(many: tuple[Path, list[str]], words: list[str], said: str) -> None:
    line = [sys.executable, "-m", "mlload", "validate", "--batch", str(many[0]), *words]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_empty_or_absent_list_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    for name, said in (("empty", "names no source"), ("absent", "No such file")):
        line = [sys.executable, "-m", "mlload", "validate", "--batch", str(tmp_path / name)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 2
        assert said in done.stderr
