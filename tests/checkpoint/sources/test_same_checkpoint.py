"""One checkpoint from a folder, the Hub and S3 is one checkpoint; and no weight travels for it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from tests.checkpoint.sources.conftest import REPO
from tests.servers.hub import HubServer
from tests.servers.s3 import S3Server
from tests.skeletons import Skeleton

pytestmark = pytest.mark.network_servers

SKELETON = "deepseek-v3"
MOST_BYTES = 30_000_000


def facts(checkpoint: Checkpoint) -> dict[str, object]:
    """Everything but where it came from."""
    return {
        "format": checkpoint.format,
        "tensors": checkpoint.tensors,
        "stray": checkpoint.stray,
        "config": checkpoint.config,
        "json_files": checkpoint.json_files,
        "metadata": checkpoint.metadata,
        "index": checkpoint.index,
        "files": [file._replace(digest=None) for file in checkpoint.files],
        "fingerprint": checkpoint.fingerprint,
        "problems": checkpoint.problems,
    }


def headers_and_rest(folder: Path) -> tuple[int, int]:
    """(bytes of all safetensors headers, bytes of all other files)."""
    headers = rest = 0
    for path in folder.iterdir():
        if path.suffix == ".safetensors":
            with path.open("rb") as handle:
                headers += 8 + int(struct.unpack("<Q", handle.read(8))[0])
        else:
            rest += path.stat().st_size
    return headers, rest


def test_small_from_the_hub(hub: HubServer) -> None:
    folder = hub.root / REPO
    checkpoint = Checkpoint.open(REPO)
    assert facts(checkpoint) == facts(Checkpoint.open(str(folder)))
    assert checkpoint.revision == hub.commit(REPO)
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert hub.total_bytes < weights / 50


def test_small_from_s3(repositories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as s3:
        s3.put_folder("same", repositories / REPO)
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        assert facts(Checkpoint.open("s3://same")) == facts(Checkpoint.open(str(repositories / REPO)))


@pytest.fixture(scope="module")
def deepseek_on_s3(skeleton: Skeleton) -> Iterator[S3Server]:
    with S3Server() as s3:
        s3.put_folder("zoo", skeleton(SKELETON), "deepseek-v3/")
        yield s3


def test_deepseek_v3_over_the_hub_reads_headers_only(
    hub: HubServer, skeleton: Skeleton, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = skeleton(SKELETON)
    hub.root = folder.parent.parent
    checkpoint = Checkpoint.open(f"acme/{SKELETON}")
    assert facts(checkpoint) == facts(Checkpoint.open(str(folder)))
    assert len(checkpoint.tensors) == 91_991
    headers, _ = headers_and_rest(folder)
    assert headers <= hub.total_bytes < MOST_BYTES
    assert sum(count for name, count in hub.bytes_sent.items() if name.endswith(".safetensors")) < 1.3 * headers
    resolved = [path for path in hub.requests if "/resolve/" in path and path.endswith(".safetensors")]
    assert len(resolved) == len(set(resolved)) == 163, "one look-up a file"


def test_deepseek_v3_over_s3_reads_headers_only(
    deepseek_on_s3: S3Server, skeleton: Skeleton, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = skeleton(SKELETON)
    for name, value in deepseek_on_s3.environment.items():
        monkeypatch.setenv(name, value)
    deepseek_on_s3.bytes_sent.clear()
    checkpoint = Checkpoint.open("s3://zoo/deepseek-v3")
    assert facts(checkpoint) == facts(Checkpoint.open(str(folder)))
    headers, _ = headers_and_rest(folder)
    assert headers <= deepseek_on_s3.total_bytes < MOST_BYTES


@pytest.mark.parametrize("name", ["llama-3.1-405b", "gpt-oss-120b", "qwen2.5-72b-awq", "mixtral-8x7b-gptq"])
def test_other_skeletons_over_the_hub(hub: HubServer, skeleton: Skeleton, name: str) -> None:
    folder = skeleton(name)
    hub.root = folder.parent.parent
    assert facts(Checkpoint.open(f"acme/{name}")) == facts(Checkpoint.open(str(folder)))
    assert hub.total_bytes < MOST_BYTES


def test_a_flaky_network_gives_the_same_checkpoint(hub: HubServer) -> None:
    hub.switches.busy, hub.switches.drops, hub.switches.drop_after = 3, 9, 50
    assert facts(Checkpoint.open(REPO)) == facts(Checkpoint.open(str(hub.root / REPO)))
