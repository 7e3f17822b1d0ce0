"""Every family: the same files, transformers' own model against ours, whole and cut over ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.engine.native import NativeEngine, refuse
from mlload.plan.plan import Plan
from mlload.quant.layers.group import ALONE, Group
from tests.engine.architectures import CONFIGS, ON_THREE
from tests.engine.ranks import ThreadGroup, on_ranks
from tests.engine.tiny import planned, save

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

IDS = torch.randint(3, 80, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor, Tensor]:
    """A folder, and what transformers says of it: logits of all positions at once, and of the last three one after
    another (which differ from the former for classes that step otherwise than they scan)."""
    folder = tmp_path_factory.mktemp("model")
    config = {**CONFIGS, **ON_THREE}[request.param]
    if config["model_type"] not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {config['model_type']}")
    model: Any = save(folder, config)
    with torch.inference_mode():
        whole = model(input_ids=IDS).logits
        out = model(input_ids=IDS[:, :6], use_cache=True)
        names = ("past_key_values", "cache", "cache_params")
        held = {name: found for name in names if (found := getattr(out, name, None)) is not None}
        steps = []
        for position in range(6, 9):
            out = model(input_ids=IDS[:, position : position + 1], use_cache=True, **held)
            steps.append(out.logits)
        return folder, whole, torch.cat(steps, 1)


def on_rank(plan: Plan, rank: int, group: Group | ThreadGroup) -> tuple[Tensor, Tensor, int]:
    """Logits of all positions at once, and of the last three one after another; bytes of the weights."""
    engine = NativeEngine(plan, rank, group).start()  # type: ignore[arg-type]
    every = engine.logits(IDS)
    cache = engine.cache(9)
    engine.step(IDS[:, :6], cache)
    steps = [engine.step(IDS[:, position : position + 1], cache) for position in range(6, 9)]
    return every, torch.stack(steps, 1), engine.weight_bytes()


def close(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).abs().max()) <= 2e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("made", CONFIGS, indirect=True)
def test_one_rank_says_what_transformers_says(made: tuple[Path, Tensor, Tensor]) -> None:
    folder, theirs, stepped = made
    plan = planned(folder)
    ours, steps, measured = on_rank(plan, 0, ALONE)
    assert close(ours, theirs) and close(steps, stepped)
    assert measured == plan.ranks()[0].weight_bytes


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("made", CONFIGS, indirect=True)
def test_ranks_say_the_same(made: tuple[Path, Tensor, Tensor], tp: int) -> None:
    """tp 4 is more than the 2 KV heads: each is held by two ranks."""
    folder, theirs, stepped = made
    plan = planned(folder, tp)
    sizes = plan.ranks()
    for rank, (ours, steps, measured) in enumerate(on_ranks(tp, lambda rank, group: on_rank(plan, rank, group))):
        assert close(ours, theirs) and close(steps, stepped)
        assert measured == sizes[rank].weight_bytes


EXPERTS = {"num_experts", "num_local_experts", "n_routed_experts"}
ROUTED = sorted(name for name, config in CONFIGS.items() if config.keys() & EXPERTS)


def experts_dealt_out(made: tuple[Path, Tensor, Tensor], tp: int) -> None:
    folder, theirs, stepped = made
    plan = planned(folder, tp, ep=True)
    sizes = plan.ranks()
    for rank, (ours, steps, measured) in enumerate(on_ranks(tp, lambda rank, group: on_rank(plan, rank, group))):
        assert close(ours, theirs) and close(steps, stepped)
        assert measured == sizes[rank].weight_bytes


@pytest.mark.parametrize("made", ROUTED, indirect=True)
def test_experts_dealt_out_say_the_same(made: tuple[Path, Tensor, Tensor]) -> None:
    experts_dealt_out(made, 2)


@pytest.mark.parametrize("made", ["mixtral on three"], indirect=True)
def test_ranks_with_unequal_counts_of_experts(made: tuple[Path, Tensor, Tensor]) -> None:
    """Four experts over three ranks: two, one, one."""
    experts_dealt_out(made, 3)


def test_more_ranks_than_experts_are_refused(tmp_path: Path) -> None:
    config = {**CONFIGS["mixtral"], "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 6}
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MixtralForCausalLM"]}))
    with pytest.raises(MlloadError, match="over 8 ranks, and the model has 4 routed experts"):
        refuse(planned(tmp_path, 8, ep=True))
