"""A lock: what it holds, and what counts as a change."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.gate.against import changed_answer, changed_engine, changed_files, changed_flags, changed_origin, idle
from mlload.gate.digests import CHUNK, Digest, digests
from mlload.gate.lock import Approved, Judged, document, model_of, read_lock
from mlload.gate.waivers import Waived, Waiver
from mlload.plan.mesh import Mesh
from mlload.profiles import load
from tests.cli.conftest import write_llama

PROFILE = load("vllm", "0.33")
FILES = (Digest("config.json", 10, "aa"), Digest("README.md", 5, "bb"), Digest("model.safetensors", 99, "cc"))


def answer(verdict: str = "ok", **changes: Any) -> Judged:
    return replace(Judged(Mesh(tp=2), None, verdict != "fail", verdict, ()), **changes)


@pytest.fixture
def lock(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "lock.json"
    approved = Approved("m", "abc", FILES, (answer(),), {"dtype": "bfloat16"})
    path.write_text(json.dumps(document([approved], PROFILE)))
    return read_lock(path)


def told(findings: Any) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in findings]


def test_nothing_changed(lock: dict[str, Any]) -> None:
    model = model_of(lock, "m", True)
    assert model is not None
    assert told(changed_files(model, FILES)) == told(changed_engine(lock, PROFILE)) == []
    assert told(changed_flags(model, {"dtype": "bfloat16"})) == told(changed_origin(model, "abc")) == []
    assert told(changed_answer(model, answer())) == []


def test_files(lock: dict[str, Any]) -> None:
    now = (Digest("config.json", 10, "zz"), Digest("README.md", 7, "yy"), Digest("extra.json", 1, "dd"))
    found = list(changed_files(lock["models"][0], now))
    assert [(f.code, f.severity, f.where) for f in found] == [
        ("LK001", "info", "README.md"),
        ("LK001", "error", "config.json"),
        ("LK002", "error", "extra.json"),
        ("LK002", "error", "model.safetensors"),
    ]
    assert "still 10 bytes" in found[1].message and "aa... -> zz..." in found[1].message


@pytest.mark.parametrize(("name", "harmless"), [
    ("README.md", True), ("LICENSE", True), ("LICENSE.txt", True), ("figures/a.png", True), (".gitattributes", True),
    ("config.json", False), ("tokenizer.model", False), ("merges.txt", False), ("modeling_x.py", False),
    ("chat_template.jinja", False), ("model.safetensors", False),
])  # fmt: skip
def test_files_that_no_engine_reads(name: str, harmless: bool) -> None:
    assert idle(name) is harmless


def test_engine_flags_and_revision(lock: dict[str, Any]) -> None:
    assert told(changed_engine(lock, load("vllm", "0.32"))) == [("LK004", "error")]
    extras = replace(PROFILE, assumed={**PROFILE.assumed, "flashinfer": True})
    (found,) = changed_engine(lock, extras)
    assert found.severity == "error" and "flashinfer" in found.message
    regenerated = replace(PROFILE, facts={**PROFILE.facts, "another": {"value": 1, "source": ""}})
    assert told(changed_engine(lock, regenerated)) == [("LK004", "info")]
    (found,) = changed_flags(lock["models"][0], {})
    assert (found.code, found.where) == ("LK005", "--dtype") and "left out" in found.message
    assert told(changed_origin(lock["models"][0], "def")) == [("LK003", "info")]


def test_answers(lock: dict[str, Any]) -> None:
    model = lock["models"][0]
    assert told(changed_answer(model, answer(mesh=Mesh(tp=4)))) == [("LK005", "error")]
    assert told(changed_answer(model, answer(gpu="h100"))) == [("LK005", "error")]
    worse = answer("fail", findings=(Finding("TN003", "error", "starts", "x", "y"),))
    (found,) = changed_answer(model, worse)
    assert (found.code, found.severity) == ("LK006", "error") and "TN003" in found.message
    model["judged"][0]["verdict"] = "warn"
    assert told(changed_answer(model, answer())) == [("LK006", "info")]  # better is no harm
    waived = Waived(Finding("TN003", "error", "right", "x", "y"), Waiver("TN003", "*", "why not", None))
    assert ("LK007", "error") in told(changed_answer(model, answer(waived=(waived,))))


def test_another_name_of_the_folder_does_not_matter_when_it_is_the_only_one(lock: dict[str, Any]) -> None:
    assert model_of(lock, "/elsewhere/m", True) is not None
    assert model_of(lock, "/elsewhere/m", False) is None


def test_the_same_approval_gives_the_same_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(write_llama(tmp_path / "m")))
    texts = [json.dumps(document([Approved("m", None, digests(checkpoint), ())], PROFILE)) for _ in range(2)]
    assert texts[0] == texts[1]


def test_digests_are_of_the_bytes_and_the_sources_own_are_believed(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "m")
    (folder / "big.bin").write_bytes(bytes(range(256)) * (CHUNK // 256) + b"tail")  # more than one read
    checkpoint = Checkpoint.open(str(folder))
    for digest in digests(checkpoint):
        data = (folder / digest.name).read_bytes()
        assert (digest.size, digest.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    known = replace(checkpoint, files=tuple(file._replace(digest="from the Hub") for file in checkpoint.files))
    assert digests(known) == digests(checkpoint)  # of files here only the bytes count
    far = copy.copy(checkpoint.source)
    far.remote = True
    assert {digest.sha256 for digest in digests(replace(known, source=far))} == {"from the Hub"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"lock_version": 99, "models": [], "engine": {}}', '{"lock_version": 1}']
)
def test_what_is_no_lock(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(text)
    with pytest.raises(MlloadError, match="lock"):
        read_lock(path)
    with pytest.raises(MlloadError, match="cannot read"):
        read_lock(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("engine",), []),
        (("engine", "assumed"), None),
        (("models",), {}),
        (("models", 0), None),
        (("models", 0, "flags"), 1),
        (("models", 0, "files", 0), "x"),
        (("models", 0, "files", 0, "sha256"), None),
        (("models", 0, "files", 0, "size"), "10"),
        (("models", 0, "judged"), {}),
        (("models", 0, "judged", 0, "findings"), [{}]),
        (("models", 0, "judged", 0, "waived"), None),
    ],
)
def test_a_damaged_lock_is_a_sentence(
    lock: dict[str, Any], tmp_path: Path, path: tuple[str | int, ...], value: Any
) -> None:
    inner: Any = lock
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (tmp_path / "lock.json").write_text(json.dumps(lock))
    with pytest.raises(MlloadError, match="damaged lock"):
        read_lock(tmp_path / "lock.json")


def test_a_lock_in_no_utf8_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "lock.json").write_bytes(b'{"lock_version": "\xff"}')
    with pytest.raises(MlloadError, match="no lock"):
        read_lock(tmp_path / "lock.json")
