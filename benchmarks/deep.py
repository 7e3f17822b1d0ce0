"""How fast `mlload validate --deep` reads, as ratios within one run on one machine.

    python -m benchmarks.deep [--rounds 5] [--gb 4] [--folder FOLDER]

A checkpoint of four shards is made of random bfloat16 numbers, nothing sparse, and deleted afterwards.
Contenders take turns (A B A B ...), so that what else the machine does falls on all of them alike.
Printed are medians, spreads and ratios of medians, with the bounds that we hold ourselves to; text
and JSON are kept in benchmarks/results/. Dropping the page cache needs root; without it cold is left out.

    read        preadv into reused memory on as many threads, in blocks of 2 MiB; warm also in blocks of 16 MiB
    sha256      the same, and hashlib on every block, one file a thread
    deep        the pass of --deep: everything looked at
    deep+sha256 the same with the digest of every file
    command     `mlload validate --deep` as a whole process, its start (and, cold, that of Python and numpy from the
                disk) included; the others run inside this process
"""

from __future__ import annotations

import argparse
import hashlib
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.streaming import default_threads
from mlload.plan.model import read_model
from mlload.validators.deep.roles import roles
from mlload.validators.deep.scan import Asked, scan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHARDS, HIDDEN, MLP, VOCAB, KV = 4, 4096, 14336, 32000, 1024
SPAN = 64 << 20

Contender = Callable[[], object]


class Bound(NamedTuple):
    """Speed of `what` over speed of `to` must be at least `ratio`."""

    what: str
    to: str
    ratio: float


class Case(NamedTuple):
    name: str
    cold: bool
    contenders: Mapping[str, Contender]
    bounds: tuple[Bound, ...]


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        root = f"model.layers.{layer}"
        found |= {f"{root}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qo"}
        found |= {f"{root}.self_attn.{name}_proj.weight": (KV, HIDDEN) for name in "kv"}
        found |= {f"{root}.mlp.{name}_proj.weight": (MLP, HIDDEN) for name in ("gate", "up")}
        found[f"{root}.mlp.down_proj.weight"] = (HIDDEN, MLP)
        found |= {f"{root}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    found["lm_head.weight"] = (VOCAB, HIDDEN)
    return found


def make(folder: Path, gb: float) -> None:
    """Shards of equal bytes, of random bfloat16 numbers between 2**-30 and 2, as no compression could hold them."""
    layers = max(1, round((gb * 1e9 - 4 * VOCAB * HIDDEN) / (2 * HIDDEN * (2 * HIDDEN + 2 * KV + 3 * MLP))))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": MLP,
        "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": VOCAB, "max_position_embeddings": 4096, "tie_word_embeddings": False, "dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    entries = list(shapes(layers).items())
    total = sum(int(np.prod(shape)) * 2 for _, shape in entries)
    generator, index, shard, held = np.random.default_rng(0), {}, 1, 0
    parts: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for name, shape in entries:
        if held > total * shard / SHARDS:
            shard += 1
        held += int(np.prod(shape)) * 2
        parts.setdefault(shard, []).append((name, shape))
    for shard, tensors in parts.items():
        file = f"model-{shard:05}-of-{len(parts):05}.safetensors"
        header, at = {}, 0
        for name, shape in tensors:
            size = int(np.prod(shape)) * 2
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
            index[name], at = file, at + size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as handle:
            handle.write(len(text).to_bytes(8, "little") + text)
            for _, shape in tensors:
                left = int(np.prod(shape))
                while left:
                    count = min(left, 16 << 20)
                    bits = generator.integers(0, 1 << 16, count, dtype=np.uint16)
                    handle.write((bits & 0x8FFF | 0x3000).tobytes())  # exponents 0x60 to 0x7f: finite
                    left -= count
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )


