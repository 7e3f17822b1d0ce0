"""`validate --deep`, `--manifest`, `--write-manifest` from the command line."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import Run, write_llama
from tests.real_models import RealModel, real_model
from tests.servers.hub import HubServer

__all__ = ["real_model"]

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "validate-1.json").read_text())
MODEL = "model.safetensors"


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A small model of small numbers: 0x3c is the high byte of bfloat16 values around 0.01."""
    folder = write_llama(tmp_path / "filled")
    path = folder / MODEL
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    generator = random.Random(0)
    data[start::2] = generator.randbytes(len(data[start::2]))
    data[start + 1 :: 2] = bytes(generator.choices((0x3C, 0xBC, 0x3B, 0xBB), k=len(data[start + 1 :: 2])))
    path.write_bytes(data)
    return folder


def result(mlload: Run, *words: str | Path, code: int, **options: Any) -> dict[str, Any]:
    done = mlload("validate", *words, "--gpu", "cc:9.0", "--format", "json", **options)
    assert done.returncode == code, done.stderr + done.stdout
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    (entry,) = document["results"]
    assert isinstance(entry, dict)
    return entry


def codes(entry: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in entry["findings"] if finding["code"].startswith("DP")]


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as handle:
        handle.seek(at)
        (byte,) = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte ^ (1 << bit)]))


def test_a_sound_model(mlload: Run, filled: Path) -> None:
    entry = result(mlload, filled, "--deep", code=0)
    assert (codes(entry), entry["verdict"], entry["unknowns"]) == ([], "ok", [])
    deep = entry["deep"]
    (file,) = deep["files"]
    assert (file["name"], file["verdict"], file["sha256"]) == (MODEL, "ok", None)
    assert file["bytes"] == deep["bytes"] == (filled / MODEL).stat().st_size
    assert file["tensors"] == 2 * 9 + 3
    assert result(mlload, filled, code=0)["deep"] is None


