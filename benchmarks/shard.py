"""How fast `mlload shard` writes, as a share of what copying the same bytes costs on the same disk.

    python -m benchmarks.shard [--gigabytes 4] [--rounds 5] [--folder DIR]

A Llama-shaped bf16 checkpoint is written once. Then, in turn (A B C A B C ...):

    cp       cp -r SOURCE COPY; sync -f COPY
    ranks    mlload shard SOURCE -o OUT --tp 4
    files    mlload shard SOURCE -o OUT --max-shard-size 1GB

warm: the source is in the page cache; cold: its pages are dropped before each run. Printed are medians, spreads,
the machine's load, the ratio cp / mlload of the medians (bound: 0.7 or more) and the most memory that mlload held
(RssAnon + RssShmem, bound: 512 MiB); text and JSON are kept in benchmarks/results/.

Then `--dry-run` of the DeepSeek-V3 skeleton at tp 8 against the imports that any such command line costs
(python -c "import typer, rich.console, rich.table"), in turn; bound: 10 times.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LEAST_RATIO = 0.7
MOST_TIMES = 10
BARE = "import typer, rich.console, rich.table"
START = "from mlload.__main__ import main; main()"
PEAK_MIB = 512
HIDDEN, INTERMEDIATE, VOCABULARY = 2048, 5632, 32000


class Run(NamedTuple):
    """seconds of wall time; peak_mib of RssAnon + RssShmem; load average of the last minute when it began"""

    seconds: float
    peak_mib: float
    load: float


def write_source(folder: Path, nbytes: int, noise: bytes | None = None) -> None:
    """A Llama of about `nbytes` in bf16, in files of about 2 GB, with an index. noise: what weights repeat."""
    per_layer = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN)
    layers = max(1, (nbytes - 4 * VOCABULARY * HIDDEN) // per_layer)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        root = f"model.layers.{layer}"
        shapes |= {f"{root}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{root}.mlp.{name}_proj.weight": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
        shapes[f"{root}.mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
        shapes |= {f"{root}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": VOCABULARY, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    names = list(shapes)
    count = max(1, -(-nbytes // 2_000_000_000))
    weight_map = {}
    noise = os.urandom(1 << 24) if noise is None else noise
    total = 0
    for number in range(count):
        mine = names[number * len(names) // count : (number + 1) * len(names) // count]
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name in mine:
            size = 2
            for dim in shapes[name]:
                size *= dim
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
            at += size
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as handle:
            handle.write(len(text).to_bytes(8, "little") + text)
            left = at
            while left > 0:
                left -= handle.write(noise[: min(left, len(noise))])
            handle.flush()
            os.fsync(handle.fileno())
        total += at
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for path in folder.iterdir():
        with open(path, "rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def recall(folder: Path) -> None:
    """Read a folder's files into the page cache."""
    for path in folder.iterdir():
        with open(path, "rb", buffering=0) as handle:
            while handle.read(1 << 24):
                pass


def held(pid: int) -> float:
    """RssAnon + RssShmem of a process in MiB, 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024


def measure(command: Sequence[str], out: Path) -> Run:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    load = os.getloadavg()[0]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, held(process.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    shutil.rmtree(out)
    return Run(seconds, peak, load)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        source, out = Path(scratch) / "source", Path(scratch) / "out"
        write_source(source, int(asked.gigabytes * 1e9))
        nbytes = sum(path.stat().st_size for path in source.iterdir())
        mlload = [
            sys.executable,
            "-c",
            "from mlload.__main__ import main; main()",
            "shard",
            str(source),
            "-o",
            str(out),
        ]
        commands = {
            "cp": ["sh", "-c", f"cp -r {source} {out} && sync -f {out}"],
            "ranks": [*mlload, "--tp", "4"],
            "files": [*mlload, "--max-shard-size", "1GB"],
        }
        runs: dict[str, dict[str, list[Run]]] = {}
        for state in ("warm", "cold"):
            runs[state] = {name: [] for name in commands}
            for _ in range(asked.rounds):
                for name, command in commands.items():
                    (recall if state == "warm" else forget)(source)
                    runs[state][name].append(measure(command, out))
                    print(f"{state} {name} {runs[state][name][-1].seconds:.2f} s", file=sys.stderr, flush=True)
        dry = dry_run(Path(scratch), asked.rounds)
    return report(runs, nbytes, dry)


def dry_run(scratch: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of the bare imports and of a plan of 90,000 tensors, in turn."""
    folder = scratch / "deepseek-v3"
    subprocess.run([sys.executable, "-m", "tools.skeleton", "deepseek-v3", str(folder)], check=True, cwd=ROOT,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    commands = {
        "bare": [sys.executable, "-c", BARE],
        "dry run": [sys.executable, "-c", START, "shard", str(folder), "--tp", "8", "--dry-run"],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            if number:  # the first round fills the disk cache
                found[name].append(time.perf_counter() - started)
    return found


def report(runs: dict[str, dict[str, list[Run]]], nbytes: int, dry: dict[str, list[float]]) -> int:
    lines = [
        f"mlload shard of {nbytes / 1e9:.2f} GB, {os.cpu_count()} cores, {platform.platform()}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}",
        "",
        f"{'':14}{'median':>10}{'least':>10}{'most':>10}{'MB/s':>8}{'load':>7}{'MiB':>7}{'cp/this':>9}",
    ]
    held_to: list[bool] = []
    table: dict[str, Any] = {}
    for state, by_name in runs.items():
        base = statistics.median(run.seconds for run in by_name["cp"])
        for name, found in by_name.items():
            seconds = [run.seconds for run in found]
            median, peak = statistics.median(seconds), max(run.peak_mib for run in found)
            ratio = base / median
            load = statistics.median(run.load for run in found)
            told = ""
            if name != "cp":
                held_to += [ratio >= LEAST_RATIO, peak < PEAK_MIB]
                told = "" if all(held_to[-2:]) else "  below the bound"
            lines.append(
                f"{state + ' ' + name:14}{median:>9.2f}s{min(seconds):>9.2f}s{max(seconds):>9.2f}s"
                f"{nbytes / median / 1e6:>8.0f}{load:>7.1f}{peak:>7.0f}{ratio:>9.2f}{told}"
            )
            table[f"{state} {name}"] = {
                "seconds": seconds, "median": median, "ratio": ratio, "peak_mib": peak, "load": load,
            }  # fmt: skip
    bare, plan = (statistics.median(dry[name]) for name in ("bare", "dry run"))
    held_to.append(plan <= MOST_TIMES * bare)
    told = "" if held_to[-1] else "  above the bound"
    lines += [
        "",
        f"dry run of the DeepSeek-V3 skeleton at tp 8: {plan:.2f} s ({min(dry['dry run']):.2f} to "
        f"{max(dry['dry run']):.2f}), {plan / bare:.1f} times the bare imports ({bare:.2f} s), at most "
        f"{MOST_TIMES}{told}",
    ]
    lines += ["", f"bounds: cp / mlload of the medians at least {LEAST_RATIO}, less than {PEAK_MIB} MiB held"]
    text = "\n".join(lines) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "shard.txt").write_text(text)
    (RESULTS / "shard.json").write_text(json.dumps({"bytes": nbytes, "runs": table, "dry_run": dry}, indent=1) + "\n")
    return 0 if all(held_to) else 1


if __name__ == "__main__":
    raise SystemExit(main())
