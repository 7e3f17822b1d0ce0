"""Calibration text from datasets of a Hub, by its own files and their ranges."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.engine.calibrate_hub import hub_text
from tests.servers.hub import HubServer

pytestmark = pytest.mark.network_servers


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with HubServer(tmp_path) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def put(hub: HubServer, name: str, content: bytes, repo: str = "org/texts") -> None:
    path = hub.root / "datasets" / repo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"id": n, "text": text}).encode() + b"\n" for n, text in enumerate(texts))


def parquet(**columns: Any) -> bytes:
    pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sink = pyarrow.BufferOutputStream()
    files.write_table(pyarrow.table(columns), sink, row_group_size=100, compression="none")
    return bytes(sink.getvalue().to_pybytes())


def test_a_split_s_files_are_read_in_order(hub: HubServer) -> None:
    put(hub, "train-00000.jsonl", lines("one", "two"))
    put(hub, "train-00001.jsonl", lines("three"))
    put(hub, "test.jsonl", lines("never"))
    put(hub, "README.md", b"# texts")
    text, source = hub_text("org/texts", 10**6)
    assert text == "one\n\ntwo\n\nthree"
    assert source.startswith(f"org/texts@{hub.commit('datasets/org/texts')[:12]}")
    assert hub_text("org/texts:test", 10**6)[0] == "never"


def test_no_more_is_fetched_than_is_wanted(hub: HubServer) -> None:
    put(hub, "train.jsonl", lines(*["word " * 200] * 8000))  # 8 MB
    text, _ = hub_text("org/texts", 5000)
    assert 5000 <= len(text) < 7000
    assert hub.bytes_sent["train.jsonl"] <= 2 << 20


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data/train.txt", b"one\n\ntwo\n"),
        ("train.txt.gz", gzip.compress(b"one\n\ntwo\n")),
        ("train.csv", b'id,text\n1,"one\n"\n2,two\n'),
        ("train.json", json.dumps([{"text": "one"}, {"text": "two"}], indent=1).encode()),
        ("train.jsonl", b'{"messages": [{"role": "user", "content": "one"}, {"content": "two"}]}'),
        ("train.jsonl", b'{"conversations": [{"from": "human", "value": "one"}, {"value": "two"}]}'),
    ],
)
def test_every_plain_kind(name: str, content: bytes, hub: HubServer) -> None:
    put(hub, name, content)
    assert hub_text("org/texts", 10**6)[0].split() == ["one", "two"]


def test_parquet_s_text_alone_is_fetched(hub: HubServer) -> None:
    import random

    noise = random.Random(0)
    images = [noise.randbytes(20_000) for _ in range(300)]
    put(hub, "data/train-0.parquet", parquet(image=images, text=[f"row {n}" for n in range(300)]))
    text, _ = hub_text("org/texts", 10**6)
    assert text.split("\n\n") == [f"row {n}" for n in range(300)]
    assert hub.bytes_sent["data/train-0.parquet"] < 1 << 20, "6 MB of images stay where they are"


def test_configurations_are_named(hub: HubServer) -> None:
    put(hub, "small/train.jsonl", lines("little"))
    put(hub, "large/train.jsonl", lines("much"))
    with pytest.raises(MlloadError, match="several configurations: large, small") as refused:
        hub_text("org/texts", 100)
    assert refused.value.hint == "--calib hf:org/texts:large/train"
    assert hub_text("org/texts:small/train", 100)[0] == "little"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "takes a dataset's name"),
        ("org/nothing", "the Hub has no dataset called org/nothing"),
        ("org/texts:validation", "has nothing called validation"),
        ("org/images", "no file that can be read as text"),
        ("org/odd", "it has image, label"),
        ("org/torn", "no Parquet file"),
        ("org/tables", "no column of text"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(spec: str, said: str, hub: HubServer) -> None:
    put(hub, "train.jsonl", lines("one"))
    put(hub, "a.png", b"no text", "org/images")
    put(hub, "train.jsonl", b'{"image": 1, "label": 2}\n', "org/odd")
    put(hub, "train.parquet", b"PAR1 and then nothing", "org/torn")
    put(hub, "train.parquet", parquet(label=[1, 2]), "org/tables")
    with pytest.raises(MlloadError, match=said):
        hub_text(spec, 100)


def test_offline_is_said_before_anything_is_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MlloadError, match="HF_HUB_OFFLINE forbids"):
        hub_text("org/texts", 100)
    assert not hub.requests


def test_without_pyarrow_the_extra_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    put(hub, "train.parquet", b"PAR1")
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MlloadError, match="needs pyarrow") as refused:
        hub_text("org/texts", 100)
    assert "mlload[datasets]" in str(refused.value.hint)
