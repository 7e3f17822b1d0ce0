"""Run the targets on many inputs. Every input has a number, and the number alone makes it again.

python -m tests.fuzz --count 100000            all targets
python -m tests.fuzz --target gguf --only 4711 one input, with its traceback
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
import traceback
from random import Random
from types import FrameType

from tests.fuzz.targets import SHARES, TARGETS

SECONDS = 5  # for one input; each takes a fraction of a millisecond to a few
MEMORY = 4 * 2**30  # of address space: an allocation that follows a lying length fails here
GROWTH = 300 * 2**10  # KiB by which the process may grow while it runs


class Hang(Exception):
    """An input took too long."""


def on_alarm(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {SECONDS} s")


def schedule(target: str | None) -> list[str]:
    return [target] if target else [name for name, share in SHARES.items() for _ in range(share)]


def run_one(seed: int, number: int, name: str) -> str | None:
    """None when all holds, else the traceback."""
    signal.alarm(SECONDS)
    try:
        TARGETS[name](Random(f"{seed}/{name}/{number}"))
    except (Exception, MemoryError):
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    return None


def run(count: int, seed: int = 0, target: str | None = None, first: int = 0) -> list[tuple[int, str, str]]:
    """(number, target, traceback) of every input for which something does not hold."""
    signal.signal(signal.SIGALRM, on_alarm)
    names = schedule(target)
    broken: list[tuple[int, str, str]] = []
    for number in range(first, first + count):
        name = names[number % len(names)]
        found = run_one(seed, number, name)
        if found is not None:
            broken.append((number, name, found))
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=sorted(TARGETS))
    parser.add_argument("--only", type=int, help="the number of one input")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    count, first = (1, options.only) if options.only is not None else (options.count, 0)
    run(min(count, 200), options.seed, options.target)  # imports and caches do not count as growth
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    broken = run(count, options.seed, options.target, first)
    seconds = time.monotonic() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for number, name, found in broken[:20]:
        print(f"--- {name} {number}\n{found}", file=sys.stderr)
    names = schedule(options.target)
    shares = ", ".join(f"{name} {names.count(name) * count // len(names):,}" for name in dict.fromkeys(names))
    print(f"{count:,} inputs (seed {options.seed}): {shares}")
    print(f"{len(broken)} broken, memory grown by {grown / 1024:.0f} MiB, {count / seconds:,.0f} inputs a second")
    return 1 if broken or grown > GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
