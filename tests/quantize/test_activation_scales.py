"""Scales of what layers see and cache, against transformers' own forward pass; SmoothQuant on planted outliers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.engine.calibrate_text import read_calibration
from tests.quantize.conftest import Run
from tests.quantize.test_formats import config_of, decompressed, weights

SAMPLES = ("--samples", 4, "--seq-len", 32)
# Schemes with static scales; the others are refused options that would change nothing.
LOOK_AT_DATA = ("FP8_STATIC", "NVFP4")
SETS = (("self_attn.q", "self_attn.k", "self_attn.v"), ("mlp.gate", "mlp.up"), ("self_attn.o",), ("mlp.down",))


def peaks_by_transformers(folder: Path) -> tuple[dict[str, float], dict[tuple[int, str], float]]:
    """Greatest |x| that each linear sees, and greatest |k| and |v| in the cache of each layer, on the samples that
    a run with SAMPLES draws."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = read_calibration(Checkpoint.open(str(folder)), "builtin", 4, 32, 0).samples
    seen: dict[str, float] = {}
    cached: dict[tuple[int, str], float] = {}

    def look(name: str) -> Any:
        def hook(_: Any, args: Any) -> None:
            seen[name] = max(seen.get(name, 0.0), float(args[0].abs().max()))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(look(name))
    for sample in tokens:
        cache: Any = DynamicCache()
        with torch.inference_mode():
            model(input_ids=sample[None], past_key_values=cache, use_cache=True)
        for layer, held in enumerate(cache.layers):
            for which, values in (("k", held.keys), ("v", held.values)):
                cached[layer, which] = max(cached.get((layer, which), 0.0), float(values.abs().max()))
    return seen, cached


@pytest.fixture(scope="module")
def peaks(demo: Path) -> tuple[dict[str, float], dict[tuple[int, str], float]]:
    return peaks_by_transformers(demo)


