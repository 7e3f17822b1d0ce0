"""Every family: the same files, transformers' own model against ours, whole and cut over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.engine.native import NativeEngine
from mlload.plan.plan import Plan
from tests.engine.architectures import CONFIGS, ONE_RANK
from tests.engine.ranks import ThreadGroup, on_ranks
from tests.engine.tiny import planned, save

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

IDS = torch.randint(3, 80, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    folder = tmp_path_factory.mktemp("model")
    model: Any = save(folder, CONFIGS[request.param])
    with torch.inference_mode():
        return folder, model(input_ids=IDS).logits


def on_rank(plan: Plan, rank: int, group: ThreadGroup) -> tuple[Tensor, int]:
    engine = NativeEngine(plan, rank, group).start()  # type: ignore[arg-type]
    return engine.logits(IDS), engine.weight_bytes()


def close(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).abs().max()) <= 2e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("made", CONFIGS, indirect=True)
def test_one_rank_says_what_transformers_says(made: tuple[Path, Tensor]) -> None:
    folder, theirs = made
    engine = NativeEngine(planned(folder)).start()
    assert close(engine.logits(IDS), theirs)
    cache = engine.cache(9)
    engine.step(IDS[:, :6], cache)
    for position in range(6, 9):
        assert close(engine.step(IDS[:, position : position + 1], cache), theirs[:, position])


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("made", sorted(CONFIGS.keys() - ONE_RANK), indirect=True)
def test_ranks_say_the_same(made: tuple[Path, Tensor], tp: int) -> None:
    """tp 4 is more than the 2 KV heads: each is held by two ranks."""
    folder, theirs = made
    plan = planned(folder, tp)
    sizes = plan.ranks()
    for rank, (ours, measured) in enumerate(on_ranks(tp, lambda rank, group: on_rank(plan, rank, group))):
        assert close(ours, theirs)
        assert measured == sizes[rank].weight_bytes


@pytest.mark.parametrize("made", sorted(ONE_RANK), indirect=True)
def test_what_cannot_be_cut_says_so(made: tuple[Path, Tensor]) -> None:
    plan = planned(made[0], 2)
    with pytest.raises(MlloadError, match="tp 1"):
        on_ranks(2, lambda rank, group: on_rank(plan, rank, group))
