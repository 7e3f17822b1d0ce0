"""A small sharded checkpoint whose weights are far larger than its headers, and servers that hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.hub import HubServer
from tools.sparse_safetensors import Entry, split, write_sharded

REPO = "acme/tiny-llama"
HIDDEN, LAYERS, VOCAB, MLP = 512, 6, 8000, 1536


def tiny_entries() -> list[Entry]:
    """A llama of 57 MB, to be split over three files."""
    entries = [Entry("model.embed_tokens.weight", "BF16", (VOCAB, HIDDEN))]
    for layer in range(LAYERS):
        root = f"model.layers.{layer}"
        entries += [Entry(f"{root}.self_attn.{name}_proj.weight", "BF16", (HIDDEN, HIDDEN)) for name in "qkvo"]
        entries += [Entry(f"{root}.mlp.{name}_proj.weight", "BF16", (MLP, HIDDEN)) for name in ("gate", "up")]
        entries.append(Entry(f"{root}.mlp.down_proj.weight", "BF16", (HIDDEN, MLP)))
        entries += [Entry(f"{root}.{name}_layernorm.weight", "BF16", (HIDDEN,)) for name in ("input", "post_attention")]
    entries += [Entry("model.norm.weight", "BF16", (HIDDEN,)), Entry("lm_head.weight", "BF16", (VOCAB, HIDDEN))]
    return entries


def write_tiny(folder: Path) -> None:
    folder.mkdir(parents=True)
    write_sharded(folder, split(tiny_entries(), 22_000_000))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": VOCAB,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `org/name` folders, as the Hub server wants it."""
    root = tmp_path_factory.mktemp("hub")
    write_tiny(root / REPO)
    return root


@pytest.fixture
def hub(repositories: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The server, with this process pointed at it and at an empty cache."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr("mlload.checkpoint.sources.http.HttpClient._wait", lambda self, attempt, answer: 0.0)
    with HubServer(repositories) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
