"""How fast `mlload validate --batch` goes through a list, beside one `mlload validate` a source.

    python -m benchmarks.batch [--sources 200] [--rounds 3] [--latency 0.05]

The sources are copies of the demo's checkpoint, in folders and behind a local Hub that answers after `latency`
seconds. In turn (A B A B ...): `xargs -P J -n 1 mlload validate`, which is what a shell would do, and the batch with
-j J. Printed are medians, spreads, ratios, and what one source costs in requests and bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.servers.hub import HubServer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MLLOAD = [sys.executable, "-c", "from mlload.__main__ import main; main()"]
SIZES = ("--tp", "1,2,3,8")


def seconds_of(command: Sequence[str], environment: dict[str, str], stdin: str = "") -> float:
    started = time.perf_counter()
    subprocess.run(
        command, input=stdin, text=True, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - started


def batch(sources: Sequence[str], jobs: int, environment: dict[str, str]) -> float:
    """From stdin: no answers are kept, so that every round asks all of them."""
    command = [*MLLOAD, "validate", "--batch", "-", "-j", str(jobs), *SIZES]
    return seconds_of(command, environment, "\n".join(sources))


def one_by_one(sources: Sequence[str], jobs: int, environment: dict[str, str]) -> float:
    command = ["xargs", "-P", str(jobs), "-n", "1", *MLLOAD, "validate", *SIZES]
    return seconds_of(command, environment, "\n".join(sources))


def compare(
    title: str, sources: Sequence[str], jobs: int, rounds: int, environment: dict[str, str]
) -> dict[str, object]:
    ways = {"xargs": one_by_one, "batch": batch}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way(sources, jobs, environment))
    print(f"\n{title}, -j {jobs}")
    for name, seconds in found.items():
        rates = [len(sources) / one for one in seconds]
        print(f"  {name:6} {statistics.median(rates):8.1f} sources/s  ({min(rates):.1f} to {max(rates):.1f})")
    ratio = statistics.median(found["xargs"]) / statistics.median(found["batch"])
    print(f"  batch / xargs: {ratio:.2f}", flush=True)
    return {"case": title, "jobs": jobs, "seconds": found, "ratio": round(ratio, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.05)
    options = parser.parse_args()
    machine = (
        f"{time.strftime('%Y-%m-%d')}  {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {os.getloadavg()[0]:.2f} at the start, "
        f"{options.sources} sources, {options.rounds} rounds"
    )
    print(machine)
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(root / "home")}
        subprocess.run(
            [*MLLOAD, "--quiet", "demo", str(root / "demo")], env=environment, check=True, capture_output=True
        )
        (root / "hub" / "acme").mkdir(parents=True)
        names = [f"model-{at}" for at in range(options.sources)]
        for name in names:
            (root / "hub" / "acme" / name).symlink_to(root / "demo")
        folders = [str(root / "hub" / "acme" / name) for name in names]
        for jobs in (1, os.cpu_count() or 1):
            cases.append(compare("folders", folders, jobs, options.rounds, environment))
        with HubServer(root / "hub", latency=options.latency) as hub:
            environment["HF_ENDPOINT"] = hub.url
            subprocess.run(
                [*MLLOAD, "validate", "acme/model-0", *SIZES],
                env=environment,
                cwd=root,
                capture_output=True,
                check=False,
            )
            each = f"one source: {len(hub.requests)} requests, {hub.total_bytes / 1e3:.0f} kB"
            print(f"\n{each}")
            remote = [f"acme/{name}" for name in names]
            title = f"a Hub that answers after {options.latency * 1000:.0f} ms"
            cases += [compare(title, remote, jobs, options.rounds, environment) for jobs in (1, 8, 16)]
    print(f"\nload average {os.getloadavg()[0]:.2f} at the end")
    document = {"machine": machine, "remote": each, "cases": cases}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "batch.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
