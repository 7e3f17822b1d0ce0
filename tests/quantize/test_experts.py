"""Experts: each measured on the tokens that chose it, one in memory at a time, under the checkpoint's own names."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.engine import calibrate, calibrate_experts, calibrate_inputs
from mlload.engine.layerwise_experts import Expert, RoutedExperts
from mlload.quantize.recipe import make_recipe
from mlload.quantize.report import Result
from mlload.quantize.report_lines import measured
from mlload.quantize.run import Options, run
from tests.quantize.conftest import Run
from tests.quantize.tiny import GROUP, TOKENS, calibration, config, dequantized, text, write

pytestmark = pytest.mark.transformers
METHODS = pytest.mark.parametrize("method", ["awq", "gptq"])


def made(folder: Path, name: str, method: str, *, ignore: tuple[str, ...] = (), **fields: Any) -> tuple[Any, Result]:
    model = write(folder / "model", config(name, **fields))
    return model, quantized(folder, method, ignore)


def quantized(folder: Path, method: str, ignore: tuple[str, ...] = (), out: str = "out", **options: Any) -> Result:
    recipe = make_recipe(
        method, group_size=GROUP, symmetric=method == "gptq", save_as="compressed-tensors", ignore=ignore
    )
    checkpoint = Checkpoint.open(str(folder / "model"))
    return run(checkpoint, recipe, Options(output=str(folder / out), calibration=calibration(), **options))


def routed(model: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """(inputs, chosen experts) of each layer with experts, over TOKENS, as transformers' own class calls them."""
    seen: dict[Any, list[tuple[Tensor, Tensor]]] = {}

    def look(module: Any, args: tuple[Tensor, ...]) -> None:
        seen.setdefault(module, []).append((args[0].reshape(-1, args[0].shape[-1]), args[1]))

    hooks = [m.register_forward_pre_hook(look) for path, m in model.named_modules() if path.endswith(".experts")]
    with torch.inference_mode():
        for sample in TOKENS:
            model(sample[None])
    for hook in hooks:
        hook.remove()
    for calls in seen.values():
        yield torch.cat([x for x, _ in calls]), torch.cat([index for _, index in calls])


def counts(model: Any) -> list[list[int]]:
    return [[int((index == expert).sum()) for expert in range(4)] for _, index in routed(model)]


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_counts_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    """AWQ goes on through the original layers, so that its tokens choose as transformers says."""
    model, result = made(tmp_path, name, "awq")
    assert result.exit_code == 0
    assert [layer["tokens"] for layer in result.experts.values()] == counts(model)
    assert all(layer["borrowed"] == [] for layer in result.experts.values())


@METHODS
def test_error_of_outputs_is_that_under_the_experts_own_tokens(method: str, tmp_path: Path) -> None:
    """tr((W - W') H (W - W')^T) / tr(W H W^T), H of the tokens that transformers routes to the expert. Attention stays
    as it is, so that the first layer's experts see just that."""
    model, result = made(tmp_path, "mixtral", method, ignore=("*self_attn*",))
    assert result.exit_code == 0
    x, index = next(routed(model))
    before = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    back = dequantized(tmp_path / "out")
    norm = "model.layers.0.post_attention_layernorm.weight"
    scale = (before[norm] / after[norm]).double()
    assert bool((scale != 1).any()) == (method == "awq")
    for expert in range(4):
        mine = x[(index == expert).any(-1)].double()
        # w3's rows are divided by the scale of w2's input, under AWQ.
        for which in ("w1", "w3") if method == "gptq" else ("w1",):
            path = f"model.layers.0.block_sparse_moe.experts.{expert}.{which}"
            weight = before[f"{path}.weight"].double()
            lost = back[f"{path}.weight"].double() / scale - weight
            true = float((mine @ lost.T).norm() / (mine @ weight.T).norm())
            assert result.outputs[path] == pytest.approx(true, rel=1e-3)


@METHODS
def test_experts_left_out_are_byte_for_byte_what_they_were(method: str, tmp_path: Path) -> None:
    """An engine has one scheme for all experts of a layer: one that is left out takes the others with it."""
    _, result = made(tmp_path, "qwen3_moe", method, ignore=("*layers.1.*.experts.2.*",))
    assert result.exit_code == 0
    before = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    stay = [name for name in before if ".1.mlp." in name or ".1.post_attention" in name]
    assert len(stay) == 4 * 3 + 2
    for name in stay:
        assert torch.equal(after[name], before[name]), name
    assert "model.layers.2.mlp.experts.1.up_proj.weight_packed" in after
    fused = [paths for reason, paths in result.kept.items() if reason.startswith("fused with")]
    assert [len(paths) for paths in fused] == [9]


