"""Vision and audio towers: with the language model, without it, and when they are first called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.engine.native import NativeEngine
from mlload.engine.towers import AbsentTower
from tests.engine.ranks import on_ranks
from tests.engine.tiny import planned, save
from tests.engine.towers import IMAGE, TOWERS

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

IDS = torch.randint(3, 60, (1, 9), generator=torch.Generator().manual_seed(1))
EYES = sorted(TOWERS.keys() - {"whisper"})


def inputs(name: str) -> dict[str, Tensor]:
    """Text around one image of 16 patches, or sound under a prompt."""
    noise = torch.Generator().manual_seed(7)
    if name == "whisper":
        return {"input_features": torch.randn(1, 8, 20, generator=noise), "decoder_input_ids": IDS}
    tokens = {"llava": 16, "gemma3": 4, "qwen2_vl": 4}[name]
    ids = torch.cat([IDS[:, :3], torch.full((1, tokens), IMAGE), IDS[:, 3:]], 1)
    if name == "qwen2_vl":
        kinds = (ids == IMAGE).int()
        seen = {"pixel_values": torch.randn(16, 96, generator=noise), "image_grid_thw": torch.tensor([[1, 4, 4]])}
        return {"input_ids": ids, "mm_token_type_ids": kinds, **seen}
    return {"input_ids": ids, "pixel_values": torch.randn(1, 3, 16, 16, generator=noise)}


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Tensor, Tensor]:
    """The name, a folder, transformers' logits with the image, and (of those with eyes) of text alone."""
    name, folder = request.param, tmp_path_factory.mktemp("model")
    auto = "AutoModelForSpeechSeq2Seq" if name == "whisper" else "AutoModelForImageTextToText"
    model = save(folder, TOWERS[name], auto=auto)
    with torch.inference_mode():
        seen = model(**inputs(name)).logits
        return name, folder, seen, seen if name == "whisper" else model(input_ids=IDS).logits


Made = tuple[str, Path, Tensor, Tensor]


@torch.inference_mode()
def with_image(engine: NativeEngine, name: str) -> Tensor:
    logits: Tensor = engine.model(**inputs(name)).logits
    return logits


def close(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).abs().max()) <= 2e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("made", TOWERS, indirect=True)
def test_towers_are_loaded_and_whole_on_every_rank(made: Made, tp: int) -> None:
    name, folder, seen, _ = made
    plan = planned(folder, tp)

    def work(rank: int, group: Any) -> tuple[Tensor, int, int]:
        engine = NativeEngine(plan, rank, group).start()
        assert engine.loaded is not None
        return with_image(engine, name), engine.weight_bytes(), engine.loaded.bytes_read

    for rank, (logits, measured, read) in enumerate(on_ranks(tp, work)):
        assert close(logits, seen)
        assert measured == plan.ranks()[rank].weight_bytes
        assert read >= plan.ranks()[rank].disk_bytes


@pytest.mark.parametrize("made", EYES, indirect=True)
def test_the_language_model_alone(made: Made) -> None:
    name, folder, _, said = made
    whole = planned(folder)
    engine = NativeEngine(whole, towers="skip").start()
    sizes = whole.ranks()[0]
    read, held = (
        sum(size for component, size in by.items() if component not in ("vision", "projector"))
        for by in (sizes.disk_by_component, sizes.by_component)
    )
    assert sizes.disk_bytes - read > 10_000 and sizes.weight_bytes - held > 10_000
    assert engine.loaded is not None and engine.loaded.bytes_read == read
    assert engine.weight_bytes() == engine.predicted_bytes() == held
    assert close(engine.logits(IDS), said)
    with pytest.raises(MlloadError, match="left out: --language-only"):
        with_image(engine, name)


@pytest.mark.parametrize("made", EYES, indirect=True)
def test_towers_come_when_they_are_called(made: Made) -> None:
    name, folder, seen, said = made
    whole = planned(folder)
    engine = NativeEngine(whole, towers="lazy").start()
    assert engine.loaded is not None and engine.loaded.bytes_read < whole.ranks()[0].disk_bytes
    assert close(engine.logits(IDS), said)
    assert any(isinstance(module, AbsentTower) for module in engine.model.modules())
    assert engine.weight_bytes() < whole.ranks()[0].weight_bytes
    assert close(with_image(engine, name), seen)
    assert not any(isinstance(module, AbsentTower) for module in engine.model.modules())
    assert engine.weight_bytes() == engine.predicted_bytes() == whole.ranks()[0].weight_bytes
    assert engine.load_towers() is None
    assert close(with_image(engine, name), seen) and close(engine.logits(IDS), said)
