"""The pattern reader accepts what safetensors' own reader accepts, and reads the same from it."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlload.checkpoint.safetensors_compact import parse_compact
from mlload.checkpoint.tensor import DTYPE_BITS

DTYPES = [name for name, bits in DTYPE_BITS.items() if bits % 8 == 0]
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'), min_size=1, max_size=12)


def header_of(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None) -> tuple[bytes, int]:
    """The header as safetensors writes it, and the bytes of its data."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = DTYPE_BITS[dtype] // 8
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8), offset


def accepts(raw: bytes, data: int) -> bool:
    safetensors = pytest.importorskip("safetensors")
    try:
        safetensors.deserialize(struct.pack("<Q", len(raw)) + raw + bytes(data))
    except safetensors.SafetensorError:
        return False
    return True


SHAPES = st.lists(st.integers(1, 5), max_size=3)
TENSORS = st.dictionaries(
    NAMES.filter(lambda name: name != "__metadata__"), st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1
)
METADATA = st.none() | st.dictionaries(NAMES.filter(lambda text: "{" not in text and "}" not in text), NAMES)


@settings(max_examples=200, deadline=None)
@given(TENSORS, METADATA)
def test_what_the_writer_writes(tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None) -> None:
    raw, data = header_of(tensors, metadata)
    start = 8 + len(raw)
    got = parse_compact(raw, 3, start, start + data)
    if metadata is not None and any("{" in value or "}" in value for value in metadata.values()):
        return  # left to the other reader
    assert got is not None
    refs, read = got
    assert read == metadata
    expected = json.loads(raw)
    expected.pop("__metadata__", None)
    assert [(ref.name, ref.dtype, list(ref.shape), ref.file, ref.offset - start, ref.nbytes) for ref in refs] == [
        (
            name,
            entry["dtype"],
            entry["shape"],
            3,
            entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in expected.items()
    ]
    assert parse_compact(raw, 3, start, start + data + 1) is None, "bytes that no tensor covers"
    assert parse_compact(raw, 3, start, start + data - 1) is None, "a file that ends too early"


def test_nothing_that_safetensors_rejects_is_accepted() -> None:
    rng = random.Random(7)
    good, data = header_of(
        {"a.weight": ("BF16", [2, 3]), "b": ("F32", [4]), "a.bias": ("I8", [1]), "scalar": ("U8", [])},
        {"format": "pt"},
    )
    pieces = [b'"', b"{", b"}", b"[", b"]", b",", b":", b" ", b"0", b"1", b"9", b"-", b"\\", b"BF16", b"F4", b"\x01"]
    accepted = 0
    for _ in range(20_000):
        raw = bytearray(good)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            at = rng.randrange(len(raw))
            kind = rng.randrange(5)
            if kind == 4:  # where structure is, as most of a header is names and digits
                at = rng.choice([place for place, byte in enumerate(raw) if byte in b'{}[],:"'])
                raw[at : at + 1] = rng.choice(pieces)
            elif kind == 0:
                raw[at : at + 1] = rng.choice(pieces)
            elif kind == 1:
                del raw[at : at + rng.randrange(1, 4)]
            elif kind == 2:
                raw[at:at] = rng.choice(pieces)
            else:
                other = rng.randrange(len(raw))
                raw[at:at] = raw[other : other + rng.randrange(1, 40)]
        text = bytes(raw)
        if parse_compact(text, 0, 8 + len(text), 8 + len(text) + data) is not None:
            accepted += 1
            assert accepts(text, data), text
    assert accepted > 100, "the mutations never left a sound header: the test shows nothing"


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        '{"__metadata__":{"k":"v","k":"w"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"__metadata__":{"k":1},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}',
        '{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U8","shape":[,2],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[00,2]}}',
        '{"__metadata__":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U9","shape":[2],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,+2]}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0, 2]}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2.0]}}',
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        '{"a\x01":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"a\\n":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        '{"a":{"dtype":"U8","x":[1],"shape":[2],"data_offsets":[0,2]}}',
        "{}",
        "",
    ],
)
def test_left_to_the_other_reader(text: str) -> None:
    raw = text.encode()
    assert parse_compact(raw, 0, 8 + len(raw), 8 + len(raw) + 2) is None
