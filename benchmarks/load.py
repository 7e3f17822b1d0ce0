"""How fast loaders read, as a share of what the best plain reader does in the same cache state.

    python -m benchmarks.load [--gigabytes 4] [--rounds 5] [--folder DIR]

A Llama-shaped bf16 checkpoint is written once. Each method runs in a process of its own, in turn (A B C A B C ...):

    preadv     4 threads, 2 MiB reads into reused memory: the plain reader that a cold disk is measured by
    load_file  safetensors.torch.load_file, then a byte of every page
    buffers    mlload's safetensors loader, every piece through its reused buffers (bytes ready for a device)
    place      mlload's safetensors loader, straight into parameters that were allocated and touched before
    fresh      the same into parameters that were not: what load-test does on a CPU

cold: the files' pages are dropped before each run; warm: they are in the page cache. Then tp 4, cold: four processes at
once read their own bytes; `read_bytes` and `rchar` (/proc/self/io) summed over them against the checkpoint's size.
Text and JSON are kept in benchmarks/results/. Bounds (buffers against preadv: 0.9; place never slower than load_file;
tp 4: 1.05 times the bytes) are printed beside the figures.
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
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.shard import write_source

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
METHODS = ("preadv", "load_file", "buffers", "place", "fresh")
BLOCK = 2 << 20
THREADS = 4


def counters() -> dict[str, int]:
    """read_bytes and rchar of this process so far."""
    with open("/proc/self/io") as file:
        return {key: int(value) for key, value in (line.split(": ") for line in file.read().strip().splitlines())}


def run(method: str, folder: Path, tp: int, rank: int) -> dict[str, Any]:
    """One method in this process: seconds from the first read to the last byte placed, and what was read."""
    import torch

    torch.set_num_threads(1)
    files = sorted(folder.glob("*.safetensors"))
    work = prepared(method, folder, files, tp, rank)
    before, started = counters(), time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    after = counters()
    return {"seconds": seconds, **{key: after[key] - before[key] for key in ("read_bytes", "rchar")}}


def prepared(method: str, folder: Path, files: list[Path], tp: int, rank: int) -> Any:
    """What the clock runs over; imports, plans and allocations are done before."""
    if method == "preadv":
        return lambda: preadv(files)
    if method == "load_file":
        from safetensors.torch import load_file

        def touched() -> None:
            import torch

            for file in files:
                for tensor in load_file(file).values():
                    tensor.view(torch.uint8).flatten()[::4096].sum()

        return touched
    import torch

    from mlload import profiles
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.loader import get_model_loader
    from mlload.loader.destination import Destination
    from mlload.loader.reads import own_shapes
    from mlload.plan.mesh import Mesh
    from mlload.plan.model import read_model
    from mlload.plan.plan import make_plan

    plan = make_plan(read_model(Checkpoint.open(str(folder))), profiles.load("native", None), Mesh(tp))
    loader = get_model_loader("safetensors")
    shapes = {name: shape for name, (shape, _) in own_shapes(plan, rank).items()}
    if method == "buffers":

        def through() -> None:
            for _ in loader.tensors(plan, rank, {}):
                pass

        return through
    params = {}
    for name, shape in shapes.items():
        memory = torch.empty(shape, dtype=torch.bfloat16)
        if method == "place":
            memory.fill_(1)
        params[name] = Destination(torch.nn.Parameter(memory, requires_grad=False), shape)
    return lambda: loader.load(plan, rank, params)


def preadv(files: list[Path]) -> None:
    """Every byte of the files by THREADS threads into one block each."""
    jobs = [(file, offset) for file in files for offset in range(0, file.stat().st_size, 16 << 20)]
    lock, pending = threading.Lock(), iter(jobs)

    def work() -> None:
        block = bytearray(BLOCK)
        opened: dict[Path, int] = {}
        while True:
            with lock:
                job = next(pending, None)
            if job is None:
                break
            file, offset = job
            if file not in opened:
                opened[file] = os.open(file, os.O_RDONLY)
            for start in range(offset, offset + (16 << 20), BLOCK):
                if not os.preadv(opened[file], [block], start):
                    break
        for descriptor in opened.values():
            os.close(descriptor)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def drop(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def spawn(method: str, folder: Path, tp: int = 1) -> list[dict[str, Any]]:
    """The method on all ranks at once, a process each."""
    command = [sys.executable, "-m", "benchmarks.load", "--one", method, "--folder", str(folder), "--tp", str(tp)]
    processes = [
        subprocess.Popen(
            [*command, "--rank", str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(tp)
    ]
    return [json.loads(process.communicate()[0]) for process in processes]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", choices=METHODS)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one, options.folder, options.tp, options.rank)))
        return
    with tempfile.TemporaryDirectory(prefix="mlload-bench-", dir=options.folder) as name:
        folder = Path(name) / "checkpoint"
        write_source(folder, int(options.gigabytes * 1e9))
        report(folder, options.rounds)


def report(folder: Path, rounds: int) -> None:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    seconds: dict[str, dict[str, list[float]]] = {state: {m: [] for m in METHODS} for state in ("cold", "warm")}
    loads = [os.getloadavg()[0]]
    for _ in range(rounds):
        for state in ("cold", "warm"):
            for method in METHODS:
                if state == "cold":
                    drop(folder)
                seconds[state][method].append(spawn(method, folder)[0]["seconds"])
    loads.append(os.getloadavg()[0])
    lines = [f"{size / 1e9:.2f} GB, {rounds} rounds, {platform.processor() or platform.machine()}, load {loads}"]
    medians = {s: {m: statistics.median(v) for m, v in by.items()} for s, by in seconds.items()}
    for state, by in medians.items():
        for method, value in by.items():
            spread = seconds[state][method]
            lines.append(
                f"{state:5} {method:10} {value:7.2f} s ({min(spread):.2f} to {max(spread):.2f})  "
                f"{size / value / 1e9:5.2f} GB/s  {by['preadv'] / value:5.2f} x preadv  "
                f"{by['load_file'] / value:5.2f} x load_file"
            )
    drop(folder)
    ranks = spawn("fresh", folder, 4)
    drop(folder)
    (one,) = spawn("fresh", folder)
    shares = {key: sum(rank[key] for rank in ranks) / size for key in ("read_bytes", "rchar")}
    lines.append(
        f"tp 4 cold: read_bytes {shares['read_bytes']:.3f}, rchar {shares['rchar']:.3f} of the checkpoint "
        f"(bound 1.05); {max(rank['seconds'] for rank in ranks):.2f} s, tp 1 {one['seconds']:.2f} s"
    )
    text = "\n".join(lines)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "load.txt").write_text(text + "\n")
    found = {"bytes": size, "seconds": seconds, "tp4": ranks, "tp1": one, "load": loads, "date": time.strftime("%F")}
    (RESULTS / "load.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
