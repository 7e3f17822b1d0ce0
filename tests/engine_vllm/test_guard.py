"""Nothing of an engine is left behind, however the one who started it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlload.engine.vllm import guard
from tests.engine_vllm.processes import alive, gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for orphans")
GUARD = str(Path(guard.__file__))
# Like an engine: a process in a session of its own that ignores SIGTERM, an orphan of a third one, shared memory.
TREE = """
import os, signal, subprocess, sys, time
from multiprocessing import shared_memory
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
memory = shared_memory.SharedMemory(create=True, size=4096)
again = [sys.executable, __file__, sys.argv[1], "again"]
own = subprocess.Popen(again, start_new_session=True)
subprocess.run(["sh", "-c", '"$@" & echo $! > "$0"', sys.argv[1] + ".orphan", *again], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {own.pid} {open(sys.argv[1] + '.orphan').read().strip()} {memory.name}\\n")
print("meeting at file:///tmp/vllm_dist_" + "ab" * 16, flush=True)
time.sleep(600)
"""
# A starter as mlload is one: it holds the guard's pipe.
STARTER = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); time.sleep(600)"


class Tree:
    def __init__(self, folder: Path) -> None:
        self.script, self.told, self.log = folder / "tree.py", folder / "told", folder / "log"
        self.own = folder / "own"
        self.own.mkdir()
        self.script.write_text(TREE)
        self.log.touch()
        self.command = [
            sys.executable,
            GUARD,
            "1",
            str(self.log),
            str(self.own),
            sys.executable,
            str(self.script),
            str(self.told),
        ]

    def started(self) -> tuple[list[int], Path]:
        for _ in range(400):
            if self.told.exists() and self.told.read_text().endswith("\n"):
                *pids, memory = self.told.read_text().split()
                return [int(pid) for pid in pids], Path("/dev/shm") / memory.lstrip("/")
            time.sleep(0.05)
        raise AssertionError("the tree did not grow")


def test_a_starter_that_is_killed_takes_everything_with_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *tree.command])
    pids, memory = tree.started()
    assert all(alive(pid) for pid in pids) and memory.exists()
    starter.kill()
    starter.wait()
    assert gone(pids)
    for _ in range(200):
        if not memory.exists() and not tree.own.exists():
            break
        time.sleep(0.05)
    assert not memory.exists() and not tree.own.exists()


def test_closing_the_pipe_is_enough(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    left = Path("/dev/shm/vllm_dist_" + "ab" * 16 + "-tp:0-cpushm_0")
    left.write_bytes(b"left by a rank")
    process = subprocess.Popen(tree.command, stdin=subprocess.PIPE)
    pids, _ = tree.started()
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(120) == 128 + signal.SIGTERM
    assert not any(alive(pid) for pid in pids)
    assert not left.exists() and tree.own.exists()


def test_a_guard_that_is_told_to_end(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    process = subprocess.Popen(tree.command, stdin=subprocess.PIPE)
    pids, _ = tree.started()
    process.terminate()
    process.wait(120)
    assert gone(pids)


@pytest.mark.parametrize(("ending", "code"), [("exit(7)", 7), ("kill", 128 + 9)])
def test_the_code_is_the_commands(ending: str, code: int, tmp_path: Path) -> None:
    words = "import os, sys; print('said'); sys.stdout.flush(); " + (
        "sys.exit(7)" if code == 7 else "os.kill(os.getpid(), 9)"
    )
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, GUARD, "1", str(log), str(tmp_path / "own"), sys.executable, "-c", words],
        stdin=subprocess.PIPE,
    )
    assert process.wait(120) == code
    assert log.read_text() == "said\n"
