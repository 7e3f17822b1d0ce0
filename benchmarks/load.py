"""How fast loaders read, as a share of what the best plain reader does in the same cache state.

    python -m benchmarks.load [--gigabytes 4] [--rounds 5] [--folder DIR] [--peers-python PATH]

A Llama-shaped bf16 checkpoint is written once. Each method runs in a process of its own, in turn (A B C A B C ...):

    preadv      4 threads, 2 MiB reads into reused memory: the plain reader that a cold disk is measured by
    mapped      4 threads touch every page of the mapped files: the plain reader that a full cache is measured by
    mapped_copy the same, every page copied into reused memory: that reader, for bytes on their way to a device
    load_file   safetensors.torch.load_file, then a byte of every page
    cpu         mlload's safetensors loader as load-test uses it on a CPU, then a byte of every page
    buffers     mlload's safetensors loader, every piece through its reused buffers (bytes ready for a device)
    place       mlload's safetensors loader, into parameters that must keep memory that was touched before
    runai       runai-model-streamer, every tensor cloned   } with the python of --peers-python, where
    fast        fastsafetensors (nogds), every tensor kept  } they are installed; left out where not

cold: the files' pages are dropped before each run; warm: they are in the page cache. A quarter more memory than the
files take is touched and freed before each run, so that none pays for pages that a host has to give first. Then tp 4,
cold: four processes at once read their own bytes; `read_bytes` and `rchar` (/proc/self/io) summed over them against
the checkpoint's size, and the time from the first read of any to the last byte of any against tp 1. memory: RssAnon +
RssShmem above what the process had before. Text and JSON are kept in benchmarks/results/, with the bounds beside the
figures.
"""

# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-call"
from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.shard import write_source

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OURS = ("cpu", "buffers", "place")
PEERS = ("runai", "fast")
METHODS = ("preadv", "mapped", "mapped_copy", "load_file", *OURS, *PEERS)
BLOCK = 2 << 20
JOB = 16 << 20
THREADS = 4
# (state, method, the method it is measured by, at least this share of its speed)
BOUNDS = (
    ("cold", "cpu", "preadv", 0.9),
    ("warm", "cpu", "mapped", 0.9),
    ("cold", "buffers", "preadv", 0.9),
    ("warm", "buffers", "mapped_copy", 0.9),
    ("cold", "cpu", "load_file", 1.0),
    ("warm", "cpu", "load_file", 1.0),
    *((state, "cpu", peer, 3.0) for state in ("cold", "warm") for peer in PEERS),
)


def counters() -> dict[str, int]:
    """read_bytes and rchar of this process so far."""
    with open("/proc/self/io") as file:
        return {key: int(value) for key, value in (line.split(": ") for line in file.read().strip().splitlines())}


def own_memory() -> int:
    """RssAnon + RssShmem in bytes."""
    with open("/proc/self/status") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def run(method: str, folder: Path, tp: int, rank: int) -> dict[str, Any]:
    """One method in this process: when it began and ended, what was read, and how its memory grew."""
    import torch

    torch.set_num_threads(1)
    files = sorted(folder.glob("*.safetensors"))
    work = prepared(method, folder, files, tp, rank)
    stop, peak = threading.Event(), [own_memory()]
    before_memory = peak[0]

    def watch() -> None:
        while not stop.wait(0.02):
            peak[0] = max(peak[0], own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    print("ready", flush=True)
    sys.stdin.readline()  # ranks begin together, as they do once they have found one another
    before, cpu, started = counters(), time.process_time(), time.time()
    work()
    ended, spent = time.time(), time.process_time() - cpu
    after = counters()
    stop.set()
    watcher.join()
    return {
        "started": started,
        "ended": ended,
        "seconds": ended - started,
        "cpu_seconds": spent,
        "peak": max(peak[0], own_memory()) - before_memory,
        **{key: after[key] - before[key] for key in ("read_bytes", "rchar")},
    }


def touch(tensors: Any) -> None:
    import torch

    for tensor in tensors:
        tensor.detach().view(torch.uint8).flatten()[::4096].sum()


def prepared(method: str, folder: Path, files: list[Path], tp: int, rank: int) -> Callable[[], object]:
    """What the clock runs over; imports, plans and allocations are done before."""
    plain: dict[str, Callable[[list[Path]], object]] = {
        "preadv": preadv, "mapped": mapped, "mapped_copy": lambda files: mapped(files, copy=True),
    }  # fmt: skip
    if method in plain:
        return lambda: plain[method](files)
    if method == "load_file":
        from safetensors.torch import load_file

        return lambda: touch(tensor for file in files for tensor in load_file(file).values())
    if method == "runai":
        return runai(files)
    if method == "fast":
        return fast(files)
    return loader(method, folder, tp, rank)


def loader(method: str, folder: Path, tp: int, rank: int) -> Callable[[], object]:
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
    chosen = get_model_loader("safetensors")
    if method == "buffers":

        def through() -> None:
            for _ in chosen.tensors(plan, rank, {}):
                pass

        return through
    places = {}
    for name, (shape, _) in own_shapes(plan, rank).items():
        memory = torch.empty(shape, dtype=torch.bfloat16)
        if method == "place":
            memory.fill_(1)
        places[name] = Destination(torch.nn.Parameter(memory, requires_grad=False), shape, fixed=method == "place")

    def fill() -> None:
        chosen.load(plan, rank, places)
        touch(place.param for place in places.values())

    return fill


def runai(files: list[Path]) -> Callable[[], object]:
    from runai_model_streamer import SafetensorsStreamer

    def stream() -> list[Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(file) for file in files])
            return [tensor.clone() for _, tensor in streamer.get_tensors()]

    return stream


