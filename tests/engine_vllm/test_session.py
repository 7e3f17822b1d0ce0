"""A run of the engine: followed, timed out, interrupted, and ended; with a stand-in for the engine itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mlload.engine.vllm import session
from mlload.engine.vllm.asked import Asked
from mlload.engine.vllm.environment import Environment
from mlload.engine.vllm.session import Outcome, Tail, run
from tests.engine_vllm.processes import gone

HERE = Environment(sys.executable, "vllm", "0.33.0")
STAND_IN = Path(__file__).with_name("stand_in.py")
PLATFORM = {"device": "cuda", "name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 85 * 10**9}
IMPORTED = {"event": "imported", "version": "0.33.0", "platform": PLATFORM, "seconds": 1.0}
UP = {"event": "up", "seconds": 20.0, "settings": {}}
READING = "(Worker pid=7) INFO 11-29 10:00:10 [base_loader.py:82] Initializing model took 0.18 seconds"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    shutil.copy(STAND_IN, folder / "start.py")
    monkeypatch.setattr(session, "INSIDE", folder)
    monkeypatch.setattr(session, "GRACE_SECONDS", 1.0)


def asked(tmp_path: Path, *words: str, **more: Any) -> Asked:
    return Asked("model", words, tmp_path / "engine.log", **more)


def event(**fields: Any) -> tuple[str, str]:
    return "--event", json.dumps(fields)


def test_events_and_log_are_followed(tmp_path: Path) -> None:
    told: list[Any] = []
    said: list[str] = []
    paces = [event(event="pace", batch=batch, at=1.0) for batch in (1, 8)]
    words = (*event(**IMPORTED), "--log", READING, *event(**UP), *paces[0], *paces[1], *event(event="done"))
    outcome = run(HERE, asked(tmp_path, *words), said.append, told.append)
    assert told == [PLATFORM]
    assert outcome.started and outcome.fault is None
    assert [pace["batch"] for pace in outcome.paces] == [1, 8]
    assert outcome.log.numbers["build_seconds"] == 0.18
    assert (tmp_path / "engine.log").read_text() == READING + "\n"
    assert said[0].startswith("vLLM: importing vllm (0 s)")


def test_a_start_that_takes_too_long_says_what_it_was_doing(tmp_path: Path) -> None:
    words = (*event(**IMPORTED), "--log", READING, "--hang")
    began = time.monotonic()
    outcome = run(HERE, asked(tmp_path, *words, start_seconds=4.0))
    assert time.monotonic() - began < 30
    assert outcome.timed_out and not outcome.started and outcome.fault is not None
    assert outcome.fault.message.startswith("vLLM was not up after 4 s: it was reading weights; its log ends with")
    assert gone(hanging(tmp_path))


def hanging(tmp_path: Path) -> list[int]:
    line = next(line for line in (tmp_path / "engine.log").read_text().splitlines() if line.startswith("hanging"))
    return [int(word) for word in line.split()[1:]]


def test_one_that_is_done_and_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "END_SECONDS", 1.0)
    began = time.monotonic()
    outcome = run(HERE, asked(tmp_path, *event(**IMPORTED), *event(**UP), *event(event="done"), "--hang"))
    assert time.monotonic() - began < 30
    assert outcome.started and outcome.fault is None and not outcome.timed_out
    assert gone(hanging(tmp_path))


def test_one_that_dies_without_a_word(tmp_path: Path) -> None:
    outcome = run(HERE, asked(tmp_path, *event(**IMPORTED), "--log", READING, "--die", "9"))
    assert outcome.fault is not None
    assert outcome.fault.message.startswith("vLLM ended with code 137 without a word: it was reading weights")


def test_one_that_stops_after_it_was_up(tmp_path: Path) -> None:
    failed = event(event="failed", type="EngineDeadError", message="EngineCore encountered an issue", usage=False)
    pacing = (*event(event="pacing", batch=8, at=5.0), *event(event="tick", tokens=40, of=1024, at=6.0))
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3\ntorch.OutOfMemoryError: CUDA out of memory'
    record = "(EngineCore pid=3) ERROR 11-29 10:00:00 [x.py:1] "
    logged = [word for line in traceback.splitlines() for word in ("--log", record + line)]
    outcome = run(HERE, asked(tmp_path, *event(**IMPORTED), *event(**UP), *pacing, *logged, *failed))
    assert outcome.started and outcome.doing == "decoding batch 8, 40 of 1024 tokens"
    assert outcome.fault is not None and outcome.fault.sentence == "OutOfMemoryError: CUDA out of memory"


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if "hanging" in (tmp_path / "engine.log").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(HERE, asked(tmp_path, "--hang"), interrupt)
    assert gone(hanging(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for orphans")
def test_kill_9_of_mlload_ends_the_engine(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from mlload.engine.vllm import session\n"
        "from mlload.engine.vllm.asked import Asked\n"
        "from mlload.engine.vllm.environment import Environment\n"
        "session.INSIDE, session.GRACE_SECONDS = Path(sys.argv[1]), 1.0\n"
        "session.run(Environment(sys.executable, 'vllm', '0.33.0'), Asked('m', ('--hang',), Path(sys.argv[2])))\n"
    )
    log = tmp_path / "engine.log"
    log.touch()
    mlload = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "inside"), str(log)])
    for _ in range(600):
        if "hanging" in log.read_text():
            break
        time.sleep(0.05)
    pids = hanging(tmp_path)
    os.kill(mlload.pid, signal.SIGKILL)
    mlload.wait()
    assert gone(pids)


def test_our_own_python_is_not_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlload.engine.vllm.asked import environment

    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert "PYTHONPATH" not in environment() and environment()["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_lines_come_whole(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    path.write_bytes(b"one\ntw")
    tail = Tail(path)
    assert tail.lines() == ["one"]
    path.write_bytes(b"one\ntwo\nthr\xc3")
    assert tail.lines() == ["two"]
    path.write_bytes(b"one\ntwo\nthr\xc3\xa9\n")
    assert tail.lines() == ["thré"]


def test_what_it_is_at_before_its_log_tells() -> None:
    assert Outcome().doing == "importing vllm"
    assert Outcome(events={"imported": {}}).doing == "reading the config"
