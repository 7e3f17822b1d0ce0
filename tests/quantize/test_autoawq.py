"""AutoAWQ as a backend, and as an independent judge of our own AWQ.

Its quantizer and its packing are called as they are; what is expected of ours comes from them.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.quant.algorithms import awq as ours
from mlload.quant.formats.registry import get
from mlload.quantize.backends import autoawq, autoawq_cpu
from mlload.quantize.recipe import make_recipe
from tests.quantize.conftest import Run
from tests.quantize.tiny import config, text, write
from tests.real_models import RealModel

N, K, GROUP = 64, 128, 32
SMALL = ("--group-size", 64, "--samples", 8, "--seq-len", 64)


@pytest.fixture(scope="module")
def quantizer() -> Any:
    """Its module awq.quantize.quantizer."""
    pytest.importorskip("awq", reason="AutoAWQ is not installed: pip install 'mlload[autoawq]'")
    with autoawq._quiet():
        return autoawq._package()[0]


def theirs(quantizer: Any) -> Any:
    """An AwqQuantizer that has only what the scale search needs."""
    made = quantizer.AwqQuantizer.__new__(quantizer.AwqQuantizer)
    made.w_bit, made.group_size, made.zero_point, made.duo_scaling = 4, GROUP, True, True
    made.n_parallel_calib_samples, made.max_chunk_memory = None, 2**30
    return made


def skewed() -> tuple[nn.Linear, Tensor]:
    """As in trained models: columns differ in size, and one input channel in 16 is 20 times the others."""
    torch.manual_seed(0)
    linear = nn.Linear(K, N, bias=False).requires_grad_(False)
    linear.weight[:, ::5] *= 0.2
    inputs = torch.randn(512, K)
    inputs[:, ::16] *= 20
    return linear, inputs


def searched(quantizer: Any, linear: nn.Linear, inputs: Tensor) -> Tensor:
    """Its scales [K], by its own search: mean magnitudes as its `_search_best_scale` computes them."""
    weight = linear.weight.detach().clone()
    groups = weight.view(-1, GROUP)
    share = (groups.abs() / (groups.abs().amax(1, keepdim=True) + 1e-6)).view(weight.shape).mean(0)
    found = theirs(quantizer)._compute_best_scale(
        inputs, share, inputs.abs().mean(0), linear, [linear], inputs @ weight.T, {}
    )
    assert isinstance(found, Tensor)
    return found


@pytest.mark.slow
def test_its_fault_on_a_cpu_and_the_mend(quantizer: Any) -> None:
    """What it restores after each trial is not what was there; within the mend it is, to the bit."""
    linear, inputs = skewed()
    before = linear.weight.detach().clone()
    searched(quantizer, linear, inputs)
    assert float((linear.weight - before).norm() / before.norm()) > 0.5
    linear, inputs = skewed()
    with autoawq_cpu.copied_state(linear):
        searched(quantizer, linear, inputs)
    assert torch.equal(linear.weight, before)
    assert linear.state_dict()["weight"].data_ptr() == linear.weight.data_ptr()


@pytest.mark.slow
def test_our_scales_lose_no_more_than_its(quantizer: Any) -> None:
    linear, inputs = skewed()
    weight = linear.weight.detach().clone()
    with autoawq_cpu.copied_state(linear):
        its = searched(quantizer, linear, inputs)
    mine, _, _ = ours.search_scale(
        [weight], inputs.T @ inputs, inputs.abs().mean(0), 4, GROUP, symmetric=False, dtype=torch.float16
    )
    judge = theirs(quantizer)

    def loss(scale: Tensor) -> float:
        """By its own rounding and its own measure."""
        back = judge.pseudo_quantize_tensor(weight * scale)[0] / scale
        return float((inputs @ (back - weight).T).square().mean())

    unscaled = loss(torch.ones(K))
    assert loss(its) < 0.6 * unscaled
    assert loss(mine) <= 1.02 * loss(its)


@pytest.mark.slow
def test_its_packing_is_ours(quantizer: Any) -> None:
    """The bytes of one layer, from codes that both are given."""
    from awq.modules.linear import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (N, K), generator=generator)
    zeros = torch.randint(0, 16, (N, K // GROUP), generator=generator)
    scales = (torch.rand(N, K // GROUP, generator=generator) + 0.5).half()
    linear = nn.Linear(K, N, bias=False)
    wide = scales.repeat_interleave(GROUP, 1).float()
    linear.weight.data = (codes - zeros.repeat_interleave(GROUP, 1)) * wide
    packed = WQLinear_GEMM.from_linear(linear.half(), 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.float().T)
    scheme = make_recipe("awq", group_size=GROUP).scheme
    parts = {"weight": codes.to(torch.uint8), "scale": scales, "zero": zeros.to(torch.uint8)}
    mine = get("awq").pack(scheme, {name: values.numpy() for name, values in parts.items()})
    for suffix in ("qweight", "qzeros", "scales"):
        assert mine[suffix].tobytes() == getattr(packed, suffix).numpy().tobytes(), suffix
    back = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, GROUP)
    stored = {name: getattr(packed, name).numpy() for name in ("qweight", "qzeros", "scales")}
    # Its product is rounded to fp16.
    assert torch.allclose(torch.from_numpy(get("awq").dequantize(scheme, stored, N, K)), back.T.float(), rtol=2**-10)


@pytest.mark.slow
def test_a_checkpoint_behind_the_same_front(quantizer: Any, demo: Path, tmp_path: Path, run: Run) -> None:
    words = ("--method", "awq", "--no-clip", *SMALL)
    code, result = run(demo, "-o", tmp_path / "its", "--backend", "autoawq", *words)
    assert code == 0, result
    assert result["layers"] == result["check"]["quantized"] == 28
    assert max(result["check"]["layer_error"].values()) < 0.3
    assert result["calibration"]["tokens"] == 8 * 64
    code, mine = run(demo, "-o", tmp_path / "ours", *words)
    assert code == 0, mine
    names = {folder: {file.name for file in (tmp_path / folder).iterdir()} for folder in ("its", "ours")}
    assert names["its"] == names["ours"]
    one, other = (load_file(tmp_path / folder / "model.safetensors") for folder in ("its", "ours"))
    assert {name: (t.dtype, t.shape) for name, t in one.items()} == {n: (t.dtype, t.shape) for n, t in other.items()}
    source = {name: t for file in demo.glob("*.safetensors") for name, t in load_file(file).items()}
    assert torch.equal(one["model.embed_tokens.weight"], source["model.embed_tokens.weight"])
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("its", "ours")]
    assert configs[0] == configs[1]


@pytest.fixture(scope="module")
def four_layers(real_model: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first four layers of the real model: enough for the fault to show, which a random model does not."""
    source, folder = real_model("smollm2"), tmp_path_factory.mktemp("four") / "model"
    folder.mkdir()
    kept = {}
    for name, values in load_file(source / "model.safetensors").items():
        if ".layers." not in name or int(name.split(".layers.")[1].split(".")[0]) < 4:
            kept[name] = values
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": 4}
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    for file in source.glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


