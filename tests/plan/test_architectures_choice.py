"""Which table a checkpoint is read with."""

from __future__ import annotations

from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.architectures.choice import choose

GGUF = {"general.architecture": "qwen3", "qwen3.embedding_length": 64, "qwen3.block_count": 2}


def checkpoint(
    config: dict[str, Any], *, names: tuple[str, ...] = (), format: str = "safetensors", metadata: Any = None
) -> Checkpoint:
    return Checkpoint(
        label="here",
        source=None,  # type: ignore[arg-type]  # choosing reads nothing
        format=format,
        tensors={name: TensorRef(name, "F32", (4, 4), 0, 0, 0) for name in names},
        stray={},
        config=config,
        json_files={},
        metadata=metadata or {},
        index=None,
        files=(),
        fingerprint="",
        problems=(),
    )


def test_a_known_type_has_its_table() -> None:
    config, architecture = choose(checkpoint({"model_type": "llama"}))
    assert architecture.model_type == config.model_type == "llama"
    assert not architecture.inferred


def test_an_unknown_type_is_inferred_from_the_tensors() -> None:
    _, architecture = choose(checkpoint({"model_type": "new"}, names=("layers.0.q_proj.weight",)))
    assert architecture.inferred


def test_an_unknown_type_without_weights_cannot_be_judged() -> None:
    with pytest.raises(MlloadError, match="'new' is not in the tables") as told:
        choose(checkpoint({"model_type": "new"}, format="none"))
    assert told.value.exit_code == 3


def test_case_38_the_metadata_of_a_gguf_wins_over_a_config_beside_it() -> None:
    foreign = {"model_type": "deepseek_v3", "quantization_config": {"quant_method": "fp8"}}
    files = {"a-00001-of-00002.gguf": GGUF, "a-00002-of-00002.gguf": {"split.no": 1}}
    config, architecture = choose(checkpoint(foreign, names=("token_embd.weight",), format="gguf", metadata=files))
    assert (config.model_type, config.hidden, config.layers) == ("qwen3", 64, 2)
    assert config.get("quantization_config") is None
    assert architecture.params(config)[0].module == "token_embd"


def test_a_gguf_that_does_not_say_what_it_is_falls_back_on_the_config_beside_it() -> None:
    config, _ = choose(checkpoint({"model_type": "llama"}, names=("token_embd.weight",), format="gguf"))
    assert config.model_type == "llama"


def test_a_gguf_whose_names_are_not_known_is_inferred() -> None:
    files = {"a.gguf": {"general.architecture": "bloom"}}
    config, architecture = choose(checkpoint({}, names=("blk.0.attn_qkv.weight",), format="gguf", metadata=files))
    assert config.model_type == "bloom"
    assert architecture.inferred