def test_awq_folds_into_the_norm_and_the_router_with_it(tmp_path: Path) -> None:
    """norm / s and router * s: their product is as it was, neither is, and the choice stays."""
    made(tmp_path, "qwen2_moe", "awq")
    before = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    for layer in range(3):
        norm = f"model.layers.{layer}.post_attention_layernorm.weight"
        assert not torch.allclose(before[norm], after[norm], rtol=1e-2)
        for gate in ("gate", "shared_expert_gate"):
            name = f"model.layers.{layer}.mlp.{gate}.weight"
            assert torch.allclose(before[name] * before[norm], after[name] * after[norm], rtol=1e-5)


def starve(folder: Path) -> None:
    """Expert 3 is never chosen."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        if name.endswith("e_score_correction_bias"):
            tensor[3] = -1e4
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


@METHODS
def test_an_expert_that_nobody_chose_is_quantized_all_the_same_and_told(method: str, tmp_path: Path, run: Run) -> None:
    write(tmp_path / "model", config("deepseek_v3"))
    starve(tmp_path / "model")
    result = quantized(tmp_path, method)
    assert result.exit_code == 0 and len(result.experts) == 2
    for path, layer in result.experts.items():
        assert path.startswith("model.layers.") and path.endswith(".mlp.experts")
        assert layer["tokens"][3] == 0 and min(layer["tokens"][:3]) > 0
        assert layer["borrowed"] == [3]
    for name, tensor in dequantized(tmp_path / "out").items():
        assert bool(torch.isfinite(tensor).all()), name
    assert result.check is not None
    # Uniform rounding to 15 steps of a group's range loses about a tenth.
    assert all(error < 0.2 for path, error in result.check.errors.items() if ".experts.3." in path)
    assert all(0 <= error < 0.3 for path, error in result.outputs.items() if ".experts.3." in path)
    line = next(line for line in measured(result) if "experts" in line)
    assert "0 to" in line and "warning: 2 saw too few" in line and "mlp.experts.3" in line


def test_no_two_experts_are_in_memory_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = RoutedExperts.expert
    alive: list[weakref.ref[Any]] = []
    most = 0

    def counted(self: RoutedExperts, number: int) -> Expert:
        nonlocal most
        found = read(self, number)
        alive.append(weakref.ref(found.down))
        most = max(most, sum(one() is not None for one in alive))
        return found

    monkeypatch.setattr(RoutedExperts, "expert", counted)
    made(tmp_path, "mixtral", "gptq")
    # 3 layers of 4 experts; the next one is read before the name of the last one is taken from it.
    assert len(alive) >= 12 and most <= 2


@METHODS
def test_a_killed_run_goes_on_to_the_same_bytes(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "deepseek_v2", method)
    each = calibrate_experts._each_expert

    def killed(layer: Any, *rest: Any) -> None:
        each(layer, *rest)
        if layer.number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(calibrate_experts, "_each_expert", killed)
    with pytest.raises(MlloadError, match="interrupted"):
        quantized(tmp_path, method, out="again")
    monkeypatch.undo()
    result = quantized(tmp_path, method, out="again", resume=True)
    assert result.resumed and result.exit_code == 0 and len(result.experts) == 2
    files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "again").iterdir()} == files


def test_a_linear_that_no_token_reached_is_rounded_by_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in classes that keep their experts apart: what no forward pass calls is in no input."""
    look = calibrate_inputs.measured

    def blind(*args: Any, **kwargs: Any) -> Any:
        inputs = look(*args, **kwargs)
        for seen in inputs:
            seen.modules = [module for module in seen.modules if module.weight.shape != (64, 96)]
        return [seen for seen in inputs if seen.modules]

    monkeypatch.setattr(calibrate, "measured", blind)
    _, result = made(tmp_path, "llama", "gptq")
    assert result.exit_code == 0 and result.check is not None
    assert all(0 < result.check.errors[f"model.layers.{layer}.mlp.down_proj"] < 0.2 for layer in range(3))
    assert sum("no token reached it" in note for note in result.notes) == 3


def test_the_command_reports_tokens_of_experts(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "model", config("qwen3_moe"))
    data = text(tmp_path / "text.txt")
    out = tmp_path / "out"
    options = ("--method", "gptq", "--group-size", GROUP, "--calib", data, "--samples", 8, "--seq-len", 32)
    code, result = run(tmp_path / "model", "-o", out, *options)
    assert code == 0, result
    for layer in result["experts"].values():
        assert sum(layer["tokens"]) == 8 * 32 * 2, "every token chooses two"
    assert json.loads((tmp_path / "out.quantize.json").read_text())["experts"] == result["experts"]
    page = (tmp_path / "out.quantize.md").read_text()
    assert "| model.layers.2.mlp.experts |" in page
