"""Reads of headers: as few and as short as the format allows, also where a source misbehaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mlload.checkpoint import headers
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.safetensors import guess_header_lengths
from mlload.checkpoint.sources.base import Range
from tests.checkpoint import build
from tests.fuzz.memory_source import MemorySource


class Counting(MemorySource):
    """A remote source that counts round trips and bytes."""

    remote = True

    def __init__(self, contents: dict[str, bytes]) -> None:
        super().__init__(contents)
        self.trips = 0
        self.nbytes = 0

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | Exception]:
        self.trips += bool(ranges)
        pieces = super().read_many(ranges)
        self.nbytes += sum(len(piece) for piece in pieces if isinstance(piece, bytes))
        return pieces


def experts(shards: int, each: int) -> tuple[dict[str, bytes], int]:
    """A sharded checkpoint of many small tensors: (contents, bytes of headers and index)."""
    import json

    contents: dict[str, bytes] = {"config.json": b'{"model_type": "llama"}'}
    weight_map: dict[str, str] = {}
    needed = 0
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        tensors = {f"model.layers.{shard}.mlp.experts.{i}.down_proj.weight": ("U8", [1000]) for i in range(each)}
        contents[name] = build.safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries(tensors)})
        needed += len(contents[name]) - 1000 * each
        weight_map.update(dict.fromkeys(tensors, name))
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    contents["model.safetensors.index.json"] = index
    return contents, needed + len(index)


def test_an_index_tells_how_much_to_read() -> None:
    contents, needed = experts(12, 700)
    source = Counting(contents)
    checkpoint = Checkpoint.open(source)
    assert checkpoint.problems == () and len(checkpoint.tensors) == 12 * 700
    assert source.trips <= 3
    assert source.nbytes < 1.5 * needed
    assert source.nbytes < sum(map(len, contents.values())) / 3


def test_guess_covers_a_usual_header() -> None:
    tensors = {f"model.layers.{i}.self_attn.q_proj.weight": ("BF16", [4096, 4096]) for i in range(40)}
    raw = build.safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries(tensors)}, b"")
    guess = guess_header_lengths(dict.fromkeys(tensors, "a"))["a"]
    assert len(raw) <= guess <= 1.3 * len(raw)


def test_batches_bound_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "BATCH_BYTES", 60_000)
    contents, _ = experts(8, 300)
    source = Counting(contents)
    checkpoint = Checkpoint.open(source)
    assert checkpoint.problems == () and len(checkpoint.tensors) == 8 * 300
    assert source.trips > 3


@pytest.mark.parametrize("cut", [4, 40, 70_000])
def test_source_that_gives_less_than_it_listed(cut: int) -> None:
    contents, _ = experts(1, 2000)

    class Short(MemorySource):
        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            piece = super().read(name, start, length)
            return piece[: max(0, cut - start)] if name.endswith(".safetensors") else piece

    checkpoint = Checkpoint.open(Short(contents))
    codes = {problem.code for problem in checkpoint.problems if problem.severity == "error"}
    assert codes and codes <= {"FI005", "FI006", "FI008", "FI022"}


def test_garbage_behind_a_credible_length() -> None:
    """100,000 bytes of header that do not start with a brace: said so, without reading them."""
    content = build.raw_safetensors(b"x" * 100_000, b"")
    source = Counting({"config.json": b"{}", "model.safetensors": content})
    (finding,) = [problem for problem in Checkpoint.open(source).problems if problem.severity == "error"]
    assert finding.code == "FI008" and "starts with 'xxxxxxxx'" in finding.message
    assert source.nbytes < 70_000


def test_white_space_before_a_long_header() -> None:
    tensors: dict[str, Any] = {f"w{i:05d}": ("U8", [1]) for i in range(3000)}
    import json

    raw = b"\n" + json.dumps({"__metadata__": {"format": "pt"}, **build.entries(tensors)}).encode()
    content = build.raw_safetensors(raw, bytes(3000))
    checkpoint = Checkpoint.open(MemorySource({"config.json": b"{}", "model.safetensors": content}))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI008", "warning")]
    assert len(checkpoint.tensors) == 3000


def test_names_that_cannot_be_printed() -> None:
    content = build.safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries({"a": ("U8", [1])})})
    name = "a\n\x1b[31m\udc80.safetensors"
    checkpoint = Checkpoint.open(MemorySource({"config.json": b"{}", name: content[:-1]}))
    (finding,) = checkpoint.problems
    assert finding.code == "FI013" and finding.message.isprintable() and finding.where.isprintable()
    assert "\\x1b" in finding.message
