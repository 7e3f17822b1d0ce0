"""MLPs made wider by zeros: the same logits, a config that says so, and every group and rank full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.model import read_model
from mlload.quantize.pad import pad_intermediate
from mlload.quantize.recipe import make_recipe
from mlload.quantize.source import SourceTensors
from tests.engine.architectures import small
from tests.engine.tiny import save
from tests.quantize.conftest import Run


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLP of 88: no group of 32 divides it."""
    folder = tmp_path_factory.mktemp("pad") / "narrow"
    save(folder, small(model_type="llama", hidden_size=64, intermediate_size=88, head_dim=16))
    return folder


def logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """By transformers' own class."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(tokens).logits.double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("model_type", ["llama", "phi3", "starcoder2", "mixtral"])
def test_transformers_gives_the_same_logits_of_the_padded_model(model_type: str, tmp_path: Path) -> None:
    folder, wider = tmp_path / "narrow", tmp_path / "wider"
    save(folder, small(model_type=model_type, hidden_size=64, intermediate_size=88, head_dim=16))
    recipe = make_recipe("rtn", group_size=32)
    padding = pad_intermediate(read_model(Checkpoint.open(str(folder))), recipe, (2,))
    assert padding is not None
    assert [(before, after) for _, before, after in padding.fields] == [(88, 128)]
    wider.mkdir()
    (wider / "config.json").write_text(json.dumps(padding.checkpoint.config))
    reader = SourceTensors(padding.checkpoint)
    save_file({n: reader.tensor(n).clone() for n in padding.checkpoint.tensors}, wider / "model.safetensors")
    tokens = torch.randint(3, 80, (2, 12), generator=torch.Generator().manual_seed(1))
    before, after = logits(folder, tokens), logits(wider, tokens)
    assert float((after - before).norm() / before.norm()) < 1e-6


@pytest.mark.parametrize("method", ["rtn", "fp8"])
def test_padded_weights_are_zero_and_the_config_says_so(method: str, narrow: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    words = ["--group-size", "32"] if method == "rtn" else []
    code, result = run(narrow, "-o", out, "--method", method, *words, "--tp", "1,2", "--pad-intermediate", "auto")
    assert code == 0, result
    config = json.loads((out / "config.json").read_text())
    assert config["intermediate_size"] == (128 if method == "rtn" else 88)
    if method == "fp8":
        return  # 44 channels a rank are no trouble where there is a scale a row
    assert "88 -> 128" in result["notes"][0] and "equal" in result["notes"][0]
    after = load_file(out / "model.safetensors")
    words4 = after["model.layers.0.mlp.down_proj.weight_packed"]
    assert words4.shape == (64, 16)
    # Columns 88 and more: codes of zero, which compressed-tensors stores as 8.
    assert set(words4[:, 11:].flatten().tolist()) == {torch.tensor(0x88888888 - 2**32).item()}


def test_the_refusal_names_it_where_it_would_work(narrow: Path, tmp_path: Path, run: Run) -> None:
    code, result = run(narrow, "-o", tmp_path / "out", "--method", "rtn", "--group-size", "32")
    assert code == 2
    assert "88 % 32 = 24" in result["error"] and "--pad-intermediate auto" in result["error"]
    # Here it is the model's width that does not divide, which zeros cannot mend.
    code, result = run(narrow, "-o", tmp_path / "out", "--method", "rtn", "--group-size", "128", "--tp", "1")
    assert code == 2
    assert "64 % 128 = 64" in result["error"] and "--pad-intermediate" not in result["error"]
    code, again = run(
        narrow, "-o", tmp_path / "out", "--method", "rtn", "--group-size", "128", "--pad-intermediate", "auto"
    )
    assert code == 2 and "64 % 128 = 64" in again["error"]
    assert not (tmp_path / "out.partial").exists()


def test_nothing_is_padded_where_all_divides(demo: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    code, result = run(demo, "-o", out, "--method", "rtn", "--pad-intermediate", "auto")
    assert code == 0 and not result["notes"]
    assert json.loads((out / "config.json").read_text())["intermediate_size"] == 384


def test_padded_bytes_are_the_same_however_they_are_read(narrow: Path) -> None:
    padding = pad_intermediate(read_model(Checkpoint.open(str(narrow))), make_recipe("rtn", group_size=32), ())
    assert padding is not None
    reader = SourceTensors(padding.checkpoint)
    original = load_file(narrow / "model.safetensors")
    for name, pad in (("gate_proj", (0, 0, 0, 8)), ("down_proj", (0, 8))):
        path = f"model.layers.1.mlp.{name}.weight"
        whole = torch.nn.functional.pad(original[path], pad)
        assert torch.equal(reader.tensor(path), whole)
        raw = whole.contiguous().view(torch.uint8).numpy().tobytes()
        for start, length in ((0, 1), (5, 300), (len(raw) - 3, 100), (64 * 4 - 1, 2), (1000, 0)):
            assert padding.checkpoint.source.read(f"padded/{path}", start, length) == raw[start : start + length]