@pytest.mark.parametrize("save_as", ["compressed-tensors", "fp8"])
def test_static_fp8_scales_are_the_largest_activation_over_448(
    save_as: str, demo: Path, peaks: Any, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    words = ("--method", "fp8", "--scheme", "FP8_STATIC", "--save-as", save_as)
    code, result = run(demo, "-o", out, *words, *SAMPLES)
    assert code == 0, result
    after, config = weights(out), config_of(out)["quantization_config"]
    if save_as == "fp8":
        assert config["activation_scheme"] == "static"
    else:
        from compressed_tensors.quantization import QuantizationScheme  # type: ignore[import-untyped]

        inputs = QuantizationScheme(**config["config_groups"]["group_0"]).input_activations
        assert (inputs.strategy, inputs.dynamic, inputs.num_bits, inputs.type) == ("tensor", False, 8, "float")
    for layer in range(4):
        for parts in SETS:
            found = [after[f"model.layers.{layer}.{part}_proj.input_scale"] for part in parts]
            expected = peaks[0][f"model.layers.{layer}.{parts[0]}_proj"] / 448
            assert all(scale.dtype == torch.float32 and scale.numel() == 1 for scale in found)
            for scale in found:
                assert abs(float(scale) - expected) < 1e-4 * expected


def test_nvfp4_has_a_global_scale_for_activations_shared_in_each_fused_set(
    demo: Path, peaks: Any, tmp_path: Path, run: Run
) -> None:
    out, plain = tmp_path / "out", tmp_path / "plain"
    code, result = run(demo, "-o", out, "--method", "nvfp4", "--scheme", "NVFP4", *SAMPLES)
    assert code == 0, result
    assert run(demo, "-o", plain, "--method", "nvfp4")[0] == 0
    after, without = weights(out), weights(plain)
    assert not any(name.endswith("input_global_scale") for name in without)
    for layer in range(4):
        for parts in SETS:
            found = {float(after[f"model.layers.{layer}.{part}_proj.input_global_scale"]) for part in parts}
            assert len(found) == 1
            expected = 448 * 6 / peaks[0][f"model.layers.{layer}.{parts[0]}_proj"]
            assert abs(found.pop() - expected) < 1e-4 * expected
    # Weights are those that the same method makes without data.
    for name, values in without.items():
        assert torch.equal(values.view(torch.uint8), after[name].view(torch.uint8)), name
    module = "model.layers.1.mlp.down_proj"
    assert torch.equal(decompressed(out, module), decompressed(plain, module))


@pytest.mark.parametrize(
    ("method", "scheme", "preset"),
    [
        ("nvfp4", "NVFP4", "NVFP4"),
        ("nvfp4", "NVFP4A16", "NVFP4A16"),
        ("mxfp4", "MXFP4", "MXFP4"),
        ("mxfp4", "MXFP4A16", "MXFP4A16"),
        ("fp8", "FP8_STATIC", "FP8"),
        ("fp8", "FP8", "FP8_DYNAMIC"),
        ("int8", "W8A8", "W8A8"),
    ],
)
def test_schemes_are_what_the_compressed_tensors_package_calls_so(
    method: str, scheme: str, preset: str, demo: Path, tmp_path: Path, run: Run
) -> None:
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    words = SAMPLES if scheme in LOOK_AT_DATA else ()
    assert run(demo, "-o", tmp_path / "out", "--method", method, "--scheme", scheme, *words)[0] == 0
    mine = QuantizationScheme(**config_of(tmp_path / "out")["quantization_config"]["config_groups"]["group_0"])
    theirs = preset_name_to_scheme(preset, ["Linear"])
    for one, other in ((mine.weights, theirs.weights), (mine.input_activations, theirs.input_activations)):
        assert (one is None) == (other is None)
        for key in ("num_bits", "type", "symmetric", "strategy", "dynamic", "scale_dtype"):
            assert one is None or getattr(one, key) == getattr(other, key), key
        # A channel is a group of -1 to one of them and none to the other.
        assert one is None or (one.group_size or -1) == (other.group_size or -1)


@pytest.mark.parametrize("words", [("fp8",), ("gptq", "--save-as", "compressed-tensors", "--group-size", "64")])
def test_kv_scales_are_the_largest_keys_and_values_over_448(
    words: tuple[str, ...], demo: Path, peaks: Any, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    code, result = run(demo, "-o", out, "--kv-cache-scheme", "fp8", "--no-sequential", "--method", *words, *SAMPLES)
    assert code == 0, result
    declared = config_of(out)["quantization_config"]["kv_cache_scheme"]
    assert (declared["num_bits"], declared["type"], declared["strategy"]) == (8, "float", "tensor")
    after = weights(out)
    index = json.loads((out / "model.safetensors.index.json").read_text()) if len(list(out.glob("*index*"))) else None
    for layer in range(4):
        for which in "kv":
            name = f"model.layers.{layer}.self_attn.{which}_scale"
            expected = peaks[1][layer, which] / 448
            assert after[name].shape == (1,)
            assert abs(float(after[name]) - expected) < 1e-4 * expected
            assert index is None or name in index["weight_map"]


def with_outliers(demo: Path, folder: Path) -> Path:
    """The demo with a few channels of each norm 60 times as large, and the columns that read them as much smaller:
    the same function, with activations that one scale a token cannot hold."""
    folder.mkdir()
    for file in demo.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    loud = torch.tensor([3, 40, 77])
    for file in demo.glob("*.safetensors"):
        tensors = load_file(file)
        for name, values in tensors.items():
            if "layernorm" in name:
                values[loud] *= 64
            elif name.endswith(
                ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
            ):
                values[:, loud] /= 64
        save_file(tensors, folder / file.name, metadata={"format": "pt"})
    return folder


def test_smoothquant_moves_outliers_into_the_weights(demo: Path, tmp_path: Path, run: Run) -> None:
    source = with_outliers(demo, tmp_path / "loud")
    quality = {}
    for name, words in {"plain": (), "smooth": ("--smooth", "0.5")}.items():
        out = tmp_path / name
        code, result = run(source, "-o", out, "--method", "int8", "--eval-samples", 4, *words, *SAMPLES)
        assert code == 0, result
        quality[name] = result["quality"]
        assert quality[name]["activations"] == "rounded in 28 linears"
    assert quality["smooth"]["kl"] < 0.25 * quality["plain"]["kl"]
    before, after = weights(source), weights(tmp_path / "smooth")
    norm = "model.layers.1.input_layernorm.weight"
    assert float(after[norm].abs().max()) < 0.5 * float(before[norm].abs().max())
    # What is not next to a fold stays.
    assert torch.equal(before["model.norm.weight"], after["model.norm.weight"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "fp8", "--smooth", "0.5"], "--smooth belongs to --method int8"),
        (["--method", "int8", "--smooth", "2"], "--smooth takes 0 to 1"),
        (["--method", "gptq", "--kv-cache-scheme", "fp8"], "compressed-tensors only"),
        (["--method", "rtn", "--sequential"], "no calibration data"),
        (["--method", "nvfp4", "--scheme", "NVFP4", "--calib", "/no/such/file.txt"], "cannot be read"),
    ],
)
def test_what_contradicts_itself_is_refused(words: list[str], said: str, demo: Path, tmp_path: Path, run: Run) -> None:
    code, result = run(demo, "-o", tmp_path / "out", *words)
    assert code != 0
    assert said in result["error"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize(
    ("method", "scheme"), [("fp8", "FP8_STATIC"), ("nvfp4", "NVFP4"), ("mxfp4", "MXFP4"), ("int8", "W8A8")]
)
def test_transformers_and_compressed_tensors_lose_as_much_as_we_say(
    method: str, scheme: str, demo: Path, tmp_path: Path, run: Run
) -> None:
    """They run the folder with activations rounded by their own code; the two differ by roundings of bfloat16 alone."""
    from transformers import AutoModelForCausalLM

    from mlload.engine.calibrate_activations import round_inputs
    from mlload.engine.calibrate_quality import Dequantized, final
    from mlload.engine.layerwise import Layerwise
    from mlload.plan.model import read_model

    out = tmp_path / "out"
    words = SAMPLES if scheme in LOOK_AT_DATA else ()
    assert run(demo, "-o", out, "--method", method, "--scheme", scheme, *words)[0] == 0
    tokens = torch.randint(3, 500, (2, 32), generator=torch.Generator().manual_seed(0))

    def said(folder: Path, dtype: torch.dtype) -> torch.Tensor:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        with torch.inference_mode():
            logits: torch.Tensor = model.eval()(tokens).logits.float()
        return logits

    model = read_model(Checkpoint.open(str(out)))
    reader = Dequantized(model)
    runner = Layerwise(model, reader.tensor, reader.names)
    assert round_inputs(runner, reader.quantized, reader.source.tensor) == 28
    ours = torch.stack(list(runner.logits(tokens, final(runner, tokens))))
    whole, theirs = said(demo, torch.float32), said(out, torch.bfloat16)
    lost = [float((found - whole).norm() / whole.norm()) for found in (ours, theirs)]
    assert abs(lost[0] / lost[1] - 1) < 0.2, lost
