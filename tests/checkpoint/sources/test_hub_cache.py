"""The Hub's cache on disk: a whole snapshot answers without a network, a partial one does not stand in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.sources import open_source
from tests.checkpoint.sources.conftest import REPO
from tests.servers.hub import HubServer

pytestmark = pytest.mark.network_servers

DIGEST = "ab" * 32


@pytest.fixture
def snapshot(hub: HubServer, tmp_path: Path) -> Path:
    """The model as a download leaves it: refs, blobs, and a snapshot of links."""
    root = tmp_path / "hf" / "hub" / "models--acme--tiny-llama"
    commit = hub.commit(REPO)
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    (root / "blobs").mkdir()
    for number, path in enumerate(sorted((hub.root / REPO).iterdir())):
        blob = root / "blobs" / f"{number:02d}{DIGEST[2:]}"
        shutil.copy(path, blob)
        (folder / path.name).symlink_to(f"../../blobs/{blob.name}")
    return folder


def test_a_whole_snapshot_needs_no_network(hub: HubServer, snapshot: Path) -> None:
    source = open_source(REPO)
    assert (source.remote, source.revision, source.label) == (False, hub.commit(REPO), REPO)
    assert {file.name for file in source.files()} == {path.name for path in (hub.root / REPO).iterdir()}
    assert open_source(f"{REPO}@{hub.commit(REPO)}").remote is False
    assert hub.requests == []


def test_a_snapshot_without_all_weights_does_not_stand_in(hub: HubServer, snapshot: Path) -> None:
    (snapshot / "model-00002-of-00003.safetensors").unlink()
    assert open_source(REPO).remote is True
    (snapshot / "model.safetensors.index.json").unlink()
    assert open_source(REPO).remote is True, "the numbering of the files tells it too"
    for path in snapshot.glob("*.safetensors"):
        path.unlink()
    assert open_source(REPO).remote is True


def test_a_dangling_link_is_no_weight_file(hub: HubServer, snapshot: Path) -> None:
    (snapshot / "model-00002-of-00003.safetensors").resolve().unlink()
    assert open_source(REPO).remote is True


def test_offline_takes_what_is_there(hub: HubServer, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (snapshot / "model-00002-of-00003.safetensors").unlink()
    assert open_source(REPO).remote is False
    with pytest.raises(MlloadError, match="not in the Hub cache, and HF_HUB_OFFLINE forbids") as caught:
        open_source("acme/other")
    assert caught.value.exit_code == 3 and "hf download acme/other" in (caught.value.hint or "")
    with pytest.raises(MlloadError, match="not in the Hub cache") as caught:
        open_source(f"{REPO}@v2")
    assert f"hf download {REPO} --revision v2" in (caught.value.hint or "")
    assert hub.requests == []


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
def test_the_cache_may_lie_elsewhere(
    hub: HubServer, snapshot: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "hf" / "hub", moved)
    monkeypatch.setenv(name, str(moved))
    assert open_source(REPO).remote is False


def test_a_revision_cannot_leave_the_cache(hub: HubServer, snapshot: Path) -> None:
    with pytest.raises(MlloadError, match="no revision"):
        open_source(REPO, revision="../../..")
