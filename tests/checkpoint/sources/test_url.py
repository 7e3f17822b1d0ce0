"""Buckets: a real S3 server, and fsspec's file system in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources import open_source
from mlload.checkpoint.sources.base import Range
from tests.checkpoint.sources.conftest import REPO
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.network_servers

FIRST = "model-00001-of-00003.safetensors"


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[S3Server]:
    with S3Server() as s3:
        s3.put_folder("models", repositories / REPO, "tiny/")
        yield s3


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def test_files_and_ranges(s3: S3Server, repositories: Path) -> None:
    folder = repositories / REPO
    source = open_source("s3://models/tiny")
    assert (source.kind, source.remote, source.revision) == ("url", True, None)
    assert [(file.name, file.size) for file in source.files()] == [
        (path.name, path.stat().st_size) for path in sorted(folder.iterdir())
    ]
    s3.bytes_sent.clear()
    got = source.read_many([Range(FIRST, 0, 8), Range(FIRST, 8, 100), Range("generation_config.json")])
    first = (folder / FIRST).read_bytes()[:108]
    assert got == [first[:8], first[8:], b'{"eos_token_id": 2}']
    assert s3.total_bytes == 8 + 100 + len(b'{"eos_token_id": 2}')


def test_reads_past_the_end_and_of_nothing(s3: S3Server) -> None:
    source = open_source("s3://models/tiny/")
    assert source.read("generation_config.json", 12, 1000) == b'id": 2}'
    assert source.read("generation_config.json", 5000, 10) == b""
    got = source.read_many([Range("absent.json"), Range("generation_config.json", 0, 1)])
    assert isinstance(got[0], MlloadError) and "no file called absent.json" in got[0].message
    assert got[1] == b"{"


def test_one_file(s3: S3Server) -> None:
    source = open_source(f"s3://models/tiny/{FIRST}")
    assert [file.name for file in source.files()] == [FIRST]
    assert len(source.read(FIRST, 0, 8)) == 8


def test_nothing_there(s3: S3Server) -> None:
    for url in ("s3://models/absent", "s3://no-such-bucket/x"):
        with pytest.raises(MlloadError) as caught:
            open_source(url)
        assert url in caught.value.message and caught.value.exit_code == 3


def test_without_credentials_it_asks_anonymously(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert open_source("s3://models/tiny").read("config.json", 0, 1) == b"{"


def test_memory(repositories: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/box/m/config.json", b'{"a": 1}')
    source = open_source("memory://box/m")
    assert [(file.name, file.size) for file in source.files()] == [("config.json", 8)]
    assert source.read("config.json", 2, 3) == b'a":'


def test_a_refused_bucket_gives_a_sentence(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    async def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError("Access\nDenied")

    monkeypatch.setattr(s3fs.S3FileSystem, "_lsdir", refuse)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(MlloadError, match=r"^no access to s3://models/tiny \(Access Denied\)$") as caught:
        open_source("s3://models/tiny")
    assert caught.value.exit_code == 3


def test_progress(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    source = open_source("s3://models/tiny", progress=lines.append)
    monkeypatch.setattr("mlload.checkpoint.sources.progress.QUIET_SECONDS", -1.0)
    source.read_many([Range(FIRST, 0, 8)])
    assert lines == ["s3://models/tiny: 1 of 1 reads, 0.0 MB", ""]


def test_failures_of_a_store_become_sentences(repositories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem().pipe("/odd/config.json", b"{}")
    source = open_source("memory://odd")
    with pytest.raises(MlloadError, match=r"memory://odd has no file called x\.json"):
        source.read("x.json")

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the store\nis on fire")

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", broken)
    with pytest.raises(MlloadError, match=r"cannot read memory:///odd/config\.json \(the store is on fire\)"):
        source.read("config.json")
    monkeypatch.setattr(MemoryFileSystem, "find", broken)
    with pytest.raises(MlloadError, match=r"cannot read memory://odd \(the store is on fire\)"):
        open_source("memory://odd")


@pytest.mark.parametrize(
    ("url", "module", "said"),
    [
        ("s3://b/p", "fsspec", 's3://b/p needs s3fs, which is not installed here:  pip install "mlload[s3]"'),
        ("az://b/p", "adlfs", 'az://b/p needs adlfs, which is not installed here:  pip install "mlload[az]"'),
        ("memory://b", "fsspec", "memory://b needs a package that is not installed here ("),
    ],
)
def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, url: str, module: str, said: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MlloadError) as caught:
        open_source(url)
    assert caught.value.message.startswith(said)
    assert caught.value.exit_code == 3
