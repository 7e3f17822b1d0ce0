"""Folders and single files on a disk: links, cycles, permissions, and the small files beside the weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources.base import Range
from mlload.checkpoint.sources.local import FileSource, FolderSource, describe, open_local
from mlload.checkpoint.streaming import LocalFiles
from tests.checkpoint import build


def codes(checkpoint: Checkpoint) -> list[str]:
    return [problem.code for problem in checkpoint.problems]


def cache(root: Path) -> tuple[Path, Path]:
    """A repository of the Hub's cache with one snapshot of links: (repository folder, snapshot)."""
    repository = root / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / ("c" * 40)
    (repository / "refs").mkdir(parents=True)
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (repository / "refs" / "main").write_text("c" * 40)
    build.write_safetensors(blobs / ("a" * 64), build.layer(0), {"format": "pt"})
    (blobs / ("b" * 40)).write_text('{"model_type": "llama"}')
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{'a' * 64}")
    (snapshot / "config.json").symlink_to(f"../../blobs/{'b' * 40}")
    return repository, snapshot


def test_snapshot_of_links(tmp_path: Path) -> None:
    repository, snapshot = cache(tmp_path)
    checkpoint = Checkpoint.open(str(snapshot))
    assert checkpoint.problems == () and len(checkpoint.tensors) == 2
    digests = {file.name: file.digest for file in checkpoint.files}
    assert digests == {"model.safetensors": "a" * 64, "config.json": None}
    whole = Checkpoint.open(str(repository))
    assert whole.tensors == checkpoint.tensors and whole.revision == "c" * 40


def test_repository_of_the_cache_without_a_branch(tmp_path: Path) -> None:
    repository, _ = cache(tmp_path)
    (repository / "refs" / "main").unlink()
    assert len(Checkpoint.open(str(repository)).tensors) == 2
    (repository / "snapshots" / "other").mkdir()
    assert Checkpoint.open(str(repository)).format == "none"


def test_dangling_link(tmp_path: Path) -> None:
    repository, snapshot = cache(tmp_path)
    (repository / "blobs" / ("a" * 64)).unlink()
    checkpoint = Checkpoint.open(str(snapshot))
    assert codes(checkpoint) == ["FI023"]
    finding = checkpoint.problems[0]
    assert finding.severity == "error" and f"blobs/{'a' * 64}" in finding.message
    assert finding.hints[0].command == "hf download org/name model.safetensors --force-download"
    (repository / "blobs" / ("b" * 40)).unlink()
    both = Checkpoint.open(str(snapshot)).problems
    assert {(problem.code, problem.where) for problem in both} == {
        ("FI023", "model.safetensors"),
        ("FI023", "config.json"),
    }