class Reader:
    """The plain contenders: as many threads, memory that is reused, and nothing else."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.files = sorted(folder.glob("*.safetensors"))
        self.threads = threads

    def read(self, block: int) -> None:
        spans = [
            (f, at, min(SPAN, f.stat().st_size - at)) for f in self.files for at in range(0, f.stat().st_size, SPAN)
        ]
        self._run(spans, block, hashed=False)

    def sha256(self) -> None:
        self._run([(file, 0, file.stat().st_size) for file in self.files], 2 << 20, hashed=True)

    def _run(self, spans: list[tuple[Path, int, int]], block: int, *, hashed: bool) -> None:
        queue, lock = iter(spans), threading.Lock()

        def work() -> None:
            room = mmap.mmap(-1, block * 2)
            room.madvise(mmap.MADV_HUGEPAGE)
            view = memoryview(room)
            while True:
                with lock:
                    span = next(queue, None)
                if span is None:
                    return
                file, start, length = span
                state = hashlib.sha256()
                descriptor = os.open(file, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                done = 0
                while done < length:
                    got = os.preadv(descriptor, [view[: min(block, length - done)]], start + done)
                    if hashed:
                        state.update(view[:got])
                    done += got
                os.close(descriptor)
                state.hexdigest()

        workers = [threading.Thread(target=work) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def cases(folder: Path, threads: int, *, cold: bool) -> list[Case]:
    checkpoint = Checkpoint.open(str(folder))
    known = roles(read_model(checkpoint))
    reader = Reader(folder, threads)
    nbytes = sum(file.size for file in checkpoint.files if file.kind == "safetensors")
    weights = frozenset(file.name for file in checkpoint.files if file.kind == "safetensors")
    command = [sys.executable, "-m", "mlload", "validate", "--deep", "--format", "json", str(folder)]

    def whole() -> None:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not done.stdout.startswith("{"):
            raise SystemExit(f"the command ended with {done.returncode}: {done.stderr[-2000:]}")
        found = json.loads(done.stdout)["results"][0]  # a folder of weights alone fails for want of a tokenizer
        if found["deep"]["bytes"] < nbytes or any(finding["code"].startswith("DP") for finding in found["findings"]):
            raise SystemExit(f"not what was to be measured: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    read: dict[str, Contender] = {"read": lambda: reader.read(2 << 20)}
    deep: dict[str, Contender] = {"deep": lambda: scan(checkpoint, known, Asked(True, frozenset()))}
    hashed: dict[str, Contender] = {
        "sha256": reader.sha256,
        "deep+sha256": lambda: scan(checkpoint, known, Asked(True, weights)),
    }
    found = [
        Case(
            "cold",
            True,
            {**read, **deep, "command": whole},
            (Bound("deep", "read", 0.8),),
        ),
        Case(
            "warm",
            False,
            {**read, "read 16 MiB": lambda: reader.read(16 << 20), **deep, "command": whole},
            (Bound("deep", "read", 0.4), Bound("deep", "read 16 MiB", 0.4)),
        ),
        Case("warm, hashed", False, hashed, (Bound("deep+sha256", "sha256", 0.7),)),
    ]
    return [case for case in found if cold or not case.cold]


def drop_caches() -> bool:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def run_case(case: Case, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in case.contenders}
    if not case.cold:
        for contender in case.contenders.values():
            contender()
    for _ in range(rounds):
        for name, contender in case.contenders.items():
            if case.cold:
                drop_caches()
            started = time.perf_counter()
            contender()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def report(case: Case, seconds: dict[str, list[float]], nbytes: int) -> tuple[list[str], dict[str, object]]:
    lines = [case.name]
    speeds = {name: [nbytes / second / 1e9 for second in found] for name, found in seconds.items()}
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    for name, found in speeds.items():
        lines.append(f"  {name:12} {medians[name]:6.2f} GB/s  ({min(found):.2f} to {max(found):.2f})")
    ratios = []
    for what, to, limit in case.bounds:
        ratio = medians[what] / medians[to]
        lines.append(f"  {what} / {to}: {ratio:.2f}, at least {limit:g}: {'holds' if ratio >= limit else 'MISSED'}")
        ratios.append({"what": what, "to": to, "ratio": round(ratio, 3), "at_least": limit, "holds": ratio >= limit})
    detail = {name: [round(speed, 3) for speed in found] for name, found in speeds.items()}
    return lines, {"case": case.name, "gb_per_s": detail, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--folder", help="where to make the checkpoint; a temporary one otherwise")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        make(folder, options.gb)
        nbytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        threads = default_threads(Checkpoint.open(str(folder)).source)
        lines = [
            f"{time.strftime('%Y-%m-%d')}  {platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, numpy {np.__version__}, load average {os.getloadavg()[0]:.2f} at the start",
            f"{nbytes / 1e9:.2f} GB in {SHARDS} files, {threads} threads, {options.rounds} rounds",
        ]
        print("\n".join(lines))
        details = []
        for case in cases(folder, threads, cold=drop_caches()):
            text, detail = report(case, run_case(case, options.rounds), nbytes)
            print("\n" + "\n".join(text), flush=True)
            lines += ["", *text]
            details.append(detail)
    lines.append(f"\nload average {os.getloadavg()[0]:.2f} at the end")
    print(lines[-1])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "deep.txt").write_text("\n".join(lines) + "\n")
    (RESULTS / "deep.json").write_text(json.dumps({"machine": lines[:2], "cases": details}, indent=1) + "\n")


if __name__ == "__main__":
    main()
