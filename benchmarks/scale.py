"""What each command that reads headers alone costs on a checkpoint of one terabyte.

    python -m benchmarks.scale [--rounds 5]

The checkpoint is a skeleton (true names, shapes and files, holes for weights) of DeepSeek-V3's architecture with 384
experts a layer, fp8 in 128x128 blocks. In turn with `bare`, as in `benchmarks.cold_start`; medians, spreads and peaks
of memory are kept in benchmarks/results/scale.{txt,json}.
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
from pathlib import Path

from benchmarks.cold_start import BARE, RESULTS, ROOT, Run, measure, mlload
from tools.skeleton import listed

EXPERTS = 384


def commands(folder: Path) -> dict[str, list[str]]:
    source = str(folder)
    return {
        "bare": [sys.executable, "-c", BARE],
        "inspect": mlload("inspect", source),
        "validate": mlload("validate", source, "--tp", "8", "--pp", "2", "--nodes", "2", "--gpu", "h200"),
        "validate ep": mlload("validate", source, "--tp", "16", "--ep", "--gpu", "h200"),
        "shard plan": mlload("shard", source, "-o", str(folder.parent / "out"), "--tp", "8", "--pp", "2", "--dry-run"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "terabyte"
        config = {**listed()["deepseek-v3"]["config"], "n_routed_experts": EXPERTS}
        asked = Path(temporary) / "config.json"
        asked.write_text(json.dumps(config))
        # In a process of its own: what this one has held counts as its children's peak.
        command = [sys.executable, "-m", "tools.skeleton", str(asked), str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        files = sorted(folder.glob("*.safetensors"))
        nbytes = sum(file.stat().st_size for file in files)
        machine = (
            f"{time.strftime('%Y-%m-%d')}  {platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, load average {os.getloadavg()[0]:.2f} at the start, {rounds} rounds"
        )
        lines = [machine, f"{nbytes / 1e12:.2f} TB in {len(files)} files, {EXPERTS} experts a layer", ""]
        print("\n".join(lines), flush=True)
        runs: dict[str, list[Run]] = {name: [] for name in commands(folder)}
        for _ in range(rounds):
            for name, words in commands(folder).items():
                runs[name].append(measure(words, environment))
    bare = statistics.median(run.seconds for run in runs["bare"])
    for name, found in runs.items():
        seconds = [run.seconds for run in found]
        median = statistics.median(seconds)
        peak = max(run.peak_mib for run in found)
        lines.append(
            f"{name:12} {median * 1000:6.0f} ms  ({min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f})  "
            f"{median / bare:5.1f} times bare  peak {peak:.0f} MiB"
        )
        print(lines[-1], flush=True)
    lines += ["", f"load average {os.getloadavg()[0]:.2f} at the end"]
    print(lines[-1])
    detail = {
        name: {"ms": [round(run.seconds * 1000, 1) for run in found], "peak_mib": round(max(r.peak_mib for r in found))}
        for name, found in runs.items()
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "scale.txt").write_text("\n".join(lines) + "\n")
    (RESULTS / "scale.json").write_text(
        json.dumps({"machine": machine, "bytes": nbytes, "runs": detail}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
