"""Lists of sha256 digests as `sha256sum` writes them: 64 hex digits, a space, " " or "*", and the file's name.

`sha256sum -c FILE` in the checkpoint's folder checks what is written here, and what `sha256sum` writes is read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mlload.checkpoint.finding import MlloadError

MAX_BYTES = 64 << 20
ESCAPES = {"\\n": "\n", "\\r": "\r", "\\\\": "\\"}


def read_manifest(path: Path) -> dict[str, str]:
    """name -> digest. Names are relative to the checkpoint; "./" before them is dropped."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise MlloadError(f"{path} is no list of digests: it has {path.stat().st_size:,} bytes")
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise MlloadError(f"cannot read {path}: {error.strerror}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        digest, name = parse_line(line)
        if not name:
            raise MlloadError(
                f"{path}, line {number}: not a sha256 digest and a file name",
                hint="write one with: mlload validate SOURCE --write-manifest FILE (or sha256sum * > FILE)",
            )
        if found.setdefault(name, digest) != digest:
            raise MlloadError(f"{path}, line {number}: {name} is there twice, with different digests")
    if not found:
        raise MlloadError(f"{path} lists no files")
    return found


def parse_line(line: str) -> tuple[str, str]:
    """Digest and name of one line; ("", "") where it is none."""
    escaped = line.startswith("\\")
    line = line[1:] if escaped else line
    digest, name = line[:64].lower(), line[66:]
    if len(line) < 67 or line[64] != " " or line[65] not in " *" or not set(digest) <= set("0123456789abcdef"):
        return "", ""
    return digest, (unescape(name) if escaped else name).removeprefix("./")


def unescape(name: str) -> str:
    parts, at = [], 0
    while at < len(name):
        pair = name[at : at + 2]
        parts.append(ESCAPES.get(pair, name[at]))
        at += 2 if pair in ESCAPES else 1
    return "".join(parts)


def manifest_text(digests: Mapping[str, str]) -> str:
    lines = []
    for name in sorted(digests):
        escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(("\\" if escaped != name else "") + f"{digests[name]}  {escaped}\n")
    return "".join(lines)


def write_manifest(path: Path, digests: Mapping[str, str]) -> None:
    """Beside it first, then renamed: an interrupted run leaves the old list or the new one."""
    data = manifest_text(digests).encode("utf-8", "surrogateescape")
    beside = ""
    try:
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(beside, 0o666 & ~umask)
        os.replace(beside, path)
    except OSError as error:
        if beside and os.path.exists(beside):
            os.unlink(beside)
        raise MlloadError(f"cannot write {path}: {error.strerror}") from error