def fast(files: list[Path]) -> Callable[[], object]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def stream() -> list[Any]:
        reader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        reader.add_filenames({0: [str(file) for file in files]})
        held = reader.copy_files_to_device()
        kept = [held.get_tensor(name).clone() for name in list(held.key_to_rank_lidx)]
        held.close()
        reader.close()
        return kept

    return stream


def in_jobs(files: list[Path], work: Callable[[Path, int, bytearray], None]) -> None:
    """`work` on every 16 MiB of the files, by THREADS threads with a block of reused memory each."""
    jobs = iter([(file, offset) for file in files for offset in range(0, file.stat().st_size, JOB)])
    lock = threading.Lock()

    def one() -> None:
        block = bytearray(BLOCK)
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                return
            work(*job, block)

    threads = [threading.Thread(target=one) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def preadv(files: list[Path]) -> None:
    """Every byte of the files into the blocks."""
    opened = threading.local()  # a descriptor for each thread: the kernel reads ahead for each

    def read(file: Path, offset: int, block: bytearray) -> None:
        descriptors = opened.__dict__.setdefault("descriptors", {})
        if file not in descriptors:
            descriptors[file] = os.open(file, os.O_RDONLY)
        for start in range(offset, offset + JOB, BLOCK):
            if not os.preadv(descriptors[file], [block], start):
                return

    in_jobs(files, read)


def mapped(files: list[Path], *, copy: bool = False) -> None:
    """A byte of every page of the mapped files; with copy every byte, into the blocks."""
    import numpy as np

    views = {}
    for file in files:
        with open(file, "rb") as handle:
            views[file] = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)

    def look(file: Path, offset: int, block: bytearray) -> None:
        part = views[file][offset : offset + JOB]
        if not copy:
            part[:: mmap.PAGESIZE].max()
            return
        into = np.frombuffer(block, dtype=np.uint8)
        for start in range(0, len(part), BLOCK):
            piece = part[start : start + BLOCK]
            into[: len(piece)] = piece

    in_jobs(files, look)


def settle(nbytes: int) -> None:
    """Touches so much memory and frees it: a virtual machine may have given its free pages back to the host, and who
    takes one first would pay for that."""
    touching = (
        f"import mmap; m = mmap.mmap(-1, {nbytes}); m.madvise(mmap.MADV_HUGEPAGE); "
        f"[m.__setitem__(at, 1) for at in range(0, {nbytes}, mmap.PAGESIZE)]"
    )
    subprocess.run([sys.executable, "-c", touching], check=True)


def drop(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(folder: Path) -> None:
    preadv(sorted(folder.glob("*.safetensors")))


def spawn(method: str, folder: Path, python: str, tp: int = 1) -> list[dict[str, Any]] | None:
    """The method on all ranks at once, a process each; None where one fails."""
    command = [python, "-m", "benchmarks.load", "--one", method, "--folder", str(folder), "--tp", str(tp)]
    processes = [
        subprocess.Popen(
            [*command, "--rank", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RUNAI_STREAMER_LOG_TO_STDERR": "0"},
        )
        for rank in range(tp)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        return None
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--only", help="methods, with commas between")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", choices=METHODS)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one, options.folder, options.tp, options.rank)))
        return
    methods = tuple(options.only.split(",")) if options.only else METHODS
    with tempfile.TemporaryDirectory(prefix="mlload-bench-", dir=options.folder) as name:
        folder = Path(name) / "checkpoint"
        write_source(folder, int(options.gigabytes * 1e9))
        report(folder, options.rounds, methods, options.peers_python, options.out)


