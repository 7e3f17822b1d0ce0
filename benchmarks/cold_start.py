"""How long a whole `mlload inspect` or `mlload validate` takes, as ratios within one run on one machine.

    python -m benchmarks.cold_start [--rounds 5] [--cases smollm2,deepseek-v3,hub]

Every case is a pair or triple of whole processes, run in turn (A B A B ...), so that what else the
machine does falls on all of them alike. Printed are medians, spreads and ratios of medians, with
the bounds that we hold ourselves to; text and JSON are kept in benchmarks/results/.

    bare        python -c "import typer, rich.console, rich.table": what any such command line costs
    plain       the same imports, then json.loads of every header and of the index: what reading costs at least
    hf-mem      hf-mem (PyPI) on the same repository through the same local Hub server; its package is
                copied and the Hub's address in it replaced, as it reads no HF_ENDPOINT
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tools import real_model

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PEAK_MIB = 300

BARE = "import typer, rich.console, rich.table"
PLAIN = (
    BARE
    + """
import json, pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.safetensors")):
    with open(path, "rb") as handle:
        json.loads(handle.read(struct.unpack("<Q", handle.read(8))[0]))
for path in folder.glob("*.index.json"):
    json.loads(path.read_bytes())
"""
)


class Bound(NamedTuple):
    """Median of `what` over median of `to` must be at most `ratio`."""

    what: str
    to: str
    ratio: float


class Case(NamedTuple):
    """name, the commands to run in turn, and the bounds on their ratios."""

    name: str
    commands: Mapping[str, Sequence[str]]
    bounds: tuple[Bound, ...]


class Run(NamedTuple):
    seconds: float
    peak_mib: float


def mlload(*words: str) -> list[str]:
    """As the console script runs it."""
    return [sys.executable, "-c", "from mlload.__main__ import main; main()", *words]


def inspect(source: str) -> list[str]:
    return mlload("inspect", source)


def small(cases: list[Case]) -> None:
    folder = real_model.smollm2()
    commands = {"bare": [sys.executable, "-c", BARE], "inspect": inspect(str(folder))}
    cases.append(Case("SmolLM2-135M, folder", commands, (Bound("inspect", "bare", 1.5),)))


def large(cases: list[Case], folder: Path) -> None:
    commands = {
        "bare": [sys.executable, "-c", BARE],
        "plain": [sys.executable, "-c", PLAIN, str(folder)],
        "inspect": inspect(str(folder)),
        "validate": mlload("validate", str(folder), "--tp", "8", "--gpu", "h200"),
    }
    bounds = (Bound("inspect", "bare", 6.0), Bound("inspect", "plain", 2.0), Bound("validate", "bare", 8.0))
    cases.append(Case("DeepSeek-V3 skeleton, folder", commands, bounds))


def remote(cases: list[Case], endpoint: str, scratch: Path) -> None:
    found = find_spec("hf_mem")
    if found is None or found.origin is None:
        print("hf-mem is not installed: pip install hf-mem", file=sys.stderr)
        return
    copy = scratch / "hf-mem" / "hf_mem"
    shutil.copytree(Path(found.origin).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copy.rglob("*.py"):
        path.write_text(path.read_text().replace("https://huggingface.co", endpoint))
    run = f"import sys; sys.path.insert(0, {str(copy.parent)!r}); from hf_mem.cli import main; main()"
    for repo, title in (("acme/smollm2", "SmolLM2-135M"), ("acme/deepseek-v3", "DeepSeek-V3 skeleton")):
        commands = {
            "hf-mem": [sys.executable, "-c", run, "--model-id", repo],
            "inspect": inspect(repo),
        }
        cases.append(Case(f"{title}, through a local Hub", commands, (Bound("inspect", "hf-mem", 1.0),)))


def measure(command: Sequence[str], environment: dict[str, str]) -> Run:
    """Wall time of one process, and the most memory it held."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            raise SystemExit(
                f"{' '.join(command)[:200]} ended with {process.returncode}: {said.read().decode()[-2000:]}"
            )
    return Run(seconds, usage.ru_maxrss / 1024)


def run_case(case: Case, rounds: int, environment: dict[str, str]) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {name: [] for name in case.commands}
    for command in case.commands.values():  # once for the disk cache and compiled files
        measure(command, environment)
    for _ in range(rounds):
        for name, command in case.commands.items():
            runs[name].append(measure(command, environment))
    return runs


def report(case: Case, runs: dict[str, list[Run]]) -> tuple[list[str], dict[str, object]]:
    lines = [case.name]
    medians = {name: statistics.median(run.seconds for run in found) for name, found in runs.items()}
    for name, found in runs.items():
        seconds = [run.seconds * 1000 for run in found]
        peak = max(run.peak_mib for run in found)
        spread = f"({min(seconds):.0f} to {max(seconds):.0f})"
        lines.append(f"  {name:8} {medians[name] * 1000:7.0f} ms  {spread:16} peak {peak:.0f} MiB")
    peak = max(run.peak_mib for run in runs["inspect"])
    lines.append(f"  inspect's peak: {peak:.0f} MiB, at most {PEAK_MIB}: {'holds' if peak <= PEAK_MIB else 'MISSED'}")
    ratios = []
    for what, to, limit in case.bounds:
        ratio = medians[what] / medians[to]
        verdict = "holds" if ratio <= limit else "MISSED"
        lines.append(f"  {what} / {to}: {ratio:.2f}, at most {limit:g}: {verdict}")
        ratios.append({"what": what, "to": to, "ratio": round(ratio, 3), "at_most": limit, "holds": ratio <= limit})
    detail = {
        name: {"ms": [round(run.seconds * 1000, 1) for run in found], "peak_mib": round(max(r.peak_mib for r in found))}
        for name, found in runs.items()
    }
    return lines, {"case": case.name, "runs": detail, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="smollm2,deepseek-v3,hub")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        cases: list[Case] = []
        server = None
        folder = scratch / "hub" / "acme" / "deepseek-v3"
        if "deepseek-v3" in wanted or "hub" in wanted:
            folder.parent.mkdir(parents=True)
            # In a process of its own: what this one has held counts as its children's peak.
            command = [sys.executable, "-m", "tools.skeleton", "deepseek-v3", str(folder)]
            subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        if "smollm2" in wanted:
            small(cases)
        if "deepseek-v3" in wanted:
            large(cases, folder)
        if "hub" in wanted:
            (folder.parent / "smollm2").symlink_to(real_model.smollm2().resolve())
            command = [sys.executable, "-m", "tests.servers.hub", str(scratch / "hub")]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
            assert server.stdout is not None
            environment["HF_ENDPOINT"] = server.stdout.readline().strip()
            environment["HF_HOME"] = str(scratch / "hf-home")
            remote(cases, environment["HF_ENDPOINT"], scratch)
        lines = [
            f"{time.strftime('%Y-%m-%d')}  {platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, load average {os.getloadavg()[0]:.2f} at the start, "
            f"{options.rounds} rounds",
        ]
        print(lines[0])
        details = []
        try:
            for case in cases:
                text, detail = report(case, run_case(case, options.rounds, environment))
                print("\n" + "\n".join(text), flush=True)
                lines += ["", *text]
                details.append(detail)
        finally:
            if server is not None:
                server.terminate()
                server.wait()
    lines.append(f"\nload average {os.getloadavg()[0]:.2f} at the end")
    print(lines[-1])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "cold_start.txt").write_text("\n".join(lines) + "\n")
    (RESULTS / "cold_start.json").write_text(json.dumps({"machine": lines[0], "cases": details}, indent=1) + "\n")


if __name__ == "__main__":
    main()
