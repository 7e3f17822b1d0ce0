"""AWQ and GPTQ on tiny models of many kinds: they load again, and lose no more than plain rounding does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.engine.calibrate_quality import Dequantized, final
from mlload.engine.calibrate_text import Calibration
from mlload.engine.layerwise import Layerwise
from mlload.plan.model import read_model
from mlload.quantize.recipe import make_recipe
from mlload.quantize.run import Options, run
from tests.engine.architectures import small
from tests.engine.tiny import save

# Plain, biased, normed heads, norms around, sliding windows, fused qkv and gate_up, parallel attention, no gate.
TYPES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "glm4", "phi", "starcoder2", "cohere")


def logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = read_model(Checkpoint.open(str(folder)))
    reader = Dequantized(model)
    runner = Layerwise(model, reader.tensor, reader.names)
    return torch.stack(list(runner.logits(tokens, final(runner, tokens))))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_calibrated_methods_lose_no_more_than_rounding(model_type: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    config = small(model_type=model_type, hidden_size=64, intermediate_size=96, head_dim=16)
    made = save(folder, config)
    checkpoint = Checkpoint.open(str(folder))
    tokens = torch.randint(3, 80, (8, 32), generator=torch.Generator().manual_seed(0))
    calibration = Calibration(tokens, tokens, "random tokens", "", 0)
    whole = logits(folder, tokens)
    with torch.inference_mode():
        assert torch.allclose(made(tokens).logits, whole, rtol=1e-3, atol=1e-3), "layer by layer is the model"
    lost = {}
    for method in ("rtn", "awq", "gptq"):
        recipe = make_recipe(method, group_size=32, symmetric=method == "gptq", save_as="compressed-tensors")
        out = tmp_path / method
        result = run(checkpoint, recipe, Options(output=str(out), calibration=calibration))
        assert result.exit_code == 0, result.check
        lost[method] = float((logits(out, tokens) - whole).norm() / whole.norm())
    assert lost["awq"] < 1.1 * lost["rtn"], lost
    assert lost["gptq"] < 1.1 * lost["rtn"], lost
