"""Every way a safetensors header can be wrong, judged here and by safetensors' own reader."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from tests.checkpoint import build
from tests.checkpoint.build import raw_safetensors, safetensors_bytes

safetensors = pytest.importorskip("safetensors")

T = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DATA = bytes(8)


def header(**fields: Any) -> bytes:
    return json.dumps({"a": {**T, **fields}}).encode()


# name -> (file, codes of the errors that must be found)
DAMAGED: dict[str, tuple[bytes, set[str]]] = {
    "empty file": (b"", {"FI004"}),
    "seven bytes": (b"\1\0\0\0\0\0\0", {"FI005"}),
    "lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 4976698672\n",
        {"FI001"},
    ),
    "html": (b"<!DOCTYPE html><html><body>403 Forbidden</body></html>", {"FI002"}),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", {"FI002"}),
    "json error": (b'{"error":"Repository not found"}', {"FI002"}),
    "zip": (b"PK\x03\x04" + bytes(60), {"FI003"}),
    "pickle": (b"\x80\x02}q\x00." + b"abcdefgh", {"FI003"}),
    "gguf": (b"GGUF\3\0\0\0" + bytes(32), {"FI021"}),
    "gzip": (b"\x1f\x8b\x08\x08abcdefghijkl", {"FI021"}),
    "zeros": (bytes(64), {"FI006"}),
    "length past the end": (raw_safetensors(header(), DATA)[:40], {"FI006"}),
    "absurd length": (b"\xff" * 8 + header(), {"FI006"}),
    "header of one byte": (b"\1\0\0\0\0\0\0\0{" + DATA, {"FI006"}),
    "no brace": (raw_safetensors(b"[1, 2]", DATA), {"FI008"}),
    "not utf-8": (raw_safetensors(b'{"\xff\xfe": 1}', DATA), {"FI008"}),
    "not json": (raw_safetensors(b'{"a": {"dtype": "F32", }}', DATA), {"FI008"}),
    "breaks off": (raw_safetensors(b'{"a": {"dtype"', DATA), {"FI008"}),
    "text after": (raw_safetensors(header() + b"\0\0", DATA), {"FI008"}),
    "too deep": (raw_safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", DATA), {"FI008"}),
    "brace for a comma": (
        safetensors_bytes(build.entries({"a": ("F32", [2]), "b": ("F32", [1])})).replace(b']},"b"', b']}}"b"'),
        {"FI008"},
    ),
    "a list": (raw_safetensors(b" [1]", DATA), {"FI008"}),
    "nan": (raw_safetensors(b'{"a": {"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', DATA), {"FI010"}),
    "huge digits": (raw_safetensors(header().replace(b"[2]", b"[" + b"9" * 5000 + b"]"), DATA), {"FI010"}),
    "duplicate field": (
        raw_safetensors(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', DATA),
        {"FI009"},
    ),
    "duplicate metadata": (
        raw_safetensors(b'{"__metadata__":{},"__metadata__":{},' + header()[1:], DATA),
        {"FI009"},
    ),
    "unknown dtype of no size": (raw_safetensors(header(dtype="F33", shape=[3]), DATA), {"FI011"}),
    "dtype in small letters": (raw_safetensors(header(dtype="f32"), DATA), {"FI011"}),
    "dtype is a number": (raw_safetensors(header(dtype=7), DATA), {"FI010"}),
    "no dtype": (raw_safetensors(b'{"a":{"shape":[2],"data_offsets":[0,8]}}', DATA), {"FI010"}),
    "entry is null": (raw_safetensors(b'{"a":null}', DATA), {"FI010"}),
    "shape too small": (raw_safetensors(header(shape=[1]), DATA), {"FI012"}),
    "shape too large": (raw_safetensors(header(shape=[3, 2]), DATA), {"FI012"}),
    "half a byte": (raw_safetensors(header(dtype="F4", shape=[3]), DATA), {"FI012"}),
    "overflow beside a zero": (
        raw_safetensors(
            json.dumps({"a": T, "b": {"dtype": "F32", "shape": [2**63, 4, 0], "data_offsets": [8, 8]}}).encode(), DATA
        ),
        {"FI012"},
    ),
    "negative size": (raw_safetensors(header(shape=[-2]), DATA), {"FI010"}),
    "two negative sizes": (raw_safetensors(header(shape=[-2, -1]), DATA), {"FI010"}),
    "minus zero": (raw_safetensors(header().replace(b"[0, 8]", b"[-0, 8]"), DATA), {"FI010"}),
    "fraction": (raw_safetensors(header(shape=[2.0]), DATA), {"FI010"}),
    "true": (raw_safetensors(header(shape=[True, 2]), DATA), {"FI010"}),
    "text for a number": (raw_safetensors(header(shape=["2"]), DATA), {"FI010"}),
    "object for a shape": (raw_safetensors(header(dtype="F64", shape={}), DATA), {"FI010"}),
    "size of 2**64": (raw_safetensors(header(shape=[2**64]), DATA), {"FI010"}),
    "three offsets": (raw_safetensors(header(data_offsets=[0, 8, 8]), DATA), {"FI010"}),
    "offsets backwards": (raw_safetensors(header(shape=[0], data_offsets=[8, 0]), DATA), {"FI010"}),
    "offset is null": (raw_safetensors(header(data_offsets=[None, 8]), DATA), {"FI010"}),
    "past the end": (raw_safetensors(header(), DATA[:5]), {"FI013"}),
    "begins past the end": (raw_safetensors(header(data_offsets=[80, 88]), DATA), {"FI013", "FI015"}),
    "overlap": (
        raw_safetensors(json.dumps({"a": T, "b": {**T, "data_offsets": [4, 12]}}).encode(), DATA + b"1234"),
        {"FI014"},
    ),
    "the same bytes twice": (raw_safetensors(json.dumps({"a": T, "b": T}).encode(), DATA), {"FI014"}),
    "empty tensor inside another": (
        raw_safetensors(json.dumps({"a": T, "b": {**T, "shape": [0], "data_offsets": [4, 4]}}).encode(), DATA),
        {"FI014"},
    ),
    "hole at the start": (raw_safetensors(header(data_offsets=[4, 12]), DATA + b"1234"), {"FI015"}),
    "trailing": (raw_safetensors(header(), DATA + b"1"), {"FI016"}),
    "data without tensors": (raw_safetensors(b"{}", b"1234"), {"FI016"}),
    "metadata is a list": (raw_safetensors(b'{"__metadata__":[],' + header()[1:], DATA), {"FI017"}),
    "metadata of numbers": (raw_safetensors(b'{"__metadata__":{"a":1},' + header()[1:], DATA), {"FI017"}),
    "half a surrogate": (raw_safetensors(header().replace(b'"a"', b'"\\ud800"'), DATA), {"FI010"}),
    "half a surrogate in metadata": (
        raw_safetensors(b'{"__metadata__":{"a":"\\udfff"},' + header()[1:], DATA),
        {"FI017"},
    ),
    "deep extra field": (
        raw_safetensors(header()[:-2] + b',"x":' + b"[" * 130 + b"]" * 130 + b"}}", DATA),
        {"FI010"},
    ),
}

# Legal, if odd: safetensors reads them, and no error may be found. Codes of the other findings.
SOUND: dict[str, tuple[bytes, set[str]]] = {
    "plain": (safetensors_bytes(build.entries({"a": ("F32", [2]), "b": ("BF16", [3, 5])})), {"FI018"}),
    "format": (safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries({"a": ("F32", [2])})}), set()),
    "null metadata": (raw_safetensors(b'{"__metadata__":null,' + header()[1:], DATA), {"FI018"}),
    "no tensors": (safetensors_bytes({}), {"FI018", "FI019"}),
    "scalar": (safetensors_bytes(build.entries({"a": ("F32", [])})), {"FI018"}),
    "no elements": (safetensors_bytes(build.entries({"a": ("F32", [0, 4]), "b": ("F32", [1])})), {"FI018"}),
    "sub-byte": (raw_safetensors(header(dtype="F4", shape=[16]), DATA), {"FI018"}),
    "not in order": (
        safetensors_bytes(dict(reversed(build.entries({"a": ("F32", [2]), "b": ("F16", [3])}).items()))),
        {"FI018"},
    ),
    "white space": (
        raw_safetensors(b'{ "a" :\n{"dtype":"F32","shape":[2],\t"data_offsets":[0,8]}}  ', DATA),
        {"FI018"},
    ),
    "leading space": (raw_safetensors(b" " + header(), DATA), {"FI008", "FI018"}),
    "minus in a name": (safetensors_bytes(build.entries({"a-b,-[-": ("F32", [2])})), {"FI018"}),
    "true in a name": (safetensors_bytes(build.entries({"true": ("F32", [2])})), {"FI018"}),
    "escapes": (safetensors_bytes(build.entries({'a"\\\u00e9': ("F32", [2])})), {"FI018"}),
    "a NUL in a name": (safetensors_bytes(build.entries({"a\0b": ("F32", [2])})), {"FI018", "FI020"}),
    "no name": (safetensors_bytes(build.entries({"": ("F32", [2])})), {"FI018", "FI020"}),
    "unknown field": (raw_safetensors(header(strides=[1]), DATA), {"FI010", "FI018"}),
    "length that looks like gzip": (raw_safetensors(header().ljust(0x8B1F), DATA), {"FI018"}),
    "length that looks like pickle": (raw_safetensors(header().ljust(0x0280), DATA), {"FI018"}),
}


def judge(folder: Path, content: bytes) -> Checkpoint:
    build.write_config(folder)
    (folder / "model.safetensors").write_bytes(content)
    return Checkpoint.open(str(folder))


def accepted(path: Path) -> bool:
    try:
        with safetensors.safe_open(str(path), "np") as file:
            file.keys()
    except Exception:  # whatever it raises is a no
        return False
    return True


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(tmp_path: Path, name: str) -> None:
    content, codes = DAMAGED[name]
    checkpoint = judge(tmp_path, content)
    found = [problem for problem in checkpoint.problems if problem.severity == "error"]
    assert {problem.code for problem in found} == codes, [problem.message for problem in found]
    for problem in found:
        assert "model.safetensors" in problem.message and problem.message.endswith(".")
        assert problem.message.isprintable() and len(problem.message) < 400
    assert not accepted(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", SOUND)
def test_sound(tmp_path: Path, name: str) -> None:
    content, codes = SOUND[name]
    checkpoint = judge(tmp_path, content)
    assert [problem.message for problem in checkpoint.problems if problem.severity == "error"] == []
    assert {problem.code for problem in checkpoint.problems} == codes
    assert accepted(tmp_path / "model.safetensors")


def test_a_duplicate_tensor_is_an_error_though_safetensors_takes_it(tmp_path: Path) -> None:
    once = header()[1:-1]
    for twice in (b"{" + once + b"," + once + b"}", b"{" + once + b',"\\u0061"' + once[3:] + b"}"):
        checkpoint = judge(tmp_path, raw_safetensors(twice, DATA))
        assert "FI009" in {problem.code for problem in checkpoint.problems if problem.severity == "error"}


def test_what_can_be_read_is_read(tmp_path: Path) -> None:
    entries = build.entries({"a": ("F32", [2]), "b": ("F32", [4]), "c": ("F16", [3])})
    entries["b"]["shape"] = [-4]
    checkpoint = judge(tmp_path, safetensors_bytes(entries, bytes(30)))
    start = 8 + int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    assert {
        name: (ref.dtype, ref.shape, ref.offset - start, ref.nbytes) for name, ref in checkpoint.tensors.items()
    } == {
        "a": ("F32", (2,), 0, 8),
        "c": ("F16", (3,), 24, 6),
    }


def test_places_are_those_of_safetensors(tmp_path: Path) -> None:
    """Every tensor's bytes, taken from the file at our offset, are what safetensors reads."""
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    generator = numpy.random.default_rng(0)
    tensors = {
        f"layers.{i}.w": generator.standard_normal(generator.integers(1, 9, size=i % 4)).astype(dtype)
        for i, dtype in enumerate(["f4", "f2", "f8", "i1", "i4", "i8"] * 3)
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np"})
    raw = (tmp_path / "model.safetensors").read_bytes()
    checkpoint = judge(tmp_path, raw)
    assert checkpoint.problems == ()
    assert checkpoint.metadata == {"model.safetensors": {"format": "np"}}
    for name, tensor in tensors.items():
        ref = checkpoint.tensors[name]
        assert ref.shape == tensor.shape
        assert raw[ref.offset : ref.offset + ref.nbytes] == tensor.tobytes()
        assert checkpoint.source.read("model.safetensors", ref.offset, ref.nbytes) == tensor.tobytes()


def test_long_header_in_pieces(tmp_path: Path) -> None:
    """More than the first read: the rest is fetched, and nothing is lost at the seam."""
    names = [f"model.layers.{i}.mlp.experts.{i % 7}.down_proj.weight" for i in range(3000)]
    random.Random(0).shuffle(names)
    tensors = {name: ("U8", [3]) for name in names}
    checkpoint = judge(tmp_path, safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries(tensors)}))
    assert checkpoint.problems == ()
    assert list(checkpoint.tensors) == names


def test_thousands_of_dimensions_do_not_hang(tmp_path: Path) -> None:
    checkpoint = judge(tmp_path, raw_safetensors(header(shape=[2**60] * 200_000), DATA))
    assert {problem.code for problem in checkpoint.problems if problem.severity == "error"} == {"FI012"}


def test_fingerprint_is_of_names_sizes_and_headers(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder in (one, two, three):
        folder.mkdir()
    plain = build.entries({"a": ("F32", [2])})
    first = judge(one, safetensors_bytes(plain)).fingerprint
    assert judge(two, safetensors_bytes(plain, b"\1" * 8)).fingerprint == first
    assert judge(three, safetensors_bytes(build.entries({"b": ("F32", [2])}))).fingerprint != first
