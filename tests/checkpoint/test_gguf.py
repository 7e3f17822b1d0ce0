"""GGUF headers: against the gguf package's own reader and writer, and damaged byte by byte."""

from __future__ import annotations

import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.gguf import LongArray
from mlload.checkpoint.gguf_types import BLOCK_TYPES, SCALAR_BYTES, VALUE_NAMES
from tests.checkpoint.build import gguf_bytes, key_value, string_array, string_key, tensor_info, text, uint32_key

ARCHITECTURE = string_key("general.architecture", "llama")
INFO = tensor_info("a", [32, 2], 0, 0)
DATA = bytes(256)


def judge(folder: Path, content: bytes, name: str = "model.gguf") -> Checkpoint:
    (folder / name).write_bytes(content)
    return Checkpoint.open(str(folder))


def errors(checkpoint: Checkpoint) -> set[str]:
    return {problem.code for problem in checkpoint.problems if problem.severity == "error"}


def accepted(path: Path) -> bool:
    gguf = pytest.importorskip("gguf")
    try:
        gguf.GGUFReader(str(path))
    except Exception:  # whatever it raises is a no
        return False
    return True


def test_block_types_are_those_of_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    theirs = {int(kind): (kind.name, *size) for kind, size in constants.GGML_QUANT_SIZES.items()}
    assert {number: tuple(block) for number, block in BLOCK_TYPES.items()} == theirs
    names = {int(kind): kind.name.lower() for kind in constants.GGUFValueType}
    assert names == VALUE_NAMES
    assert SCALAR_BYTES.keys() == names.keys() - {8, 9}


def test_sound_file_and_torch_order(tmp_path: Path) -> None:
    infos = [tensor_info("a", [32, 2], 0, 0), tensor_info("b", [256, 3, 2], 12, 256)]
    checkpoint = judge(tmp_path, gguf_bytes([ARCHITECTURE], infos, bytes(256 + 6 * 144)))
    assert checkpoint.problems == ()
    assert checkpoint.format == "gguf"
    a, b = checkpoint.tensors["a"], checkpoint.tensors["b"]
    assert (a.dtype, a.shape, a.nbytes) == ("F32", (2, 32), 256)
    assert (b.dtype, b.shape, b.nbytes) == ("Q4_K", (2, 3, 256), 864)
    size = (tmp_path / "model.gguf").stat().st_size
    assert a.offset == size - 256 - 864 and b.offset == size - 864
    assert accepted(tmp_path / "model.gguf")


def test_every_type_of_metadata(tmp_path: Path) -> None:
    keys = [
        ARCHITECTURE,
        key_value("u8", 0, b"\xff"),
        key_value("i8", 1, b"\xff"),
        key_value("u16", 2, struct.pack("<H", 65535)),
        key_value("i16", 3, struct.pack("<h", -2)),
        key_value("i32", 5, struct.pack("<i", -3)),
        key_value("f32", 6, struct.pack("<f", 0.5)),
        key_value("yes", 7, b"\1"),
        key_value("u64", 10, struct.pack("<Q", 2**63)),
        key_value("i64", 11, struct.pack("<q", -(2**62))),
        key_value("f64", 12, struct.pack("<d", 1e5)),
        string_key("text", "caf\u00e9"),
        key_value("list", 9, struct.pack("<IQ3i", 5, 3, 1, 2, 3)),
        string_array("texts", ["x", "", "yz"]),
        key_value("nested", 9, struct.pack("<IQ", 9, 2) + struct.pack("<IQ2B", 0, 2, 7, 8) + struct.pack("<IQ", 0, 0)),
        key_value("none", 9, struct.pack("<IQ", 99, 0)),
        string_array("tokens", [f"t{i}" for i in range(5000)]),
        key_value("scores", 9, struct.pack("<IQ5000f", 6, 5000, *range(5000))),
    ]
    checkpoint = judge(tmp_path, gguf_bytes(keys, [INFO], DATA))
    assert checkpoint.problems == ()
    assert checkpoint.metadata["model.gguf"] == {
        "general.architecture": "llama",
        **{"u8": 255, "i8": -1, "u16": 65535, "i16": -2, "i32": -3, "f32": 0.5, "yes": True},
        **{"u64": 2**63, "i64": -(2**62), "f64": 1e5, "text": "caf\u00e9"},
        **{"list": [1, 2, 3], "texts": ["x", "", "yz"], "nested": [[7, 8], []], "none": []},
        "tokens": LongArray("string", 5000),
        "scores": LongArray("float32", 5000),
    }