def test_cycle_of_links(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to("..")
    (tmp_path / "self.safetensors").symlink_to("self.safetensors")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert len(checkpoint.tensors) == 16
    assert [(problem.code, problem.where) for problem in checkpoint.problems] == [
        ("FI022", "self.safetensors"),
        ("FI034", "self.safetensors"),
    ]


def test_deep_folders_end(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 30)
    deep.mkdir(parents=True)
    (deep / "x.bin").write_bytes(b"")
    build.write_sharded(tmp_path)
    assert Checkpoint.open(str(tmp_path)).problems == ()


def test_not_a_regular_file(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    os.mkfifo(tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint) == ["FI022"] and "not a regular file" in checkpoint.problems[0].message


def test_a_link_that_vanishes_while_the_folder_is_listed(tmp_path: Path) -> None:
    found = describe(str(tmp_path / "gone"), "gone", is_symlink=True)
    assert found.problem is not None and "No such file" in found.problem


def test_a_folder_of_more_files_than_any_checkpoint_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a listing would call the other half missing."""
    build.write_sharded(tmp_path)
    monkeypatch.setattr("mlload.checkpoint.sources.local.MAX_FILES", 3)
    with pytest.raises(MlloadError, match="more than 3 files") as caught:
        Checkpoint.open(str(tmp_path))
    assert caught.value.exit_code == 3


def test_many_files_with_one_fault_are_a_few_findings(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    for number in range(100):
        (tmp_path / f"row-{number:03}.json").write_bytes(b"")
    (tmp_path / "tokenizer_config.json").write_bytes(b"")
    problems = Checkpoint.open(str(tmp_path)).problems
    assert [problem.where for problem in problems if problem.severity == "error"] == ["tokenizer_config.json"]
    told = [problem for problem in problems if problem.severity == "warning"]
    assert {problem.code for problem in told} == {"FI004"} and len(told) == 4
    assert told[-1].numbers == {"files": 97} and "row-003.json to row-099.json" in told[-1].message


def test_a_file_that_is_neither_weights_nor_config(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    for name, severity in (("tokenizer.json", "error"), ("README.md", "error"), ("config.json", "info")):
        path = tmp_path / name
        if not path.exists():
            path.write_text("{}")
        (told,) = [p for p in Checkpoint.open(str(path)).problems if p.code == "FI064"]
        assert told.severity == severity
        assert [hint.command for hint in told.hints] == ([f"mlload inspect {tmp_path}"] if severity == "error" else [])


def test_a_weight_file_has_its_tokenizer_and_template_beside_it(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    for name in ("chat_template.jinja", "tokenizer.model", "notes.txt"):
        (tmp_path / name).write_text("x")
    (weights, *_) = sorted(tmp_path.glob("*.safetensors"))
    names = {file.name for file in Checkpoint.open(str(weights)).files}
    assert {"chat_template.jinja", "tokenizer.model", "config.json", weights.name} <= names and "notes.txt" not in names


def test_no_pipe_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "chat_template.jinja")
    source = FolderSource(str(tmp_path), "x")
    with pytest.raises(MlloadError, match="not a regular file"):
        source.read("chat_template.jinja")
    with pytest.raises(OSError, match="not a regular file"), LocalFiles(source).open("chat_template.jinja"):
        pass


def test_file_that_vanishes(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)

    class Flaky(FolderSource):
        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            if name not in ("model-00002-of-00004.safetensors", "generation_config.json"):
                return super().read(name, start, length)
            raise MlloadError(f"{name}: cannot be read: Input/output error")

    (tmp_path / "generation_config.json").write_text("{}")
    checkpoint = Checkpoint.open(Flaky(str(tmp_path), "x"))
    unread = [problem.where for problem in checkpoint.problems if problem.code == "FI022"]
    assert unread == ["generation_config.json", "model-00002-of-00004.safetensors"]
    assert len(checkpoint.tensors) == 12


def test_index_that_cannot_be_read(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)

    class Flaky(FolderSource):
        def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
            if name.endswith(".index.json"):
                raise MlloadError("no")
            return super().read(name, start, length)

    checkpoint = Checkpoint.open(Flaky(str(tmp_path), "x"))
    assert codes(checkpoint)[0] == "FI022" and len(checkpoint.tensors) == 16


def test_reads(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    source = FolderSource(str(tmp_path), "x")
    assert source.read("a") == b"0123456789"
    assert source.read("a", 3, 4) == b"3456"
    assert source.read("a", 8, 2**60) == b"89"
    assert source.read("a", 20, 5) == b""
    good, bad = source.read_many([Range("a", 1, 2), Range("none")])
    assert good == b"12" and isinstance(bad, MlloadError) and "No such file" in bad.message
    with pytest.raises(MlloadError):
        source.read("a\0b")
    with pytest.raises(MlloadError):
        FolderSource(str(tmp_path / "none"), "none").files()


def test_folder_below_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI022", "warning")]


def test_single_file(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    checkpoint = Checkpoint.open(str(tmp_path / "model-00002-of-00004.safetensors"))
    assert checkpoint.format == "safetensors" and len(checkpoint.tensors) == 4
    assert checkpoint.config == {"model_type": "llama"}
    assert [file.name for file in checkpoint.files] == ["config.json", "model-00002-of-00004.safetensors"]
    assert isinstance(open_local(str(tmp_path / "config.json")), FileSource)
    assert Checkpoint.open(str(tmp_path / "config.json")).format == "none"
    assert open_local(str(tmp_path / "none")) is None


def test_single_adapter_file(tmp_path: Path) -> None:
    build.write_safetensors(tmp_path / "adapter_model.safetensors", {"a": ("F32", [1])})
    assert Checkpoint.open(str(tmp_path / "adapter_model.safetensors")).format == "adapter"


def test_config_alone(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.format == "none" and checkpoint.tensors == {} and checkpoint.config["model_type"] == "llama"
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI064", "info")]


def test_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert finding.code == "FI064" and finding.severity == "error" and "(1 file)" in finding.message


def test_weights_in_a_folder_below(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    (tmp_path / "original").mkdir()
    build.write_safetensors(tmp_path / "original" / "model.safetensors", {"a": ("F32", [1])})
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert finding.code == "FI064" and finding.severity == "error"
    assert finding.hints[0].command == f"mlload inspect {tmp_path}/original"


def test_config_missing(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "config.json").unlink()
    assert codes(Checkpoint.open(str(tmp_path))) == ["FI060"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "FI004"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "FI001"),
        (b"<html>", "FI002"),
        (b"{", "FI061"),
        (b"[1]", "FI061"),
        (b'{"a": ' + b"[" * 100_000, "FI061"),
        (b"\xef\xbb\xbf{}", "FI061"),
    ],
)
def test_config_damaged(tmp_path: Path, content: bytes, code: str) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [(code, "error")]
    assert checkpoint.config == {}


def test_other_json_damaged_is_a_warning(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "added_tokens.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "tokenizer.json").write_text("{")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI061", "warning")]
    assert checkpoint.json_files["list.json"] == [1] and "tokenizer.json" not in checkpoint.json_files


def test_config_of_gigabytes(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    os.truncate(tmp_path / "config.json", 2**32)
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert finding.code == "FI061" and "4,294,967,296 bytes" in finding.message


def test_index_of_gigabytes(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    os.truncate(tmp_path / "model.safetensors.index.json", 2**32)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint)[0] == "FI030" and "4,294,967,296 bytes" in checkpoint.problems[0].message
    assert len(checkpoint.tensors) == 16


def test_adapter_without_a_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    build.write_safetensors(tmp_path / "adapter_model.safetensors", {"a": ("F32", [1])})
    (finding,) = Checkpoint.open(str(tmp_path)).problems
    assert "a base model that it does not name (rank 8)" in finding.message
    assert finding.hints[0].command is not None and "vllm serve BASE" in finding.hints[0].command


def test_lfs_clone(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    for shard in tmp_path.glob("*.safetensors"):
        shard.write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"
        )
    checkpoint = Checkpoint.open(str(tmp_path))
    assert codes(checkpoint) == ["FI001"] * 4
    finding = checkpoint.problems[0]
    assert finding.numbers["real_size"] == 4_976_698_672 and "4,976,698,672" in finding.message
    assert finding.hints[0].command == f"git -C {tmp_path} lfs pull"
