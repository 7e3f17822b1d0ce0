"""The Hub, and buckets of other kinds, as the source of a cut: ranges are read, and no copy of the files is kept."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA
from tests.servers.hub import HubServer
from tests.writer.build import read_folder, read_safetensors, write_checkpoint, write_quantized

pytestmark = pytest.mark.network_servers
CONFIG = {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "head_dim": 32}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    write_checkpoint(tmp_path / "hub" / "org" / "llama", CONFIG)
    write_quantized(tmp_path / "hub" / "org" / "awq", "awq")
    with HubServer(tmp_path / "hub") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
        yield server


@pytest.mark.parametrize("name", ["llama", "awq"])
def test_from_the_hub_without_a_local_copy(name: str, hub: HubServer, tmp_path: Path) -> None:
    """Weights cross the wire about once, at two ranks, and lie nowhere but in the output."""
    source = hub.root / "org" / name
    assert main(["shard", f"org/{name}", "-o", str(tmp_path / "ranks"), "--tp", "2", "--verify"]) == 0
    sizes = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    sent = sum(count for file, count in hub.bytes_sent.items() if file.endswith(".safetensors"))
    # The start of each file is read for its header, of which these small ones are a large part.
    assert sizes * 0.95 <= sent <= 2 * sizes
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and path.stat().st_size > sizes // 20]
    assert kept == []
    assert main(["shard", str(tmp_path / "ranks"), "-o", str(tmp_path / "merged"), "--merge"]) == 0
    assert read_folder(tmp_path / "merged") == read_folder(source)


def test_a_dropped_connection_goes_on(hub: HubServer, tmp_path: Path) -> None:
    """Bodies break off after 10 kB, five times: what is written is whole all the same."""
    hub.switches.drops, hub.switches.drop_after = 5, 10_000
    assert main(["shard", "org/llama", "-o", str(tmp_path / "out"), "--max-shard-size", "500KB"]) == 0
    assert hub.switches.drops == 0
    assert read_folder(tmp_path / "out") == read_folder(hub.root / "org" / "llama")


@pytest.mark.parametrize("protocol", ["gs", "az"])
def test_buckets_of_other_clouds(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fsspec has for the protocol is read and written; here its file system in memory."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    class Cloud(MemoryFileSystem):  # type: ignore[misc]
        protocol = ("gs", "az")
        store: dict[str, object] = {}  # noqa: RUF012 - fsspec's own way of sharing it
        pseudo_dirs = [""]  # noqa: RUF012

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.partition("://")[2] if "://" in path else path))

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, protocol, Cloud)  # type: ignore[attr-defined]
    source = write_checkpoint(tmp_path / "source", LLAMA)
    fs = fsspec.filesystem(protocol)
    fs.put(str(source), "/models/llama", recursive=True)
    assert main(["shard", f"{protocol}://models/llama", "-o", str(tmp_path / "ranks"), "--tp", "2"]) == 0
    assert main(["shard", str(source), "-o", str(tmp_path / "straight"), "--tp", "2"]) == 0
    for rank in range(2):
        file = f"rank-{rank:05d}/model.safetensors"
        assert read_safetensors(tmp_path / "ranks" / file) == read_safetensors(tmp_path / "straight" / file)
    words = ["shard", f"{protocol}://models/llama", "-o", f"{protocol}://models/merged", "--merge", "--verify"]
    assert main(words) == 0
    shutil.rmtree(tmp_path / "straight")
    fs.get("/models/merged/", str(tmp_path / "straight"), recursive=True)
    assert read_folder(tmp_path / "straight") == read_folder(source)
