"""`mlload load-test --engine vllm` as it is typed; what the engine answers comes from a stand-in."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mlload.cli.app import main
from mlload.cli.load_test_words import engine_line
from mlload.engine.vllm import session
from tests.engine_vllm.test_session import READING, STAND_IN

CPU = {"device": "cpu", "name": "cpu", "capability": None, "memory": 2**34, "flags": {"amx": False, "zentorch": False}}
SETTINGS = {"dtype": "bfloat16", "kv_cache_dtype": "auto", "load_format": "auto", "max_model_len": 512}
KERNELS = [
    {"layers": "QKVParallelLinear[qkv_proj]", "label": "UnquantizedLinearMethod", "count": 4},
    {"layers": "RowParallelLinear[o_proj]", "label": "SomethingElse", "count": 4},
    {"layers": "Attention[attn]", "label": "CPU_ATTN", "count": 4},
]
SPEAKS = {
    "losses": [2.0], "tops": [[-0.5], [-0.7]], "tokens": [[1], [2]], "vocab": 576, "tokenizer": True,
    "said": [1, 2, 3], "sample": "The capital of France is Paris.", "pad": 0, "eos": 1,
}  # fmt: skip
PACE = {
    "batch": 1, "prompt_len": 16, "decode": 4, "prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 10.0,
    "first_token_ms": 160.0, "inter_token_ms": {"p50": 100.0, "p99": 110.0},
}  # fmt: skip
TOKENS = "(EngineCore pid=7) INFO 11-29 10:00:12 [kv.py:1] CPU KV cache size: 699,008 tokens, Maximum concurrency"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    assert main(["demo", str(tmp_path / "demo")]) == 0
    return tmp_path / "demo"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A python that says it has vLLM 0.32.0, and runs everything else."""
    inside = tmp_path / "inside"
    inside.mkdir()
    shutil.copy(STAND_IN, inside / "start.py")
    monkeypatch.setattr(session, "INSIDE", inside)
    monkeypatch.setattr(session, "GRACE_SECONDS", 1.0)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    script = tmp_path / "python"
    script.write_text(
        f"""#!/bin/sh\n[ "$1" = -c ] && echo '["vllm-cpu", "0.32.0"]' && exit\nexec {sys.executable} "$@"\n"""
    )
    script.chmod(0o755)
    return script


def happy(bytes_held: int) -> list[str]:
    rank = {
        "rank": 0, "parameter_bytes": bytes_held - 100, "moved_bytes": 100, "copied_bytes": 7, "buffer_bytes": 5,
        "device_bytes": 0, "kv_bytes": 2**31, "num_blocks": 5461, "peak_host_bytes": 2**30, "peak_device_bytes": 0,
        "kernels": KERNELS,
    }  # fmt: skip
    events: list[dict[str, Any]] = [
        {"event": "imported", "version": "0.32.0", "platform": CPU, "seconds": 5.0},
        {"event": "up", "seconds": 20.0, "settings": SETTINGS},
        {"event": "holds", "ranks": [rank]},
        {"event": "first", "seconds": 0.2},
        {"event": "speaks", **SPEAKS},
        {"event": "pace", **PACE},
        {"event": "done"},
    ]
    words = ["--log", READING, "--log", TOKENS]
    for event in events:
        words += ["--event", json.dumps(event)]
    return words


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], *typed: str
) -> tuple[int, str, str]:
    """The engine's words are checked by `engine_line`; the stand-in's own go beside them."""
    from mlload.engine.vllm import asked

    whole = asked.Asked.as_json
    monkeypatch.setattr(asked.Asked, "as_json", lambda self: {**whole(self), "words": ["--model", self.source, *words]})
    code = main(["load-test", *typed, "--engine-log", str(tmp_path / "engine.log")])
    said = capsys.readouterr()
    return code, said.out, said.err


def sizes(folder: Path) -> list[int]:
    """Bytes of every tensor by the files' own headers."""
    found = []
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        found += [e["data_offsets"][1] - e["data_offsets"][0] for n, e in header.items() if n != "__metadata__"]
    return found


