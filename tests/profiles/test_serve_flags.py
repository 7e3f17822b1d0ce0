"""Flags of `vllm serve`: the data against vLLM's own parser, and how spellings are understood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlload.profiles import available, load
from mlload.profiles.serve_flags import FlagTable, flag_table

PARSER = Path(__file__).parents[1] / "data" / "vllm" / "serve_parser_0_32_0.json"
ARITY = {None: "value", 0: "switch", "?": "optional", "+": "list", "*": "list"}


@pytest.fixture(scope="module")
def table() -> FlagTable:
    return flag_table(load("vllm", "0.33"))


def test_every_flag_of_the_real_parser_by_every_spelling() -> None:
    """The file holds what vLLM 0.32.0 itself registered, asked for by running it."""
    known = flag_table(load("vllm", "0.32"))
    actions = json.loads(PARSER.read_text())["actions"]
    assert len(actions) == 316
    real = {spelling: ARITY[nargs] for strings, nargs in actions.values() for spelling in strings}
    assert {spelling: flag.takes for spelling, flag in known.by_spelling.items()} == real


def test_each_profile_has_its_flags() -> None:
    for version in available("vllm"):
        assert flag_table(load("vllm", version)).version == version


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("-tp", "tensor-parallel-size"),
        ("--tensor_parallel_size", "tensor-parallel-size"),
        ("--tensor-par", "tensor-parallel-size"),  # argparse takes a beginning that only one flag has
        ("-q", "quantization"),
        ("-ep", "enable-expert-parallel"),
        ("--device-memory-utilization", "gpu-memory-utilization"),
    ],
)
def test_spellings(table: FlagTable, spelling: str, name: str) -> None:
    flag = table.find(spelling)
    assert flag is not None and flag.name == name and not flag.negated


def test_opposites(table: FlagTable) -> None:
    off = table.find("--no-enable-prefix-caching")
    assert off is not None and off.negated and off.name == "enable-prefix-caching"
    assert table.find("--disable-prefix-caching") == off  # 0.33 pairs --enable-x with --disable-x
    assert flag_table(load("vllm", "0.32")).find("--disable-prefix-caching") is None


def test_unknown_and_ambiguous(table: FlagTable) -> None:
    assert table.find("--data-parallel") is None  # several flags begin so
    assert table.find("--swap-space") is None
    assert table.near("--tensor-paralel-size")[0] == "--tensor-parallel-size"
    assert table.near("--max-seq-len")[0] == "--max-model-len"  # two words of three
    assert "--attention-backend" in table.near("--attn-backend")
    assert not [flag for flag in table.near("--foo-backend") if flag.endswith("-backend")]
