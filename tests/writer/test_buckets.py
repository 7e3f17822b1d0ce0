"""From a bucket and to a bucket, against a real S3 server."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.servers.s3 import S3Server
from tests.writer.build import read_folder, read_safetensors, write_checkpoint

pytestmark = pytest.mark.network_servers
CONFIG = {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "head_dim": 32}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("source"), CONFIG)


@pytest.fixture(scope="module")
def server(source: Path) -> Iterator[S3Server]:
    with S3Server() as s3:
        s3.put_folder("models", source, "llama/")
        yield s3


@pytest.fixture(autouse=True)
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def test_from_a_bucket_each_byte_once(s3: S3Server, source: Path, tmp_path: Path) -> None:
    s3.bytes_sent.clear()
    assert main(["shard", "s3://models/llama", "-o", str(tmp_path / "ranks"), "--tp", "4", "--verify"]) == 0
    weights = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    sent = sum(count for name, count in s3.bytes_sent.items() if name.endswith(".safetensors"))
    # The start of each file is read for its header, of which these small ones are a large part.
    assert sent <= 2 * weights
    assert main(["shard", str(tmp_path / "ranks"), "-o", str(tmp_path / "merged"), "--merge"]) == 0
    assert read_folder(tmp_path / "merged") == read_folder(source)


def test_to_a_bucket_and_back(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["shard", str(source), "-o", "s3://models/ranks", "--tp", "2", "--verify"]
    assert main(words) == 0
    assert main(["shard", "s3://models/ranks", "-o", str(tmp_path / "again"), "--tp", "2"]) == 0
    assert main(["shard", str(source), "-o", str(tmp_path / "straight"), "--tp", "2"]) == 0
    for rank in range(2):
        file = f"rank-{rank:05d}/model.safetensors"
        assert read_safetensors(tmp_path / "again" / file) == read_safetensors(tmp_path / "straight" / file)
    assert main(["shard", "s3://models/ranks", "-o", "s3://models/merged", "--merge"]) == 0
    assert main(["diff", "s3://models/merged", str(source)]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "nothing is ever overwritten" in capsys.readouterr().err


def test_an_upload_that_broke_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlload.checkpoint.sources.url import bucket
    from mlload.writer import bucket as module

    words = ["shard", str(source), "-o", "s3://models/broken", "--tp", "2"]
    put = module._Upload.put

    first = threading.Event()

    def fail(self: module._Upload, name: str, *more: object) -> None:
        if name.startswith("rank-00001"):
            assert first.wait(120)
            raise KeyboardInterrupt
        put(self, name, *more)  # type: ignore[arg-type]
        if name.startswith("rank-00000"):
            first.set()

    monkeypatch.setattr(module._Upload, "put", fail)
    assert main(words) == 130
    fs, root = bucket("s3://models/broken")
    fs.invalidate_cache()
    names = {path[len(root) + 1 :] for path in fs.find(root)}
    assert names == {"mlload-progress.json", "rank-00000/model.safetensors"}
    uploaded: list[str] = []

    def note(self: module._Upload, name: str, *more: object) -> None:
        uploaded.append(name)
        put(self, name, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Upload, "put", note)
    assert main(words) == 0
    assert "rank-00000/model.safetensors" not in uploaded and uploaded[-1] == "config.json"
    assert main(["shard", "s3://models/broken", "-o", str(tmp_path / "merged"), "--merge"]) == 0
    assert read_folder(tmp_path / "merged") == read_folder(source)


def test_files_are_uploaded_side_by_side(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks meet in the middle of their uploads, which one after another they never could."""
    from mlload.writer import bucket as module

    together = threading.Barrier(4)
    put = module._Upload.put

    def meet(self: module._Upload, name: str, pieces: Iterator[bytes], *more: object) -> None:
        if name.startswith("rank-"):
            together.wait(120)
        put(self, name, pieces, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Upload, "put", meet)
    assert main(["shard", str(source), "-o", "s3://models/side", "--tp", "4", "--verify"]) == 0
    monkeypatch.undo()


def test_one_that_fails_stops_the_others(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlload.checkpoint.finding import MlloadError
    from mlload.checkpoint.sources.url import bucket
    from mlload.writer import bucket as module

    put = module._Upload.put
    begun, failed = threading.Event(), threading.Event()

    def fail(self: module._Upload, name: str, pieces: Iterator[bytes], *more: object) -> None:
        if name.startswith("rank-00001"):
            assert begun.wait(120)
            failed.set()
            raise MlloadError("the bucket is full")
        put(self, name, slowly(pieces) if name.startswith("rank-00000") else pieces, *more)  # type: ignore[arg-type]

    def slowly(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for number, piece in enumerate(pieces):
            yield piece
            if not number:
                begun.set()
                assert failed.wait(120)
                # The generator that is told to stop once the other thread has raised.
                assert inspect.getgeneratorlocals(pieces)["stopped"].wait(120)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Upload, "put", fail)
    assert main(["shard", str(source), "-o", "s3://models/full", "--tp", "2"]) != 0
    fs, root = bucket("s3://models/full")
    fs.invalidate_cache()
    assert {path[len(root) + 1 :] for path in fs.find(root)} == {"mlload-progress.json"}
