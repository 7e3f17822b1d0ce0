"""The table of contents of tensorizer files; layout and dtype texts as tensorizer 2.12 writes them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from tests.checkpoint import build


def entry(name: bytes, dtype: bytes, shape: list[int], data: int, length: int, *, form: str = "I") -> bytes:
    head = struct.pack("<H", len(name)) + name + b"\2" + bytes([len(dtype)]) + dtype
    return head + bytes([len(shape)]) + struct.pack(f"<{len(shape)}{form}3Q", *shape, 0, data, length)


def file_bytes(
    entries: list[bytes], *, version: int = 2, flags: int = 0, count: int | None = None, table: int = 512
) -> bytes:
    body = b"".join(entries)
    tensors = len(entries) if count is None else count
    head = b"|TZR|" + struct.pack("<I32sQ8xQQ", version, flags.to_bytes(32, "little"), 0, tensors, table)
    return head + body.ljust(table, b"\0") + bytes(256)


START = 73 + 512
GOOD = [
    entry(b"a.b", b"<f4", [2, 3], START, 24),
    entry(b"c", b"<V2\0torch.bfloat16", [4], START + 24, 8),
    entry(b"d", b"|b1", [1], START + 32, 1),
    entry(b"e", b"<c16", [1], START + 33, 16),
]


def judge(folder: Path, content: bytes) -> Checkpoint:
    build.write_config(folder)
    (folder / "model.tensors").write_bytes(content)
    return Checkpoint.open(str(folder))


def test_table(tmp_path: Path) -> None:
    checkpoint = judge(tmp_path, file_bytes(GOOD))
    assert checkpoint.problems == ()
    assert checkpoint.format == "tensorizer"
    assert checkpoint.metadata == {"model.tensors": {"version": 2, "encrypted": False}}
    assert {ref.name: (ref.dtype, ref.shape, ref.offset, ref.nbytes) for ref in checkpoint.tensors.values()} == {
        "a.b": ("F32", (2, 3), START, 24),
        "c": ("BF16", (4,), START + 24, 8),
        "d": ("BOOL", (1,), START + 32, 1),
        "e": ("<c16", (1,), START + 33, 16),
    }


def test_versioned_entries_with_long_shapes(tmp_path: Path) -> None:
    long = struct.pack("<I", 5) + entry(b"w", b"|i1", [2**33, 0], START, 0, form="Q")
    short = struct.pack("<I", 4) + entry(b"v", b"|u1", [7], START, 7)
    checkpoint = judge(tmp_path, file_bytes([long, short], version=5, flags=3))
    assert checkpoint.tensors["w"].shape == (2**33, 0) and checkpoint.tensors["v"].shape == (7,)
    assert checkpoint.metadata["model.tensors"] == {"version": 5, "encrypted": True}


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"|TZR", "FI066", "cut off"),
        (b"|TZX|" + bytes(100), "FI066", "where |TZR| is expected"),
        (file_bytes(GOOD, version=9), "FI066", "version 9"),
        (file_bytes(GOOD, count=2**40), "FI066", "1,099,511,627,776 tensors"),
        (file_bytes(GOOD, table=512)[:300], "FI066", "cut off"),
        (file_bytes(GOOD, count=500), "FI066", "damaged table"),
        (file_bytes([entry(b"\xff\xfe", b"<f4", [1], START, 4)]), "FI066", "damaged table"),
        (file_bytes([entry(b"a", b"<f4", [2], START, 4)]), "FI012", "takes 8"),
        (file_bytes([entry(b"a", b"<f4", [200], START, 800)]), "FI013", "cut off"),
    ],
)
def test_damaged(tmp_path: Path, content: bytes, code: str, words: str) -> None:
    checkpoint = judge(tmp_path, content)
    (finding,) = [problem for problem in checkpoint.problems if problem.severity == "error"]
    assert finding.code == code and words in finding.message and finding.message.startswith("model.tensors ")


def test_file_written_by_tensorizer(tmp_path: Path) -> None:
    tensorizer = pytest.importorskip("tensorizer")
    torch = pytest.importorskip("torch")
    state = {"a.b": torch.randn(2, 3), "c": torch.ones(4).bfloat16(), "d": torch.tensor([True])}
    serializer = tensorizer.TensorSerializer(str(tmp_path / "model.tensors"))
    serializer.write_state_dict(state)
    serializer.close()
    checkpoint = Checkpoint.open(str(tmp_path / "model.tensors"))
    assert checkpoint.tensors.keys() == state.keys()
    for name, ref in checkpoint.tensors.items():
        raw = checkpoint.source.read("model.tensors", ref.offset, ref.nbytes)
        assert raw == state[name].reshape(-1).view(torch.uint8).numpy().tobytes()
