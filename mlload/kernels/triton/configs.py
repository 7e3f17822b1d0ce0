"""Tile sizes: a small table by rows of activations, and a cache of what was measured on a machine.

BN rows of W and BM rows of x a program; `splits` programs share K where there are too few tiles for the GPU's
multiprocessors. What `tune` measures is kept under the user's cache folder and read back by the next process; a file
of the same form beside this one ships what was measured for a GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Config(NamedTuple):
    block_n: int
    block_m: int
    warps: int
    stages: int
    splits: int = 1


# Rows up to -> (BN, BM, warps, stages); measured nowhere yet: from the counts in benchmarks/results/compiled.json.
BY_ROWS = (
    (16, Config(128, 16, 4, 5)),
    (32, Config(128, 32, 4, 4)),
    (64, Config(128, 64, 4, 4)),
    # Not 128 x 128: triton 3.6 compiles that to an empty kernel for compute capability 10.0.
    (1 << 30, Config(64, 128, 4, 3)),
)
# From here on the weight is dequantized once and multiplied by the library's GEMM.
DEQUANTIZE_FROM = 512
MULTIPROCESSORS = 132
MOST_SPLITS = 8
# A split must leave each program enough of K for its pipeline to fill.
LEAST_TILES = 8


def choose(m: int, n: int, k_tiles: int, multiprocessors: int = MULTIPROCESSORS, key: str = "") -> Config:
    """The configuration for M rows; a measured one where `key` has it."""
    measured = _measured().get(f"{key}:{_bucket(m)}:{n}:{k_tiles}") if key else None
    if measured is not None:
        return Config(*measured)
    config = next(config for rows, config in BY_ROWS if m <= rows)
    tiles = -(-n // config.block_n) * -(-m // config.block_m)
    splits = min(multiprocessors // max(tiles, 1), MOST_SPLITS, k_tiles // LEAST_TILES)
    return config._replace(splits=max(1, splits))


def fitting(config: Config, capability: int, group: int) -> Config:
    """Another tile where the compiler makes an empty kernel of this one: triton 3.9 of 128 rows and groups of up to 32,
    for compute capability 10.0."""
    if capability >= 100 and 0 < group <= 32 and config.block_m > 64:
        return BY_ROWS[2][1]._replace(splits=config.splits)
    return config


def warps_for(config: Config, capability: int, group: int, *, fp8: bool = False, words: bool = False) -> int:
    """Warps that hold the tile in registers without spilling: Hopper's matrix instructions need fewer registers than
    those before and after it. capability: 90 for 9.0; group: -1 for one scale a row; words: 4 bits with zero points."""
    if 0 < group <= 32 and config.block_m >= 64:
        return 8
    if capability == 90:
        return config.warps
    large = config.block_n * config.block_m >= 128 * 64
    before = capability < 90 and large
    few = not fp8 and config.block_m <= 16 and (group < 0 or (words and group == 128))
    after = capability >= 100 and ((fp8 and large) or few)
    return 8 if before or after else config.warps


def candidates(m: int, n: int, k_tiles: int, multiprocessors: int = MULTIPROCESSORS) -> tuple[Config, ...]:
    """What `tune` tries: at most eight."""
    base = choose(m, n, k_tiles, multiprocessors)
    tried = [base]
    for block_n in (64, 128):
        for stages in (4, 6):
            splits = {1, base.splits}
            tried += [base._replace(block_n=block_n, stages=stages, splits=split) for split in sorted(splits)]
    return tuple(dict.fromkeys(tried))[:8]


def tune(key: str, m: int, n: int, k_tiles: int, seconds: Callable[[Config], float], multiprocessors: int) -> Config:
    """Measures the candidates and keeps the fastest; a candidate that fails to launch counts as slow."""
    best = min(candidates(m, n, k_tiles, multiprocessors), key=seconds)
    found = dict(_read(user_file()))
    found[f"{key}:{_bucket(m)}:{n}:{k_tiles}"] = list(best)
    path = user_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(found, indent=1, sort_keys=True))
    part.replace(path)
    _measured.cache_clear()
    return best


def _bucket(m: int) -> int:
    """Rows are rounded up to a power of two: a few configurations, not one for each M."""
    return 1 << max(m - 1, 0).bit_length()


@cache
def _measured() -> dict[str, list[int]]:
    return {**_read(Path(__file__).with_name("measured.json")), **_read(user_file())}


def _read(path: Path) -> dict[str, list[int]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def user_file() -> Path:
    root = os.environ.get("MLLOAD_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "mlload"
    )
    return Path(root) / "kernels.json"
