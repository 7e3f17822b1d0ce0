"""Runs a command and leaves nothing of it behind, however the one who asked for it ends.

    python guard.py GRACE LOG FOLDER COMMAND...      standard library only, run as a file

The command's output goes to LOG; asked to end, it is given GRACE seconds. FOLDER is the starter's own, which it
removes itself unless it is killed. Standard input is a pipe that the starter
holds: when that closes (the starter ends, is killed, or wants an end), the command and all its descendants are ended,
sessions of their own or not. So an engine of many processes dies with `kill -9` of mlload too. The exit code is the
command's, 128 + N when signal N ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>: orphans of the command become ours
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
POLL_SECONDS = 0.05
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MEETING = re.compile(rb"vllm_dist_[0-9a-f]{32}")
TRACKER_SECONDS = 5.0
GIVE_UP_SECONDS = 15.0
TRACKER = b"multiprocessing.resource_tracker"


def main(grace: float, log: str, folder: str, command: list[str]) -> int:
    starter = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for number in ENDING:
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    with open(log, "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_die_with_guard,
        )
    asked = False
    try:
        while child.poll() is None and not asked:
            asked = bool(select.select([sys.stdin], [], [], POLL_SECONDS)[0]) and not os.read(0, 4096)
    finally:
        _end(child, grace)
        _forget_shared_memory(log)
        if os.getppid() != starter:
            shutil.rmtree(folder, ignore_errors=True)
    code = child.poll()
    return 128 - code if code is not None and code < 0 else code or 0


def _die_with_guard() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    """First asked, then made to end: the command, what is in its group, and every descendant."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace)
    # A tracker unlinks the shared memory of the processes that are killed, and then ends by itself.
    trackers = {pid for pid in _descendants(os.getpid()) if TRACKER in _words(pid)}
    deadline = time.monotonic() + TRACKER_SECONDS
    while True:
        left = _descendants(os.getpid())
        if child.poll() is None:
            left.add(child.pid)
        _kill(left - trackers if time.monotonic() < deadline else left)
        if sys.platform != "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        _reap(child)
        # What cannot be killed (a driver that does not answer) is not waited for for ever.
        if not left or time.monotonic() > deadline + GIVE_UP_SECONDS:
            break
        time.sleep(POLL_SECONDS)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Orphans that came to us; the command itself is its handle's."""
    child.poll()
    for pid in _children().get(os.getpid(), ()):
        if pid != child.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _descendants(pid: int) -> set[int]:
    """Of Linux's /proc; nothing elsewhere. Zombies of others are left out: they hold nothing."""
    children = _children()
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _children() -> dict[int, list[int]]:
    """Parent -> living children."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z" or int(parent) == os.getpid():
            found.setdefault(int(parent), []).append(int(name))
    return found


def _forget_shared_memory(log: str) -> None:
    """vLLM's ranks on a CPU exchange through segments called like the file that they met at, and leave them behind
    however they end; the log names it."""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        for name in set(MEETING.findall(file.read())):
            for path in glob.glob(f"/dev/shm/{name.decode()}*"):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _words(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
