"""Whether processes are there."""

from __future__ import annotations

import time
from pathlib import Path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int]) -> bool:
    for _ in range(300):
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False