def test_json_of_a_run(
    demo: Path, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    held = sum(sizes(demo))
    code, out, _ = run(
        capsys, monkeypatch, tmp_path, happy(held), str(demo), "--engine", "vllm", "--vllm-python", str(python),
        "--format", "json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0, found["failures"]
    assert (found["engine"], found["engine_version"], found["throughput_of"]) == ("vllm", "0.32.0", "engine")
    (rank,) = found["ranks"]
    assert rank["weight_bytes_predicted"] == rank["weight_bytes_measured"] == held == found["bytes_read"]
    assert found["sweep"] == [PACE] and found["speaks"]["ok"] is True and found["kv_tokens"] == 699008
    rows = {(row["what"], row["where"]): row for row in found["prediction"]["rows"]}
    assert rows["verdict", ""]["agrees"] is True
    assert rows["weight_bytes", "rank 0"]["difference"] == 0
    # 4 layers, key and value, 3 heads of 64, 2 bytes: 3072 bytes a token, in blocks of 128 out of 2 GiB.
    assert rows["kv_tokens", ""]["predicted"] == 2**31 // (128 * 3072) * 128
    assert rows["kernel", "QKVParallelLinear[qkv_proj]"]["agrees"] is True
    assert rows["kernel", "RowParallelLinear[o_proj]"]["agrees"] is False


def test_text_of_a_run(
    demo: Path, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    typed = (str(demo), "--engine", "vllm", "--vllm-python", str(python))
    code, out, _ = run(capsys, monkeypatch, tmp_path, happy(sum(sizes(demo))), *typed)
    assert code == 0, out
    assert "OK    it starts and speaks" in out
    assert "kernel of o_proj DIFFERS: predicted UnquantizedLinearMethod, is SomethingElse" in " ".join(out.split())
    assert f"engine's log: {tmp_path / 'engine.log'}" in out
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80


def test_an_engine_that_refuses(
    demo: Path, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    imported = {"event": "imported", "version": "0.32.0", "platform": CPU, "seconds": 5.0}
    failed = {"event": "failed", "type": "ValueError", "message": "no such thing", "usage": False}
    words = ["--event", json.dumps(imported), "--event", json.dumps(failed)]
    typed = (str(demo), "--engine", "vllm", "--vllm-python", str(python))
    code, out, _ = run(capsys, monkeypatch, tmp_path, words, *typed)
    assert code == 1
    assert "FAIL  it does not start: ValueError: no such thing" in out
    assert "FAIL  validate says that it starts, and it refuses" in out
    for form in ("junit", "github"):
        code, out, _ = run(capsys, monkeypatch, tmp_path, words, *typed, "--format", form)
        assert code == 1 and "it does not start: ValueError: no such thing" in out


def test_two_load_formats_side_by_side(
    demo: Path, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    typed = (str(demo), "--engine", "vllm", "--vllm-python", str(python), "--load-format", "auto,safetensors")
    code, out, _ = run(capsys, monkeypatch, tmp_path, happy(sum(sizes(demo))), *typed)
    assert code == 0 and "Side by side" in out and out.count("OK    it starts and speaks") == 2


def test_a_limit_of_a_gate(
    demo: Path, python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    typed = (str(demo), "--engine", "vllm", "--vllm-python", str(python), "--min-decode-tps", "11")
    code, out, _ = run(capsys, monkeypatch, tmp_path, happy(sum(sizes(demo))), *typed)
    assert code == 1 and "decode reached 10.0 tokens/s, wanted are 11" in out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--engine", "vllm@0.33"), "vLLM 0.33 was asked for, and"),
        (("--engine", "vllm", "--cold"), "--cold is of the native engine"),
        (("--engine", "vllm", "--", "words"), "'words' after -- belongs to no flag"),
        (("--engine", "vllm", "--", "vllm", "serve", "other"), "two models are named"),
        (("--engine", "sglang"), "unknown engine 'sglang'"),
        (("--", "--max-model-len", "5"), "what stands after -- is for a real engine"),
        (("--pp", "2"), "pipelines are run by a real engine"),
    ],
)
def test_wrong_usage(
    typed: tuple[str, ...], said: str, demo: Path, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["load-test", str(demo), "--vllm-python", str(python), *typed]) == 2
    assert said in capsys.readouterr().err


ASKED: dict[str, Any] = {
    "tp": "2", "pp": "1", "ep": False, "dtype": "auto", "kv_cache_dtype": "auto", "load_format": "auto",
    "revision": None,
}  # fmt: skip


def test_our_options_become_the_engines_flags() -> None:
    line = engine_line({**ASKED, "ep": True, "dtype": "float16"}, ("--max-model-len", "4k", "--port", "80"), "0.33")
    assert line.words == (
        "--tensor-parallel-size", "2", "--enable-expert-parallel", "--dtype", "float16", "--max-model-len", "4k",
        "--port", "80",
    )  # fmt: skip
    assert (line.mesh.tp, line.mesh.ep, line.request.max_model_len, line.request.dtype) == (2, True, 4000, "float16")
    assert line.model is None and line.findings == ()


def test_a_whole_command_of_the_engine() -> None:
    words = ("VLLM_USE_V2=1", "vllm", "serve", "org/model", "-tp", "4", "--enforce-eager")
    line = engine_line(ASKED, words, "0.33")
    assert line.model == "org/model" and line.variables == {"VLLM_USE_V2": "1"}
    # What stands after "--" wins, as it comes later.
    assert line.mesh.tp == 4 and line.request.enforce_eager
    assert line.words == ("--tensor-parallel-size", "2", "-tp", "4", "--enforce-eager")


def test_a_flag_that_the_engine_does_not_know_is_predicted_to_be_refused() -> None:
    line = engine_line(ASKED, ("--max-modle-len", "5"), "0.33")
    assert [finding.code for finding in line.findings] == ["EN050"]
