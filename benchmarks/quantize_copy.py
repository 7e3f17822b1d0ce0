"""How fast `mlload quantize --method fp8` goes through a checkpoint, as a share of what copying it costs.

    python -m benchmarks.quantize_copy [--gigabytes 4] [--rounds 5] [--folder DIR]

A Llama-shaped checkpoint of random bf16 is written once. Then, in turn (A B C A B C ...), its source in the page cache:

    cp       cp -r SOURCE COPY; sync -f COPY
    fp8      mlload quantize SOURCE -o OUT --method fp8 --no-check
    checked  the same with the check at its end, which reads source and output once more

Printed are medians, spreads, the machine's load, the ratio cp / mlload of the medians (bound: 0.4 or more, for fp8) and
the most memory that mlload held (RssAnon + RssShmem). Both read all bytes of the source; fp8 writes half of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.shard import RESULTS, Run, measure, recall, write_source

LEAST_RATIO = 0.4


def weights(nbytes: int) -> bytes:
    """Normal bf16 values of the size that weights have."""
    import torch

    values = torch.randn(nbytes // 2, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    return values.view(torch.int16).numpy().tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--keep", action="store_true", help="keep the figures in benchmarks/results")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        source, out = Path(scratch) / "source", Path(scratch) / "out"
        write_source(source, int(asked.gigabytes * 1e9), weights(1 << 24))
        nbytes = sum(path.stat().st_size for path in source.iterdir())
        mlload = [sys.executable, "-m", "mlload", "quantize", str(source), "-o", str(out), "--method", "fp8"]
        commands = {
            "cp": ["sh", "-c", f"cp -r {source} {out} && sync -f {out}"],
            "fp8": [*mlload, "--no-check"],
            "checked": mlload,
        }
        runs: dict[str, list[Run]] = {name: [] for name in commands}
        for _ in range(asked.rounds):
            for name, command in commands.items():
                recall(source)
                runs[name].append(measure(command, out))
                print(f"{name} {runs[name][-1].seconds:.2f} s", file=sys.stderr, flush=True)
    base = statistics.median(run.seconds for run in runs["cp"])
    lines = [
        f"mlload quantize --method fp8 of {nbytes / 1e9:.2f} GB of bf16, {os.cpu_count()} cores, "
        f"{time.strftime('%Y-%m-%d')}",
        "",
        f"{'':10}{'median':>9}{'least':>9}{'most':>9}{'MB/s':>8}{'load':>7}{'MiB':>7}{'cp/this':>9}",
    ]
    ratios = {}
    for name, found in runs.items():
        seconds = [run.seconds for run in found]
        middle = statistics.median(seconds)
        ratios[name] = base / middle
        lines.append(
            f"{name:10}{middle:9.2f}{min(seconds):9.2f}{max(seconds):9.2f}{nbytes / 1e6 / middle:8.0f}"
            f"{max(run.load for run in found):7.2f}{max(run.peak_mib for run in found):7.0f}{ratios[name]:9.2f}"
        )
    passed = ratios["fp8"] >= LEAST_RATIO
    lines += [
        "",
        f"fp8 at {ratios['fp8']:.2f} of cp's rate, bound {LEAST_RATIO}: {'held' if passed else 'NOT held'}",
        f"with the check at its end, which is not in the bound: {ratios['checked']:.2f}",
    ]
    print("\n".join(lines))
    if asked.keep:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "quantize_copy.txt").write_text("\n".join(lines) + "\n")
        table = {name: [run._asdict() for run in found] for name, found in runs.items()}
        (RESULTS / "quantize_copy.json").write_text(json.dumps(table, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
