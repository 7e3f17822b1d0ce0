"""The real model as transformers has it: text, logits, perplexity; three ranks; fp8 caches; a scrambled layer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mlload.engine.judge import PASSAGE
from mlload.engine.launch import run_all
from mlload.engine.native import NativeEngine
from mlload.engine.settings import Settings
from mlload.engine.speak import speak, tokenizer_of
from tests.engine.ranks import on_ranks
from tests.engine.tiny import planned
from tests.real_models import RealModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(real_model: RealModel) -> Path:
    return real_model("smollm2")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    found = tokenizer_of(str(folder), "")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def ids(tokenizer: Any) -> Tensor:
    return torch.tensor([tokenizer.encode(PASSAGE)])


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def ours(folder: Path) -> NativeEngine:
    return NativeEngine(planned(folder)).start()


def perplexity(logits: Tensor, ids: Tensor) -> float:
    return math.exp(F.cross_entropy(logits[0, :-1].float(), ids[0, 1:]))


def test_logits_and_perplexity(theirs: Any, ours: NativeEngine, ids: Tensor) -> None:
    with torch.inference_mode():
        want = theirs(input_ids=ids).logits
    have = ours.logits(ids)
    assert float((have - want).abs().max()) < 1e-3
    assert f"{perplexity(have, ids):.3f}" == f"{perplexity(want, ids):.3f}"


def test_greedy_text(theirs: Any, ours: NativeEngine, tokenizer: Any) -> None:
    prompt = torch.tensor([tokenizer.encode("The capital of France is")])
    want = theirs.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0)[
        0, prompt.shape[1] :
    ]
    assert torch.equal(ours.greedy(prompt, 20)[0], want)
    assert "Paris" in tokenizer.decode(want)


def test_three_ranks(ours: NativeEngine, folder: Path, ids: Tensor) -> None:
    plan = planned(folder, 3)
    want = ours.logits(ids)
    for have in on_ranks(3, lambda rank, group: NativeEngine(plan, rank, group).start().logits(ids)):  # type: ignore[arg-type]
        assert float((have - want).abs().max()) < 2e-3


def test_fp8_cache(ours: NativeEngine, folder: Path, ids: Tensor) -> None:
    engine = NativeEngine(planned(folder, kv_dtype="fp8")).start()
    full, small = ours.cache(ids.shape[1]), engine.cache(ids.shape[1])
    want, have = ours.step(ids, full, every=True), engine.step(ids, small, every=True)
    assert 1e-3 < abs(perplexity(have, ids) / perplexity(want, ids) - 1) + 1e-2 < 0.06
    assert small.layers[0].keys.dtype == torch.float8_e4m3fn
    assert small.layers[0].keys.nbytes * 4 == full.layers[0].keys.nbytes


@pytest.mark.parametrize("layer", [0, 15, 29])
def test_a_scrambled_layer_does_not_speak(ours: NativeEngine, tokenizer: Any, layer: int) -> None:
    assert speak(ours, tokenizer).ok
    kept = {}
    for name, param in ours.model.named_parameters():
        if f"layers.{layer}." in name and param.dim() == 2:
            kept[name] = param.data.clone()
            order = torch.randperm(param.numel(), generator=torch.Generator().manual_seed(layer))
            param.data = param.data.reshape(-1)[order].reshape(param.shape)
    try:
        spoken = speak(ours, tokenizer)
    finally:
        for name, param in ours.model.named_parameters():
            if name in kept:
                param.data = kept[name]
    assert spoken.ok is False and "nats a token" in spoken.reasons[0]


def test_processes_over_gloo(folder: Path) -> None:
    settings = Settings(str(folder), tp=3, dtype="float32", batches=(1,), prompt_len=8, decode=2)
    results = run_all(settings)
    assert results is not None and [one["rank"] for one in results] == [0, 1, 2]
    for one in results:
        assert one["weight_bytes_predicted"] == one["weight_bytes_measured"]
        assert "Paris" in one["sample"] and one["speaks"]["ok"] is True
