"""kill -9 at random moments: the output is either not there, or complete; and the same command goes on.

MLLOAD_KILLS says how often (`make kill`: 50).
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.writer.build import read_folder, write_checkpoint

KILLS = int(os.environ.get("MLLOAD_KILLS", "3"))
# Small steps, so that a kill falls between them.
START = (
    "import mlload.writer.execute as e, mlload.writer.copies as c; e.EPOCH = 1 << 20; c.CHUNK = 1 << 18; "
    "import sys; from mlload.cli.app import main; sys.exit(main())"
)
CONFIG = {**LLAMA, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "head_dim": 64}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("source"), CONFIG)


def command(source: Path, out: Path, words: list[str]) -> list[str]:
    return [sys.executable, "-c", START, "shard", str(source), "-o", str(out), *words]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--tp", "4"], ["--max-shard-size", "5MB"]], ids=["ranks", "files"])
def test_killed_at_random_moments(source: Path, tmp_path: Path, words: list[str]) -> None:
    started = time.perf_counter()
    subprocess.run(command(source, tmp_path / "timed", words), check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - started
    chance = random.Random(20)
    unfinished = 0
    for number in range(KILLS):
        out = tmp_path / f"out{number}"
        tries = 0
        while not out.exists():
            process = subprocess.Popen(
                command(source, out, words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            # Later and later, so that it ends at last however slow the machine has become.
            time.sleep(chance.uniform(0.2, 1.0 + 0.1 * tries) * whole)
            process.send_signal(signal.SIGKILL)
            process.wait()
            unfinished += not out.exists()
            tries += 1
        merged = out
        if words[0] == "--tp":
            merged = tmp_path / f"merged{number}"
            assert main(["shard", str(out), "-o", str(merged), "--merge"]) == 0
        assert read_folder(merged) == read_folder(source)
        assert (merged / "tokenizer.json").exists() and not list(out.glob("*progress*"))
    assert unfinished or KILLS < 10, "no kill fell before the end: nothing was tested"


def test_an_interrupt_while_threads_start(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = threading.Thread.start
    names: list[str] = []

    def interrupted(self: threading.Thread) -> None:
        if self.name.startswith("copy-"):
            names.append(self.name)
            if len(names) == 2:
                raise KeyboardInterrupt
        start(self)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--max-shard-size", "5MB"]) == 130
    assert "internal error" not in capsys.readouterr().err and len(names) == 2
    assert not (tmp_path / "out").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("copy-")]


def test_an_interrupted_run_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the record says is done is not copied again."""
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.writer import copies, execute
    from mlload.writer.groups import weight_groups
    from mlload.writer.holdings import holdings_of
    from mlload.writer.reshape import reshape
    from mlload.writer.write import write_folder

    monkeypatch.setattr(execute, "EPOCH", 1 << 20)
    monkeypatch.setattr(copies, "CHUNK", 1 << 18)
    checkpoint = Checkpoint.open(str(source))
    holdings = holdings_of(checkpoint)
    layout = reshape(holdings, 5_000_000, weight_groups(checkpoint))
    moved: list[int] = []
    record = execute.Copier._settle

    def stop_early(self: execute.Copier) -> None:
        recorded = self.recorded

        def stop(jobs: int) -> None:
            recorded(jobs)
            moved.append(jobs)
            if len(moved) == 3:
                raise KeyboardInterrupt

        self.recorded = stop
        record(self)

    monkeypatch.setattr(execute.Copier, "_settle", stop_early)
    with pytest.raises(KeyboardInterrupt):
        write_folder(str(tmp_path / "out"), layout, holdings, carry_from=checkpoint)
    assert not (tmp_path / "out").exists() and (tmp_path / "out.partial").is_dir()
    done = moved[-1]
    seen: list[int] = []
    run = execute.Copier.run
    monkeypatch.setattr(execute.Copier, "_settle", record)
    monkeypatch.setattr(execute.Copier, "run", lambda self, jobs, n=0: (seen.append(n), run(self, jobs, n))[1])
    assert write_folder(str(tmp_path / "out"), layout, holdings, carry_from=checkpoint) is True
    assert seen == [done] and done > 0
    assert read_folder(tmp_path / "out") == read_folder(source)


def test_another_request_starts_anew(source: Path, tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "mlload-progress.json").write_text('{"request": "another", "done": 7}')
    (partial / "old.safetensors").write_bytes(b"old")
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--max-shard-size", "5MB"]) == 0
    assert not (tmp_path / "out" / "old.safetensors").exists()
    assert read_folder(tmp_path / "out") == read_folder(source)


def test_a_folder_that_is_no_rest_of_a_run_is_left_alone(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "thesis.txt").write_text("mine")
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--merge"]) == 2
    assert "left as it is" in capsys.readouterr().err
    assert (partial / "thesis.txt").read_text() == "mine"


def test_nothing_is_overwritten(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    for out in (tmp_path / "out", source):
        assert main(["shard", str(source), "-o", str(out), "--merge"]) == 2
        assert "nothing is ever overwritten" in capsys.readouterr().err


def test_a_full_disk_is_seen_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.statvfs(tmp_path)
    small = os.statvfs_result((*real[:4], 100, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--tp", "2"]) == 1
    said = capsys.readouterr().err
    figures = re.findall(r"\b\d{1,3}(?:,\d{3})+\b", said)
    asked, kept, free, lacking = (int(figure.replace(",", "")) for figure in figures)
    assert "too few" in said and asked + kept - free == lacking
    assert not (tmp_path / "out").exists()


def test_verify_finds_what_the_disk_changed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlload.writer import execute

    real = os.pread
    monkeypatch.setattr(execute.os, "pread", lambda fd, length, at: real(fd, length, at)[:-1] + b"?")
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--tp", "2", "--verify"]) == 1
    assert "reads back differently" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