def test_long_nested_array_is_skipped(tmp_path: Path) -> None:
    inner = struct.pack("<IQB", 0, 1, 5)
    keys = [ARCHITECTURE, key_value("deep", 9, struct.pack("<IQ", 9, 5000) + inner * 5000), uint32_key("after", 6)]
    checkpoint = judge(tmp_path, gguf_bytes(keys, [INFO], DATA))
    assert checkpoint.problems == ()
    assert checkpoint.metadata["model.gguf"]["deep"] == LongArray("array", 5000)
    assert checkpoint.metadata["model.gguf"]["after"] == 6


def array(element: int, count: int, body: bytes = b"") -> bytes:
    return key_value("k", 9, struct.pack("<IQ", element, count) + body)


DAMAGED: dict[str, tuple[bytes, set[str]]] = {
    "empty": (b"", {"FI004"}),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", {"FI001"}),
    "html": (b"<html>401</html>", {"FI002"}),
    "zip": (b"PK\3\4" + bytes(40), {"FI021"}),
    "other magic": (b"GUFF" + bytes(40), {"FI040"}),
    "three bytes": (b"GGU", {"FI041"}),
    "version 1": (gguf_bytes([], [], b"", version=1), {"FI040"}),
    "version 0": (gguf_bytes([], [], b"", version=0), {"FI040"}),
    "cut in the counts": (gguf_bytes([ARCHITECTURE], [INFO], DATA)[:20], {"FI041"}),
    "cut in the keys": (gguf_bytes([ARCHITECTURE], [INFO], DATA)[:60], {"FI041"}),
    "many keys": (gguf_bytes([ARCHITECTURE], [INFO], DATA, counts=(1, 2**60)), {"FI041"}),
    "many tensors": (gguf_bytes([ARCHITECTURE], [INFO], DATA, counts=(2**60, 1)), {"FI041"}),
    "long key": (gguf_bytes([struct.pack("<Q", 2**62) + b"k"], [INFO], DATA), {"FI041"}),
    "endless text": (gguf_bytes([key_value("k", 8, struct.pack("<Q", 2**64 - 1))], [INFO], DATA), {"FI041"}),
    "endless numbers": (gguf_bytes([array(4, 2**61)], [INFO], DATA), {"FI041"}),
    "endless texts": (gguf_bytes([array(8, 2**61)], [INFO], DATA), {"FI041"}),
    "texts past the end": (gguf_bytes([array(8, 5000, struct.pack("<Q", 2**40))], [INFO], bytes(99999)), {"FI041"}),
    "unknown value type": (gguf_bytes([key_value("k", 13, b"")], [INFO], DATA), {"FI041"}),
    "unknown element type": (gguf_bytes([array(77, 1)], [INFO], DATA), {"FI041"}),
    "arrays in arrays": (gguf_bytes([key_value("k", 9, struct.pack("<IQ", 9, 1) * 9)], [INFO], DATA), {"FI041"}),
    "key not utf-8": (gguf_bytes([key_value(b"\xff\xfe", 0, b"1")], [INFO], DATA), {"FI041"}),
    "name not utf-8": (gguf_bytes([ARCHITECTURE], [tensor_info(b"\xff\xfe", [32], 0, 0)], DATA), {"FI041"}),
    "key twice": (gguf_bytes([ARCHITECTURE, ARCHITECTURE], [INFO], DATA), {"FI045"}),
    "tensor twice": (gguf_bytes([ARCHITECTURE], [INFO, INFO], DATA), {"FI045"}),
    "alignment zero": (gguf_bytes([ARCHITECTURE, uint32_key("general.alignment", 0)], [INFO], DATA), {"FI042"}),
    "alignment 24": (gguf_bytes([ARCHITECTURE, uint32_key("general.alignment", 24)], [INFO], DATA), {"FI042"}),
    "alignment is text": (gguf_bytes([ARCHITECTURE, string_key("general.alignment", "32")], [INFO], DATA), {"FI042"}),
    "removed type": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [32], 4, 0)], DATA), {"FI042"}),
    "unknown type": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [32], 99, 0)], DATA), {"FI042"}),
    "half a block": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [48], 2, 0)], DATA), {"FI042"}),
    "no dimensions": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [], 0, 0)], DATA), {"FI042"}),
    "nine dimensions": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [1] * 9, 0, 0)], DATA), {"FI042"}),
    "past the end": (gguf_bytes([ARCHITECTURE], [INFO], DATA[:100]), {"FI013"}),
    "offset past the end": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [32], 0, 2**50)], DATA), {"FI013"}),
    "endless tensor": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [2**62, 2**62], 0, 0)], DATA), {"FI013"}),
    "nothing of too much": (gguf_bytes([ARCHITECTURE], [tensor_info("a", [2**63 + 32, 0], 0, 0)], DATA), {"FI042"}),
    "overlap": (gguf_bytes([ARCHITECTURE], [INFO, tensor_info("b", [32], 0, 64)], DATA), {"FI014"}),
    "no architecture": (gguf_bytes([], [INFO], DATA), {"FI049"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(tmp_path: Path, name: str) -> None:
    content, codes = DAMAGED[name]
    checkpoint = judge(tmp_path, content)
    assert errors(checkpoint) == codes, [problem.message for problem in checkpoint.problems]
    for problem in checkpoint.problems:
        assert problem.message.startswith("model.gguf") and problem.message.isprintable()


def test_several_damages_are_counted(tmp_path: Path) -> None:
    infos = [tensor_info(f"t{i}", [32], 99, 0) for i in range(3)]
    checkpoint = judge(tmp_path, gguf_bytes([ARCHITECTURE], infos, DATA))
    assert "(and 2 others)" in checkpoint.problems[0].message
    assert checkpoint.problems[0].numbers["count"] == 3


def test_gaps_and_crooked_offsets_are_warnings(tmp_path: Path) -> None:
    gap = judge(tmp_path, gguf_bytes([ARCHITECTURE], [tensor_info("a", [32], 0, 64)], DATA))
    assert [(problem.code, problem.severity) for problem in gap.problems] == [("FI048", "warning")]
    crooked = judge(tmp_path, gguf_bytes([ARCHITECTURE], [tensor_info("a", [32], 0, 4)], DATA))
    assert [(problem.code, problem.severity) for problem in crooked.problems] == [("FI048", "warning")]


def test_other_alignment(tmp_path: Path) -> None:
    keys = [ARCHITECTURE, uint32_key("general.alignment", 128)]
    checkpoint = judge(tmp_path, gguf_bytes(keys, [INFO], DATA, alignment=128))
    assert checkpoint.problems == ()
    assert checkpoint.tensors["a"].offset % 128 == 0
    assert accepted(tmp_path / "model.gguf")


def test_big_endian(tmp_path: Path) -> None:
    def long(value: str) -> bytes:
        return struct.pack(">Q", len(value)) + value.encode()

    keys = long("general.architecture") + struct.pack(">I", 8) + long("llama")
    info = long("a") + struct.pack(">I2QIQ", 2, 32, 2, 0, 0)
    head = b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + keys + info
    checkpoint = judge(tmp_path, head + bytes(-len(head) % 32) + DATA)
    assert errors(checkpoint) == {"FI046"}
    assert checkpoint.tensors["a"].shape == (2, 32)


def test_file_written_by_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_token_list([f"token {i}" for i in range(9000)])
    generator = numpy.random.default_rng(0)
    tensors: dict[str, Any] = {
        "a": generator.standard_normal((3, 64)).astype("f4"),
        "b": generator.standard_normal((5, 7)).astype("f2"),
        "c": generator.integers(0, 100, (4, 2, 3)).astype("i4"),
    }
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    quantized = gguf.quants.quantize(tensors["a"], gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = Checkpoint.open(str(tmp_path / "model.gguf"))
    assert checkpoint.problems == ()
    raw = (tmp_path / "model.gguf").read_bytes()
    for name, tensor in tensors.items():
        ref = checkpoint.tensors[name]
        assert ref.shape == tensor.shape
        assert raw[ref.offset : ref.offset + ref.nbytes] == tensor.tobytes()
    ref = checkpoint.tensors["q"]
    assert (ref.dtype, ref.shape) == ("Q8_0", (3, 64))
    assert raw[ref.offset : ref.offset + ref.nbytes] == quantized.tobytes()
    assert checkpoint.metadata["model.gguf"]["tokenizer.ggml.tokens"] == LongArray("string", 9000)


def split(number: int, count: int, total: int, tensors: list[bytes], first: bool = False) -> bytes:
    keys = [
        key_value("split.no", 2, struct.pack("<H", number)),
        key_value("split.count", 2, struct.pack("<H", count)),
        key_value("split.tensors.count", 5, struct.pack("<i", total)),
    ]
    return gguf_bytes(([ARCHITECTURE] if first else []) + keys, tensors, DATA)


def write_split(folder: Path, parts: int = 3, total: int = 3) -> list[Path]:
    paths = []
    for number in range(parts):
        path = folder / f"big-Q8-{number + 1:05d}-of-{parts:05d}.gguf"
        path.write_bytes(split(number, parts, total, [tensor_info(f"t{number}", [32, 2], 0, 0)], number == 0))
        paths.append(path)
    return paths


def test_split_model(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    for source in (tmp_path, paths[0], paths[2]):
        checkpoint = Checkpoint.open(str(source))
        assert checkpoint.problems == ()
        assert [checkpoint.files[ref.file].name for ref in checkpoint.tensors.values()] == [path.name for path in paths]


def test_split_model_with_a_part_missing(tmp_path: Path) -> None:
    write_split(tmp_path)[1].unlink()
    checkpoint = Checkpoint.open(str(tmp_path))
    assert errors(checkpoint) == {"FI044"}
    assert "big-Q8-00002-of-00003.gguf" in checkpoint.problems[0].message
    assert checkpoint.problems[0].numbers == {"files": 3, "missing": 1}


def test_split_model_whose_parts_disagree(tmp_path: Path) -> None:
    paths = write_split(tmp_path, total=4)
    assert "4 tensors" in Checkpoint.open(str(tmp_path)).problems[0].message
    paths[2].write_bytes(split(2, 5, 3, [tensor_info("t2", [32, 2], 0, 0)]))
    checkpoint = Checkpoint.open(str(tmp_path))
    assert errors(checkpoint) == {"FI044"} and "disagree" in checkpoint.problems[0].message


def test_split_model_in_one_unnumbered_file(tmp_path: Path) -> None:
    checkpoint = judge(tmp_path, split(0, 2, 2, [INFO], True))
    assert errors(checkpoint) == {"FI044"} and "2 parts, and 1 are there" in checkpoint.problems[0].message


def test_folder_of_several_quantizations(tmp_path: Path) -> None:
    for name in ("m-Q4_K.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes([ARCHITECTURE], [INFO], DATA))
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [file.name for file in checkpoint.files if file.used] == ["m-Q4_K.gguf"]
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI038", "info")]
    one = Checkpoint.open(str(tmp_path / "m-Q8_0.gguf"))
    assert [file.name for file in one.files if file.used] == ["m-Q8_0.gguf"] and one.problems == ()


def test_nothing_is_allocated_by_a_lying_length(tmp_path: Path) -> None:
    """A sparse file of 8 GiB backs a lie about a text of 4 GiB and one about a billion elements."""
    import tracemalloc

    lies = [key_value("k", 8, struct.pack("<Q", 4 * 2**30)), array(9, 2**29), array(8, 2**29), array(4, 2**29)]
    for lie in lies:
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf_bytes([ARCHITECTURE, lie], [], b""))
        os.truncate(path, 8 * 2**30)
        tracemalloc.start()
        checkpoint = Checkpoint.open(str(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert errors(checkpoint) == {"FI041"}
        assert peak < 64 * 2**20


def test_a_header_has_an_end(tmp_path: Path) -> None:
    """Each text is of a credible length; together they would fill the memory."""
    name = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 8) + struct.pack("<Q", 15 * 2**20)
    path = tmp_path / "model.gguf"
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1000))
        for _ in range(12):
            file.write(name)
            file.seek(15 * 2**20, os.SEEK_CUR)
        file.truncate(8 * 2**30)
    checkpoint = Checkpoint.open(str(path))
    assert "FI041" in errors(checkpoint)
    assert any("no header is that long" in problem.message for problem in checkpoint.problems)


def test_the_real_model() -> None:
    folder = os.environ.get("MLLOAD_SMOLLM2")
    if not folder:
        pytest.skip("MLLOAD_SMOLLM2 names no folder with the real model")
    gguf = pytest.importorskip("gguf")
    (path,) = Path(folder).rglob("*.gguf")
    checkpoint = Checkpoint.open(str(path))
    assert checkpoint.problems == ()
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(str(path)).tensors}
    assert checkpoint.tensors.keys() == theirs.keys()
    for name, ref in checkpoint.tensors.items():
        tensor = theirs[name]
        assert (ref.dtype, ref.offset, ref.nbytes) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        assert ref.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert prod(ref.shape) == tensor.n_elements


def test_text_helper_is_the_format_itself() -> None:
    assert text("ab") == b"\2\0\0\0\0\0\0\0ab"