REAL = ("--method", "awq", "--backend", "autoawq", "--no-clip", "--group-size", 64, "--samples", 8, "--seq-len", 128)


@pytest.mark.slow
def test_the_end_check_refuses_what_its_fault_ruins(
    quantizer: Any, four_layers: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As AutoAWQ is shipped: the process ends well, the files are whole, and the model is ruined."""
    code, result = run(four_layers, "-o", tmp_path / "mended", *REAL)
    assert code == 0, result
    assert max(result["check"]["layer_error"].values()) < 0.35
    monkeypatch.setattr(autoawq_cpu, "copied_state", lambda module: contextlib.nullcontext())
    code, result = run(four_layers, "-o", tmp_path / "shipped", *REAL)
    assert code == 1
    assert any("destroyed" in problem for problem in result["check"]["problems"])


@pytest.mark.slow
def test_the_outputs_alone_show_it(
    quantizer: Any, four_layers: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word of how the weights were scaled."""
    from mlload.engine.layer_errors import layer_errors
    from mlload.plan.model import read_model

    monkeypatch.setattr(autoawq_cpu, "copied_state", lambda module: contextlib.nullcontext())
    run(four_layers, "-o", tmp_path / "shipped", *REAL, "--no-check")
    tokens = torch.randint(3, 49000, (2, 64), generator=torch.Generator().manual_seed(0))
    errors = layer_errors(read_model(Checkpoint.open(str(four_layers))), str(tmp_path / "shipped"), tokens)
    assert max(errors.values()) > 0.5


# Kinds of tests.engine.architectures that it quantizes under the transformers that is installed.
WORKS = (
    "llama", "llama tied", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "cohere", "starcoder2", "gpt_neox",
    "gptj", "falcon",
)  # fmt: skip
# Those that it names and fails on: experts are stacked in one tensor today, or its class asks for what is gone.
FAILS = ("mixtral", "qwen3_moe", "deepseek_v3", "opt", "bloom", "gpt_bigcode")
TINY = ("--method", "awq", "--backend", "autoawq", "--no-clip", "--group-size", 32, "--samples", 16, "--seq-len", 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WORKS, *FAILS])
def test_kinds_of_models(quantizer: Any, name: str, tmp_path: Path, run: Run) -> None:
    folder, data = tmp_path / "model", text(tmp_path / "text.txt")
    write(folder, config(name))
    before = {path.name for path in tmp_path.iterdir()}
    code, result = run(folder, "-o", tmp_path / "out", *TINY, "--calib", data)
    if name in WORKS:
        assert code == 0, result
        assert result["check"]["planned"] == result["check"]["quantized"] > 0
        assert max(result["check"]["layer_error"].values()) < 0.4
    else:
        assert code == 3
        assert "AutoAWQ" in result["error"] and "--backend mlload" in result["error"]
        assert {path.name for path in tmp_path.iterdir()} == before


def test_without_the_package_it_is_a_sentence(
    demo: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "awq" or name.startswith("awq.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "awq", None)
    code, result = run(demo, "-o", tmp_path / "out", "--method", "awq", "--backend", "autoawq", *SMALL)
    assert code == 3
    assert "mlload[autoawq]" in result["error"] and "Traceback" not in result["error"]
    assert list(tmp_path.iterdir()) == []


def test_an_architecture_that_it_does_not_know(
    demo: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoawq, "_package", lambda: (_Stub(), {"opt": None, "mpt": None}))
    code, result = run(demo, "-o", tmp_path / "out", "--method", "awq", "--backend", "autoawq", *SMALL)
    assert code == 3
    assert "'llama'" in result["error"] and "mpt, opt" in result["error"] and "--backend mlload" in result["error"]
    assert list(tmp_path.iterdir()) == []


class _Stub:
    """In the place of its module: only its bar is touched before a model is refused."""

    tqdm = None


@pytest.mark.parametrize(
    "words", [("gptq", {}), ("rtn", {}), ("awq", {"save_as": "compressed-tensors"}), ("awq", {"group_size": -1})]
)
def test_it_makes_one_thing_only(words: tuple[str, dict[str, Any]]) -> None:
    with pytest.raises(MlloadError, match="--backend autoawq"):
        make_recipe(words[0], backend="autoawq", **words[1])
