"""Lists of digests, against coreutils' own sha256sum."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlload.checkpoint.finding import MlloadError
from mlload.validators.deep.manifest import manifest_text, parse_line, read_manifest, write_manifest

NAMES = ["model.safetensors", "a b.json", "back\\slash", "new\nline", "ümlaut", " leading", "*star"]
sha256sum = pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum on this machine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(name)
    return folder


def digests() -> dict[str, str]:
    return {name: hashlib.sha256(name.encode()).hexdigest() for name in NAMES}


@sha256sum
def test_sha256sum_accepts_what_is_written(folder: Path, tmp_path: Path) -> None:
    write_manifest(tmp_path / "list", digests())
    check = subprocess.run(["sha256sum", "-c", tmp_path / "list"], cwd=folder, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr
    assert check.stdout.count(": OK") == len(NAMES)


@sha256sum
@pytest.mark.parametrize("options", [[], ["-b"]])
def test_what_sha256sum_writes_is_read(folder: Path, tmp_path: Path, options: list[str]) -> None:
    with (tmp_path / "list").open("wb") as out:
        subprocess.run(["sha256sum", *options, "--", *NAMES], cwd=folder, stdout=out, check=True)
    assert read_manifest(tmp_path / "list") == digests()


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
    lambda name: not name.startswith("./")), st.binary(min_size=1, max_size=4)))  # fmt: skip
def test_every_name_survives(contents: dict[str, bytes]) -> None:
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    lines = manifest_text(listed).split("\n")[:-1]
    assert {name: digest for digest, name in map(parse_line, lines)} == listed


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "abc  file\n", "g" * 64 + "  file\n", "a" * 64 + "\n", "a" * 64 + "  x\n" + "b" * 64 + "  x\n"],
)
def test_no_list_of_digests(tmp_path: Path, text: str) -> None:
    (tmp_path / "list").write_text(text)
    with pytest.raises(MlloadError):
        read_manifest(tmp_path / "list")


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(MlloadError, match="cannot write"):
        write_manifest(tmp_path / "there", digests())
    with pytest.raises(MlloadError, match="cannot write"):
        write_manifest(tmp_path / "nowhere" / "list", digests())
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