def test_any_flipped_bit_is_found_with_a_manifest(mlload: Run, filled: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    assert mlload("validate", filled, "--write-manifest", listed).returncode == 0
    names = [line[66:] for line in listed.read_text().splitlines()]
    assert names == sorted(path.name for path in filled.iterdir())
    entry = result(mlload, filled, "--deep", "--manifest", listed, code=0)
    assert codes(entry) == []
    assert {file["expected_by"] for file in entry["deep"]["files"]} == {str(listed)}
    generator = random.Random(1)
    for name in (MODEL, MODEL, "tokenizer.json"):
        path = filled / name
        at, bit = generator.randrange(path.stat().st_size), generator.randrange(8)
        if name == MODEL:
            at = max(at, 4096)
        flip(path, at, bit)
        entry = result(mlload, filled, "--manifest", listed, code=1)
        found = [finding for finding in entry["findings"] if finding["code"] == "DP010"]
        assert [finding["where"] for finding in found] == [name]
        assert found[0]["numbers"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert {file["name"]: file["verdict"] for file in entry["deep"]["files"]}[name] == "fail"
        flip(path, at, bit)


def test_files_that_the_manifest_lacks_or_adds(mlload: Run, filled: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    mlload("validate", filled, "--write-manifest", listed)
    lines = [line for line in listed.read_text().splitlines() if not line.endswith(MODEL)]
    listed.write_text("\n".join([*lines, f"{'a' * 64}  gone.json"]) + "\n")
    entry = result(mlload, filled, "--manifest", listed, code=1)
    found = {finding["code"]: finding["where"] for finding in entry["findings"]}
    assert (found["DP011"], found["DP012"]) == ("gone.json", MODEL)


def test_a_manifest_inside_the_folder_does_not_list_itself(mlload: Run, filled: Path) -> None:
    for _ in range(2):
        assert mlload("validate", filled, "--write-manifest", filled / "sha256.txt").returncode == 0
        assert "sha256.txt" not in (filled / "sha256.txt").read_text()
    assert result(mlload, filled, "--manifest", filled / "sha256.txt", code=0)["verdict"] == "ok"


def test_digests_that_the_cache_of_the_hub_tells(mlload: Run, filled: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--acme--small"
    snapshot, blobs = repository / "snapshots" / "abc", repository / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for path in filled.iterdir():
        name = hashlib.sha256(path.read_bytes()).hexdigest() if path.name == MODEL else path.name
        (blobs / name).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{name}")
    entry = result(mlload, snapshot, "--deep", code=0)
    (file,) = entry["deep"]["files"]
    assert file["sha256"] == file["expected"] and file["expected_by"] == "the Hub"
    flip((snapshot / MODEL).resolve(), 50_000, 0)
    assert codes(result(mlload, snapshot, "--deep", code=1)) == ["DP010"]


def test_digests_that_a_download_left(mlload: Run, filled: Path) -> None:
    """As huggingface_hub writes them; a file that was changed on purpose since is not held against them."""
    local = pytest.importorskip("huggingface_hub._local_folder")
    digest = hashlib.sha256((filled / MODEL).read_bytes()).hexdigest()
    local.write_download_metadata(filled, MODEL, "a" * 40, digest)
    local.write_download_metadata(filled, "config.json", "a" * 40, "b" * 40)  # a git blob's name
    entry = result(mlload, filled, "--deep", code=0)
    assert [(f["name"], f["expected"]) for f in entry["deep"]["files"]] == [(MODEL, digest)]
    written = (filled / MODEL).stat().st_mtime_ns
    flip(filled / MODEL, 60_000, 0)
    os.utime(filled / MODEL, ns=(written, written))
    assert codes(result(mlload, filled, "--deep", code=1)) == ["DP010"]
    later = written + 60 * 10**9
    os.utime(filled / MODEL, ns=(later, later))
    assert result(mlload, filled, "--deep", code=0)["deep"]["files"][0]["expected"] is None


@pytest.mark.network_servers
def test_a_model_on_the_hub(mlload: Run, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hub" / "acme").mkdir(parents=True)
    filled.rename(tmp_path / "hub" / "acme" / "small")
    with HubServer(tmp_path / "hub") as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        done = mlload("validate", "acme/small", "--deep", "--format", "json", env=env)
        entry = json.loads(done.stdout)["results"][0]
        # The server's digests are not those of the contents: exactly that is said.
        assert (done.returncode, codes(entry)) == (1, ["DP010"])
        assert "over the network" in done.stderr and entry["deep"]["files"][0]["tensors"] == 21
        size = (tmp_path / "hub" / "acme" / "small" / MODEL).stat().st_size
        assert entry["deep"]["bytes"] == size


def test_hashing_alone_needs_no_numpy(mlload: Run, filled: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "numpy"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not here')")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "hidden"), *sys.path])}
    assert mlload("validate", filled, "--write-manifest", tmp_path / "list", env=env).returncode == 0
    assert mlload("validate", filled, "--manifest", tmp_path / "list", env=env).returncode == 0
    done = mlload("validate", filled, "--deep", env=env)
    assert done.returncode == 2
    assert 'pip install "mlload[deep]"' in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--manifest", "nowhere"], ["--write-manifest", "no/where"]])
def test_a_list_that_cannot_be_used(mlload: Run, filled: Path, words: list[str]) -> None:
    done = mlload("validate", filled, *words)
    assert done.returncode == 2 and done.stderr.startswith("mlload: cannot ")


def test_one_manifest_is_for_one_checkpoint(mlload: Run, filled: Path) -> None:
    done = mlload("validate", filled, filled, "--manifest", "list")
    assert done.returncode == 2 and "one source at a time" in done.stderr


def test_a_truncated_file_keeps_its_own_finding(mlload: Run, filled: Path) -> None:
    os.truncate(filled / MODEL, (filled / MODEL).stat().st_size - 1000)
    entry = result(mlload, filled, "--deep", code=1)
    assert any(finding["code"].startswith("FI") for finding in entry["findings"])


def test_several_sizes_share_one_pass(mlload: Run, filled: Path) -> None:
    done = mlload("validate", filled, "--tp", "1,2", "--deep", "--format", "json")
    blocks = [entry["deep"] for entry in json.loads(done.stdout)["results"]]
    assert len(blocks) == 2 and blocks[0] == blocks[1]


def bytes_read(pid: int) -> int:
    """What a process has read so far, whether from a disk or from the cache."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def test_an_interrupt_ends_it(filled: Path, tmp_path: Path) -> None:
    """A pipe in place of a slow disk cannot be opened as a checkpoint, so the file is large and sparse."""
    folder = write_llama(tmp_path / "large", vocab_size=4_000_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "mlload", "validate", folder, "--write-manifest", tmp_path / "list"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while bytes_read(process.pid) < 64 * 2**20 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in stderr
    assert not (tmp_path / "list").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


@pytest.mark.slow
def test_the_real_model(mlload: Run, real_model: RealModel, tmp_path: Path) -> None:
    """Clean as it is; any flipped bit is found by its digest."""
    folder = real_model("smollm2")
    listed, copy = tmp_path / "list", tmp_path / "copy"
    entry = result(mlload, folder, "--deep", "--write-manifest", listed, code=0)
    assert (codes(entry), entry["verdict"]) == ([], "ok")
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    generator = random.Random(2)
    for _ in range(3):
        at, bit = generator.randrange(65_536, (copy / MODEL).stat().st_size), generator.randrange(8)
        flip(copy / MODEL, at, bit)
        assert "DP010" in codes(result(mlload, copy, "--manifest", listed, code=1))
        flip(copy / MODEL, at, bit)
    assert codes(result(mlload, copy, "--manifest", listed, code=0)) == []
