"""What a file is, by its first bytes."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from mlload.checkpoint.sniff import UNKNOWN, sniff


def tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return stream.getvalue()


def archive(name: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(name, b"")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "lfs"),
        (b"GGUF\3\0\0\0", "gguf"),
        (b"|TZR|\2", "tensorizer"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x89HDF\r\n\x1a\n", "hdf5"),
        (b"\x93NUMPY\1\0", "numpy"),
        (b"lmgg\1\0\0\0", "ggml"),
        (archive("archive/data.pkl"), "pickle-zip"),
        (archive("readme.txt"), "zip"),
        (b"\x80\2}q\0.", "pickle"),
        (b"  \r\n<!DOCTYPE HTML>", "html"),
        (b"\xef\xbb\xbf<html>", "html"),
        (b"<?xml version='1.0'?>", "xml"),
        (b"<Error><Code>NoSuchKey</Code></Error>", "xml"),
        (b'{"error": "gated"}', "json"),
        (bytes(64), "zeros"),
        (b"Entry not found", "text"),
        (b"Invalid username or password.", "text"),
        (tar(), "tar"),
        (b"", ""),
        (b"\x10\0\0\0\0\0\0\0{", ""),
        (b"anything else", ""),
    ],
)
def test_kinds(head: bytes, kind: str) -> None:
    found = sniff(head)
    assert found.kind == kind
    assert (found == UNKNOWN) == (kind == "")