def report(folder: Path, rounds: int, methods: tuple[str, ...], peers_python: str, out: Path) -> None:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {"cold": {}, "warm": {}}
    absent: set[str] = set()
    loads = [os.getloadavg()[0]]
    for _ in range(rounds):
        for state in ("cold", "warm"):
            for method in methods:
                if method in absent:
                    continue
                (drop if state == "cold" else warm)(folder)
                settle(5 * size // 4)
                ranks = spawn(method, folder, peers_python if method in PEERS else sys.executable)
                if ranks is None:
                    absent.add(method)
                    continue
                found[state].setdefault(method, []).append(ranks[0])
        loads.append(os.getloadavg()[0])
    one: list[list[dict[str, Any]]] = []
    four: list[list[dict[str, Any]]] = []
    for _ in range(rounds if "cpu" in methods else 0):
        for tp, kept in ((1, one), (4, four)):
            drop(folder)
            settle(5 * size // 4)
            ranks = spawn("cpu", folder, sys.executable, tp)
            assert ranks is not None
            kept.append(ranks)
    loads.append(os.getloadavg()[0])
    text = "\n".join(lines(size, rounds, found, one, four, loads, sorted(absent)))
    print(text)
    out.mkdir(exist_ok=True)
    (out / "load.txt").write_text(text + "\n")
    whole = {"bytes": size, "runs": found, "tp1": one, "tp4": four, "load": loads, "date": time.strftime("%F")}
    (out / "load.json").write_text(json.dumps(whole, indent=1) + "\n")


def lines(
    size: int,
    rounds: int,
    found: dict[str, dict[str, list[dict[str, Any]]]],
    one: list[list[dict[str, Any]]],
    four: list[list[dict[str, Any]]],
    loads: list[float],
    absent: list[str],
) -> list[str]:
    machine = platform.processor() or platform.machine()
    said = [
        f"{size / 1e9:.2f} GB, {rounds} rounds, {machine}, {os.cpu_count()} cores, "
        f"load average {min(loads):.1f} to {max(loads):.1f}"
    ]
    if absent:
        said.append(f"not measured, they do not run here: {', '.join(absent)}")
    medians: dict[tuple[str, str], float] = {}
    for state, by in found.items():
        for method, runs in by.items():
            times = [one_run["seconds"] for one_run in runs]
            medians[state, method] = value = statistics.median(times)
            spent = statistics.median(one_run["cpu_seconds"] for one_run in runs)
            peak = max(one_run["peak"] for one_run in runs)
            said.append(
                f"{state:5} {method:11} {value:7.3f} s ({min(times):.3f} to {max(times):.3f})  "
                f"{size / value / 1e9:6.2f} GB/s  cpu {spent:6.3f} s  memory +{peak / 2**20:.0f} MiB"
            )
    said.append("")
    for state, method, by_method, least in BOUNDS:
        if (state, method) in medians and (state, by_method) in medians:
            share = medians[state, by_method] / medians[state, method]
            held = "held" if share >= least else "MISSED"
            said.append(f"{state:5} {method:8} {share:6.2f} x {by_method:12} (bound {least:g}: {held})")
    for method in PEERS:
        if ("cold", method) in medians and ("cold", "preadv") in medians:
            share = medians["cold", method] / medians["cold", "preadv"]
            said.append(f"cold  the plain reader, which keeps nothing, is {share:.2f} x {method}")
    if four:
        for key in ("read_bytes", "rchar"):
            share = max(sum(rank[key] for rank in ranks) for ranks in four) / size
            said.append(f"tp 4 cold: {key} {share:.3f} of the checkpoint (bound 1.05)")
        walls = [
            statistics.median(max(r["ended"] for r in ranks) - min(r["started"] for r in ranks) for ranks in runs)
            for runs in (one, four)
        ]
        said.append(f"tp 4 cold: {walls[1]:.3f} s from the first read to the last byte, tp 1 {walls[0]:.3f} s")
        peak = max(rank["peak"] for ranks in (*one, *four) for rank in ranks)
        said.append(f"memory of a rank beyond what it had: at most {peak / 2**20:.0f} MiB (bound: its weights + 512)")
    return said


if __name__ == "__main__":
    main()
