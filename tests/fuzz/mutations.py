"""How an input is damaged: bytes at random, and structures where a reader would look."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

INTEGERS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 4096, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64)
TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"false", b"NaN"),
    *(b"-1", b"-0", b"1e999", b"0.5", b"1.0", b"18446744073709551616", b"9" * 40, b" ", b"\n", b"\0", b"\xff", b"\xc3"),
    *(
        b"GGUF",
        b"PK\3\4",
        b"PK\5\6",
        b"__metadata__",
        b"dtype",
        b"shape",
        b"data_offsets",
        b"F32",
        b"F4",
        b"BF16",
        b"I64",
    ),
    *(
        b"weight_map",
        b"../",
        b"/",
        b".safetensors",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"<html>",
        b"\x80\2",
    ),
    *(b"c__builtin__\neval\n", b"(", b"t", b"R", b".", b"Q", b"h\0", b"}q\0", b"\x8c", b"\x93"),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**40,
        0.5,
        1.0,
        1e308,
        "",
        "x",
        "F32",
        "../a",
        "\0",
    ),
    *(
        [],
        [0],
        [-1],
        [1, 2, 3],
        ["a"],
        [[]],
        [True],
        [0.0],
        {},
        {"a": 1},
        {"dtype": "F32"},
        "\ud800",
        "\u202e",
        "a" * 300,
    ),
)


def mutate_bytes(random: Random, content: bytes) -> bytes:
    """One to eight changes of bytes."""
    result = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(result) + 1)
        choice = random.randrange(10)
        if choice == 0 and at < len(result):
            result[at] ^= 1 << random.randrange(8)
        elif choice == 1 and at < len(result):
            result[at] = random.randrange(256)
        elif choice == 2:
            result[at:at] = random.choice(TOKENS)
        elif choice == 3:
            token = random.choice(TOKENS)
            result[at : at + len(token)] = token
        elif choice == 4:
            del result[at : at + random.choice((1, 1, 2, 4, 8, 50))]
        elif choice == 5:
            piece = bytes(result[at : at + random.choice((1, 4, 8, 30))])
            result[at:at] = piece
        elif choice == 6:
            del result[at:]
        elif choice == 7:
            result += bytes(random.randrange(256) for _ in range(random.choice((1, 4, 33))))
        elif choice == 8:
            value = random.choice(INTEGERS) & (2**64 - 1)
            result[at : at + 8] = struct.pack("<Q", value)
        else:
            other = random.randrange(len(result) + 1)
            piece = bytes(result[other : other + random.choice((2, 8, 20))])
            result[at : at + len(piece)] = piece
    return bytes(result)


def any_value(random: Random) -> Any:
    """One of VALUES, never the very list or dict that stands there."""
    return json.loads(json.dumps(random.choice(VALUES)))


def mutate_json(random: Random, value: Any) -> Any:
    """A value like `value` with one to three of its parts changed."""
    result = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(result))
        if not places:
            return any_value(random)
        owner, key = random.choice(places)
        choice = random.randrange(8)
        if choice == 0:
            del owner[key]
        elif choice == 1 and isinstance(owner, dict):
            owner[random.choice(("", "\0", "__metadata__", "a" * 200, "x\ud800", str(key) + ".1"))] = owner.pop(key)
        elif choice == 2 and isinstance(owner[key], int) and not isinstance(owner[key], bool):
            owner[key] += random.choice((-8, -4, -1, 1, 2, 4, 8, 64))
        elif choice == 3 and isinstance(owner, list):
            owner.insert(key, any_value(random))
        elif choice == 4:
            other, name = random.choice(places)
            if name in other if isinstance(other, dict) else name < len(other):
                owner[key] = json.loads(json.dumps(other[name]))
        elif choice == 5 and isinstance(owner[key], str):
            owner[key] = random.choice(
                ("F16", "F8_E4M3", "F4", "F6_E2M3", "U8", "I64", "BOOL", "C64", "F33", "f32", "F99")
            )
        else:
            owner[key] = any_value(random)
    return result


def _places(value: Any) -> Any:
    stack = [value]
    while stack:
        item = stack.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item))
        for key in keys:
            yield item, key
            if isinstance(item[key], dict | list):
                stack.append(item[key])


def dumps(random: Random, value: Any) -> bytes:
    """JSON in one of the ways in which it can be written, now and then with a key that comes twice."""
    style: dict[str, Any] = random.choice(({"separators": (",", ":")}, {}, {"indent": 1}))
    raw = json.dumps(value, ensure_ascii=random.random() < 0.8, **style).encode("utf-8", "surrogatepass")
    if random.random() < 0.1 and isinstance(value, dict) and value:
        key = random.choice(list(value))
        again = json.dumps(key) + ":" + json.dumps(value[key])
        if random.random() < 0.3 and key:
            again = again.replace(json.dumps(key[0])[1:-1], f"\\u{ord(key[0]) & 0xFFFF:04x}", 1)
        raw = raw[:1] + again.encode() + b"," + raw[1:]
    return raw
