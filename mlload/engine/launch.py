"""Runs a load test on all its ranks: here for one, in a process each for more, or as one of torchrun's.

A rank that fails ends the others, and its sentence is the one that is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.engine.settings import Settings

POLL_SECONDS = 0.05
GRACE_SECONDS = 3.0  # between asking a process to end and ending it
Say = Callable[[str], None]


def run_all(
    settings: Settings, say: Say | None = None, expected: dict[str, Any] | None = None
) -> list[dict[str, Any]] | None:
    """Every rank's result, rank 0 first; None on a rank of torchrun other than 0. Raises MlloadError."""
    if "TORCHELASTIC_RUN_ID" in os.environ or (int(os.environ.get("WORLD_SIZE", "1")) > 1):
        return _one_of_many(settings, say, expected)
    if settings.tp == 1:
        from mlload.engine.run import run_rank
        from mlload.quant.layers.group import ALONE

        return [run_rank(settings, ALONE, say, expected)]
    with tempfile.TemporaryDirectory(prefix="mlload-ranks-") as folder:
        return _spawn(settings, Path(folder), say, expected)


def stay_on_loopback(environment: MutableMapping[str, str]) -> None:
    """Where all ranks are on this machine, a host name that resolves to nowhere must not matter."""
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _one_of_many(settings: Settings, say: Say | None, expected: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    from mlload.engine.rank import joined
    from mlload.engine.run import run_rank

    size = int(os.environ["WORLD_SIZE"])
    if size != settings.tp:
        raise MlloadError(f"torchrun started {size} processes, and --tp is {settings.tp}")
    if settings.device == "cpu" and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        stay_on_loopback(os.environ)
    with joined(settings.device) as group:
        import torch.distributed as dist

        result = run_rank(settings, group, say if group.rank == 0 else None, expected)
        found: list[Any] = [None] * size
        if size == 1:
            return [result]
        dist.all_gather_object(found, result)
        return found if group.rank == 0 else None


def _spawn(settings: Settings, folder: Path, say: Say | None, expected: dict[str, Any] | None) -> list[dict[str, Any]]:
    _refuse_early(settings)
    (folder / "settings.json").write_text(settings.text())
    if expected is not None:
        (folder / "expected.json").write_text(json.dumps(expected))
    environment = dict(os.environ, WORLD_SIZE=str(settings.tp))
    if settings.device == "cpu":
        stay_on_loopback(environment)
    if "OMP_NUM_THREADS" not in environment:
        environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // settings.tp))
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(settings.tp):
            with open(folder / f"output-{rank}", "wb") as output:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "mlload.engine.rank", str(folder)],
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        _wait(ranks, folder, say)
    finally:
        end(ranks)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(settings.tp)]


def _refuse_early(settings: Settings) -> None:
    """What every rank would refuse alike is told once, before any process has imported torch."""
    from mlload.engine.lengths import fitted
    from mlload.engine.native import refuse
    from mlload.engine.run import planned
    from mlload.engine.towers import without_towers

    plan = planned(settings)
    refuse(plan if settings.towers == "load" else without_towers(plan))
    if not settings.weights_only:
        fitted(plan.model, settings)


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path, say: Say | None) -> None:
    told = ""
    while any(process.poll() is None for process in ranks):
        _raise_failure(ranks, folder)
        progress = folder / "progress-0"
        if say is not None and progress.exists() and (line := progress.read_text()) != told:
            told = line
            say(line)
        time.sleep(POLL_SECONDS)
    _raise_failure(ranks, folder)


def _raise_failure(ranks: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """The first rank that left a sentence speaks; one that died without says how, and others fail because of it."""
    failed = [rank for rank, process in enumerate(ranks) if process.poll() not in (None, 0)]
    if not failed:
        return
    time.sleep(POLL_SECONDS)
    told = sorted(folder.glob("rank-*.error"), key=lambda path: path.stat().st_mtime_ns)
    died = [rank for rank in failed if not (folder / f"rank-{rank}.error").exists()]
    if died:
        rank = died[0]
        code = ranks[rank].returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        lines = (folder / f"output-{rank}").read_text(errors="replace").strip().splitlines()
        raise MlloadError(f"rank {rank} {how}" + (f": {lines[-1]}" if lines else ""), exit_code=3)
    # A rank that refuses leaves the others without a peer: what they say of that is no reason.
    first = min(told, key=lambda path: not json.loads(path.read_text())[3])
    message, hint, code, _ = json.loads(first.read_text())
    rank = int(first.stem.rpartition("-")[2])
    said = message if message.startswith(f"rank {rank}") else f"rank {rank}: {message}"
    raise MlloadError(said, hint=hint, exit_code=code)


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """No process is left behind."""
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + GRACE_SECONDS
    for process in ranks:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
