"""What a file really is, from its first bytes: names lie after failed downloads and wrong copies."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """kind: "lfs", "html", "xml", "pickle-zip", "zip", "pickle", "gguf", "gzip", ... or "" when unknown;
    what: the same in words."""

    kind: str
    what: str


UNKNOWN = Content("", "bytes of no known kind")

_MAGIC: tuple[tuple[bytes, Content], ...] = (
    (b"version https://git-lfs.github.com/spec/", Content("lfs", "a git-lfs pointer")),
    (b"GGUF", Content("gguf", "a GGUF file")),
    (b"|TZR|", Content("tensorizer", "a tensorizer file")),
    (b"\x1f\x8b", Content("gzip", "a gzip archive")),
    (b"\x28\xb5\x2f\xfd", Content("zstd", "a zstandard archive")),
    (b"BZh", Content("bzip2", "a bzip2 archive")),
    (b"\xfd7zXZ\x00", Content("xz", "an xz archive")),
    (b"7z\xbc\xaf\x27\x1c", Content("7z", "a 7-zip archive")),
    (b"\x89HDF\r\n", Content("hdf5", "an HDF5 file (Keras or TensorFlow weights)")),
    (b"\x93NUMPY", Content("numpy", "a NumPy array")),
    (b"ggml", Content("ggml", "a GGML file from before GGUF")),
    (b"lmgg", Content("ggml", "a GGML file from before GGUF")),
    (b"fmgg", Content("ggml", "a GGML file from before GGUF")),
    (b"tjgg", Content("ggml", "a GGML file from before GGUF")),
)


def sniff(head: bytes) -> Content:
    """Judge the first bytes of a file (some 64 are enough; 512 see more of a page)."""
    for magic, content in _MAGIC:
        if head.startswith(magic):
            return content
    if head.startswith(b"PK\x03\x04") or head.startswith(b"PK\x05\x06"):
        if b"data.pkl" in head[:256] or b"/data" in head[:256]:
            return Content("pickle-zip", "a PyTorch pickle (zip archive)")
        return Content("zip", "a zip archive, as torch.save writes")
    if len(head) >= 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        return Content("pickle", "a Python pickle")
    start = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return Content("html", "an HTML page")
    if start.startswith((b"<?xml", b"<error", b"<!doctype")):
        return Content("xml", "an XML error document")
    if start.startswith((b'{"error', b'{"message', b'{"code', b'{"detail', b"{'error")):
        return Content("json", "a server's JSON error message")
    if head[:64].strip(b"\0") == b"" and head:
        return Content("zeros", "nothing but zero bytes")
    if head[:9] == b"Entry not" or head[:12] in (b"Invalid user", b"Access to mo", b"Repository n"):
        return Content("text", "a server's error message")
    if head[257:262] == b"ustar":
        return Content("tar", "a tar archive")
    return UNKNOWN


def lfs_fields(head: bytes) -> tuple[str | None, int | None]:
    """(sha256, size) that a git-lfs pointer names."""
    oid: str | None = None
    size: int | None = None
    for line in head[:512].decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        if key == "oid":
            oid = value.removeprefix("sha256:").strip()[:64]
        elif key == "size" and value.strip().isdigit() and len(value) < 20:
            size = int(value)
    return oid, size
