"""`mlload quantize` beside other tools on the real model: the same samples, width and group; one independent judge.

    python -m benchmarks.quantize_peers                  every cell that is not there yet, then the table
    python -m benchmarks.quantize_peers --only gptq      those whose name holds the word
    python -m benchmarks.quantize_peers --again mlload   those again
    python -m benchmarks.quantize_peers --timing         draw 1 of everything once more, for time and memory alone
    python -m benchmarks.quantize_peers --table          nothing but the table

Needs `python -m tools.peers`, `tools.real_model smollm2` and `tools.english_text`. A cell is one tool, method and draw;
each is kept as a JSON file when it is done (--out), so that a run may be interrupted. Every tool gets the same token
ids: 16 samples of 256, drawn without overlap from calib.txt, once for each of 3 draws. Width 4, group 64; sym and asym
are different formats and are compared apart. Then the evaluation texts are read, which no tool has seen: perplexity and
KL to the float model in fp32, by benchmarks/quantize_peers_read.py, which knows nothing of mlload.

wall: of the whole command, imports included; cpu: user + system; peak: RssAnon + RssShmem of all its processes, sampled
every 20 ms. Where other processes used the machine meanwhile (over a tenth of a core), the wall time is marked with
~. Set OMP_NUM_THREADS for another number of threads than 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools import peers
from tools.english_text import folder as text_folder
from tools.real_model import cache, smollm2

GROUP, SAMPLES, LENGTH, DRAWS = 64, 16, 256, 3
EVALUATIONS = ("eval-a", "eval-b")
TOOL = Path(__file__).with_name("quantize_peers_tool.py")
RESULTS = Path(__file__).parent / "results"
BUSY = 0.1  # cores that others used
MEMORY = ("RssAnon:", "RssShmem:")
PAUSE = 0.02


class Cell(NamedTuple):
    """method: what is compared with each other, such as "awq-asym"."""

    tool: str
    method: str

    @property
    def name(self) -> str:
        return f"{self.tool}-{self.method}"

    @property
    def draws(self) -> int:
        return 1 if self.method.startswith("rtn") else DRAWS

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.tool == "mlload" else peers.python(self.tool)


# Peers first: they take long and do not change.
CELLS = (
    Cell("llmcompressor", "rtn-asym"),
    Cell("llmcompressor", "rtn-sym"),
    Cell("llmcompressor", "gptq-sym"),
    Cell("gptqmodel", "gptq-sym"),
    Cell("autoawq", "awq-asym"),
    Cell("llmcompressor", "awq-asym"),
    Cell("mlload", "rtn-asym"),
    Cell("mlload", "rtn-sym"),
    Cell("mlload", "awq-asym"),
    Cell("mlload", "gptq-sym"),
    Cell("mlload", "gptq-asym"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=cache() / "quantize-peers")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", nargs="*", default=[])
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write the table into benchmarks/results too")
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    head = heading()
    print("\n".join(head), flush=True)
    if not given.table:
        words = given.only + given.again
        for cell, draw in pending(given.out, words, timing=given.timing, again=bool(given.again)):
            record = quantized(cell, draw, given.out, timing=given.timing)
            print(json.dumps(record), flush=True)
    lines = [*head, "", *table(given.out)]
    print("\n".join(lines[len(head) :]))
    if given.keep:
        RESULTS.joinpath("quantize_peers.txt").write_text("\n".join(lines) + "\n")
        every = [json.loads(path.read_text()) for path in sorted(given.out.glob("*.json"))]
        RESULTS.joinpath("quantize_peers.json").write_text(json.dumps(every, indent=1) + "\n")


def heading() -> list[str]:
    """What every figure depends on."""
    files = [*(text_folder() / f"{name}.txt" for name in ("calib", *EVALUATIONS)), smollm2() / "model.safetensors"]
    lines = [f"4 bits, groups of {GROUP}, {SAMPLES} samples of {LENGTH} tokens, {DRAWS} draws; {os.cpu_count()} cores"]
    return lines + [f"{file.name:18} sha256 {digest_of(file)}" for file in files]


def digest_of(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def pending(out: Path, words: list[str], *, timing: bool, again: bool) -> Iterator[tuple[Cell, int]]:
    """Draw by draw, so that a first row of everything is there early."""
    for draw in (1,) if timing else range(1, DRAWS + 1):
        for cell in CELLS:
            chosen = not words or any(word in cell.name for word in words)
            missing = again or timing or not place(out, cell, draw).exists()
            if draw <= cell.draws and chosen and missing:
                if not cell.python.exists():
                    print(f"{cell.name}: no environment for it: python -m tools.peers {cell.tool}", flush=True)
                    continue
                yield cell, draw


def place(out: Path, cell: Cell, draw: int, *, timing: bool = False) -> Path:
    return out / f"{'timing-' if timing else ''}{cell.name}-{draw}.json"


def samples(draw: int) -> list[list[int]]:
    """Token ids [16][256], without overlap, in the order of the text."""
    from tokenizers import Tokenizer

    text = (text_folder() / "calib.txt").read_text()
    ids = Tokenizer.from_file(str(smollm2() / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    places = sorted(random.Random(draw).sample(range(len(ids) // LENGTH), SAMPLES))
    return [ids[at * LENGTH : (at + 1) * LENGTH] for at in places]


def quantized(cell: Cell, draw: int, out: Path, *, timing: bool) -> dict[str, Any]:
    """Runs a cell, judges what it wrote, and keeps the record."""
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        given, made = Path(scratch) / "samples.json", Path(scratch) / "out"
        given.write_text(json.dumps(samples(draw)))
        command = [
            str(cell.python),
            str(TOOL),
            cell.tool,
            cell.method,
            str(smollm2()),
            str(made),
            str(given),
            str(GROUP),
        ]
        told = timed(command, out / f"{cell.name}-{draw}.log")
        record = {"tool": cell.tool, "method": cell.method, "draw": draw, **told}
        if not timing:
            record["quality"] = judged(made, out)
        shutil.rmtree(made)
    place(out, cell, draw, timing=timing).write_text(json.dumps(record, indent=1) + "\n")
    return record


def judged(made: Path, out: Path) -> dict[str, Any]:
    from benchmarks.quantize_peers_read import chunks, dequantized, measure, model_of

    reference = out / "float.json"
    tokens = {name: chunks(smollm2(), text_folder() / f"{name}.txt") for name in EVALUATIONS}
    if not reference.exists():
        whole = model_of(smollm2(), None)
        found = {name: measure(whole, tokens[name], out / f"{name}.float", True) for name in EVALUATIONS}
        reference.write_text(json.dumps({"tool": "float", "method": "", "draw": 1, "quality": found}, indent=1) + "\n")
    model = model_of(smollm2(), dequantized(made))
    return {name: measure(model, tokens[name], out / f"{name}.float", False) for name in EVALUATIONS}


def timed(command: list[str], log: Path) -> dict[str, Any]:
    """Runs it. Gives wall and CPU seconds, the peak in bytes, and how many cores others used meanwhile."""
    began, busy_before, peak = time.monotonic(), machine_seconds(), 0
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | dict(os.environ)
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as said:
        # Some tools write logs where they are started.
        child = subprocess.Popen(command, stdout=said, stderr=errors, env=settings, cwd=log.parent)
        while True:
            done, status, usage = os.wait4(child.pid, os.WNOHANG)
            if done:
                break
            peak = max(peak, sum(memory_of(pid) for pid in family(child.pid)))
            time.sleep(PAUSE)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        words = said.read()
    wall, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    if child.returncode:
        raise SystemExit(f"{command[2:4]} ended with {child.returncode}: {log.read_text()[-2000:]}")
    others = max(0.0, machine_seconds() - busy_before - cpu) / wall
    told = json.loads(next(line for line in reversed(words.splitlines()) if line.startswith('{"seconds"')))
    return {
        "version": told["version"],
        "quantize_s": told["seconds"],
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "peak_bytes": peak,
        "others_cores": round(others, 2),
        "threads": settings["OMP_NUM_THREADS"],
    }


def family(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(below for child in children for below in family(int(child)))]


def memory_of(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(MEMORY))


def machine_seconds() -> float:
    """CPU seconds that all processes of the machine have used, nice ones too."""
    user, nice, system = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def table(out: Path) -> list[str]:
    """One row a tool and method, then what may be called better."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    lines = [f"{'method':10} {'tool':14} {'perplexity a':>23} {'perplexity b':>23} {'KL a':>7} {'KL b':>7}  draws"]
    judged_ones = [record for record in records if "quality" in record]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in judged_ones:
        rows.setdefault((record["method"], record["tool"]), []).append(record)
    for (method, tool), mine in sorted(rows.items()):
        cells = [spread([r["quality"][name]["perplexity"] for r in mine]) for name in EVALUATIONS]
        cells += [f"{mean([r['quality'][name]['kl'] for r in mine]):7.4f}" for name in EVALUATIONS]
        lines.append(f"{method:10} {tool:14} {' '.join(cells)}  {len(mine)}")
    lines += ["", *comparisons(rows), "", f"{'method':10} {'tool':14} {'wall s':>9} {'cpu s':>8} {'peak MiB':>9}"]
    lines[-1] += "   (draw 1; ~: others used the machine meanwhile; one thread)"
    quiet = {(r["method"], r["tool"]): r for r in sorted(records, key=chosen_for_time) if "wall_s" in r}
    for (method, tool), record in sorted(quiet.items()):
        wall = f"{'~' if record['others_cores'] > BUSY else ''}{record['wall_s']:.1f}"
        lines.append(
            f"{method:10} {tool:14} {wall:>9} {record['cpu_s']:8.1f} {record['peak_bytes'] / 2**20:9.0f}"
            f"   {record['version']}"
        )
    return lines


def chosen_for_time(record: dict[str, Any]) -> tuple[bool, bool]:
    """Last is best: draw 1, and of these the one that was run for its time."""
    return record["draw"] == 1, "quality" not in record


def comparisons(rows: dict[tuple[str, str], list[dict[str, Any]]]) -> Iterator[str]:
    """ "better" and "worse" only where the ranges over the draws lie apart."""
    for (method, tool), mine in sorted(rows.items()):
        if tool != "mlload":
            continue
        for (other_method, other), theirs in sorted(rows.items()):
            if other_method != method or other == "mlload":
                continue
            for name in EVALUATIONS:
                ours, found = ([r["quality"][name]["perplexity"] for r in some] for some in (mine, theirs))
                word = "better" if max(ours) < min(found) else "worse" if min(ours) > max(found) else "no difference"
                lower = "at or below" if mean(ours) <= mean(found) else "above"
                yield (
                    f"{method}, {name}: mlload {mean(ours):.3f}, {other} {mean(found):.3f}: "
                    f"mean {lower}, ranges say {word}"
                )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:7.3f}{'':16}"
    return f"{mean(values):7.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    main()
