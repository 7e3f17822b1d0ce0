"""Whole models in every format against the same model in the floats that the bytes stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.engine.memory import resident_bytes
from mlload.engine.native import NativeEngine
from mlload.engine.run import kernels_json
from tests.engine.packing import FORMATS, mxfp4
from tests.engine.ranks import on_ranks
from tests.engine.tiny import config_of, planned, save

pytestmark = pytest.mark.slow

LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
IDS = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("float")
    save(folder, LLAMA)
    return folder


def write(source: Path, name: str, packed: Path, floats: Path) -> None:
    """The model in a format, and the same model in the values that the packed bytes are."""
    form = FORMATS[name]
    tensors = load_file(source / "model.safetensors")
    here: dict[str, Tensor] = {}
    there: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if key.endswith("_proj.weight") or ".experts." in key:
            done = form.pack(value)
            path = key.removesuffix(".weight")
            here |= {f"{path}.{suffix}": tensor.contiguous() for suffix, tensor in done.tensors.items()}
            there[key] = done.weight.float()
        else:
            here[key] = there[key] = value
    config = config_of(source)
    for folder, state in ((packed, here), (floats, there)):
        folder.mkdir()
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        config = {**config}
    (packed / "config.json").write_text(json.dumps({**config_of(source), "quantization_config": form.config}))


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantized_floats(name: str, float_folder: Path, tmp_path: Path) -> None:
    write(float_folder, name, tmp_path / "packed", tmp_path / "floats")
    want = NativeEngine(planned(tmp_path / "floats")).start().logits(IDS)
    engine = NativeEngine(planned(tmp_path / "packed"))
    engine.build()
    engine.load()
    assert engine.weight_bytes() == engine.predicted_bytes()
    engine.repack()
    have = engine.logits(IDS)
    error = float((have - want).norm() / want.norm())
    # Rounded activations (1 part in 16 for fp8) add up over two layers of random weights.
    assert error < (2e-5 if FORMATS[name].exact else 0.25), error
    rows = {row["layer"]: row for row in kernels_json(engine)}
    assert all(row["packed"] for row in rows.values())
    floats = sum(param.numel() * 4 for param in NativeEngine(planned(tmp_path / "floats")).start().model.parameters())
    assert resident_bytes(engine.model) < 0.65 * floats, "weights were unpacked"


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"bnb nf4"}))
def test_two_ranks_say_what_one_says(name: str, float_folder: Path, tmp_path: Path) -> None:
    write(float_folder, name, tmp_path / "packed", tmp_path / "floats")
    one = NativeEngine(planned(tmp_path / "packed")).start().logits(IDS)
    plan = planned(tmp_path / "packed", 2)
    if plan.violations:
        pytest.skip(plan.violations[0].message)
    for have in on_ranks(2, lambda rank, group: NativeEngine(plan, rank, group).start().logits(IDS)):  # type: ignore[arg-type]
        error = float((have - one).norm() / one.norm())
        assert error < (2e-5 if FORMATS[name].exact else 0.25), error


@pytest.mark.parametrize("name", FORMATS)
def test_layers_multiply_as_float64_does(name: str, float_folder: Path, tmp_path: Path) -> None:
    """Activations that their quantization keeps exactly: every group of 16 holds the largest value of the dtype."""
    write(float_folder, name, tmp_path / "packed", tmp_path / "floats")
    engine = NativeEngine(planned(tmp_path / "packed")).start()
    floats = load_file(tmp_path / "floats" / "model.safetensors")
    stored = load_file(tmp_path / "packed" / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    whole = "w8a8" in name or "int8" in name
    for path, k in (("model.layers.1.self_attn.k_proj", 128), ("model.layers.0.mlp.down_proj", 256)):
        x = torch.randint(-120, 121, (5, k), generator=generator).float()
        x = x if whole else x.to(torch.float8_e4m3fn).float()
        x[:, ::16] = 127 if whole else 448
        if name.endswith(" asym") and whole and f"{path}.input_scale" not in stored:
            x = x.clamp(-55, 127)
            x[:, ::16], x[:, 8::16] = 200, -55  # 256 steps of 1, the zero point is -73
        x = x * stored.get(f"{path}.input_scale", 1.0)
        have = engine.model.get_submodule(path)(x).double()
        want = x.double() @ floats[f"{path}.weight"].double().T
        assert float((have - want).norm() / want.norm()) < 2e-6


@pytest.mark.parametrize(
    "name",
    ["awq", "gptq 4", "ct w4a16", "ct fp8 channel", "fp8 block", "bnb int8", "quark int8 channel", "quark int8 tensor"],
)
def test_experts_stay_packed(name: str, tmp_path: Path) -> None:
    save(tmp_path / "made", {**LLAMA, "model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2})
    write(tmp_path / "made", name, tmp_path / "packed", tmp_path / "floats")
    want = NativeEngine(planned(tmp_path / "floats")).start().logits(IDS)
    engine = NativeEngine(planned(tmp_path / "packed")).start()
    have = engine.logits(IDS)
    error = float((have - want).norm() / want.norm())
    assert error < (2e-5 if FORMATS[name].exact else 0.25), error
    assert "experts" in {row["layer"] for row in kernels_json(engine)}
    floats = sum(tensor.nbytes for tensor in load_file(tmp_path / "floats" / "model.safetensors").values())
    assert resident_bytes(engine.model) < 0.6 * floats
    for plan in (planned(tmp_path / "packed", 2), planned(tmp_path / "packed", 2, ep=True)):
        for cut in on_ranks(2, lambda rank, group, plan=plan: NativeEngine(plan, rank, group).start().logits(IDS)):  # type: ignore[misc]
            assert float((cut - have).norm() / have.norm()) < (2e-5 if FORMATS[name].exact else 0.25)


@pytest.mark.transformers
@pytest.mark.parametrize(("name", "most"), [("ct w4a16", 2e-5), ("ct w8a8", 0.05), ("ct fp8 channel", 0.1)])
def test_transformers_reads_the_same_files_alike(name: str, most: float, float_folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("compressed_tensors")
    write(float_folder, name, tmp_path / "packed", tmp_path / "floats")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed", dtype=torch.float32).eval()
    with torch.inference_mode():
        want = theirs(input_ids=IDS).logits
    have = NativeEngine(planned(tmp_path / "packed")).start().logits(IDS)
    assert float((have - want).norm() / want.norm()) < most


GPT_OSS = {
    "model_type": "gpt_oss",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}


def test_mxfp4_experts_are_the_floats_that_they_stand_for(tmp_path: Path) -> None:
    """gpt-oss's stacks: gate and up row by row in turn, blocks of 32 in 16 bytes."""
    save(tmp_path / "made", GPT_OSS)
    here: dict[str, Tensor] = {}
    there: dict[str, Tensor] = {}
    for key, value in load_file(tmp_path / "made" / "model.safetensors").items():
        if ".experts." not in key or key.endswith("_bias"):
            here[key] = there[key] = value
            continue
        packed = [mxfp4("weight")(expert.T) for expert in value]
        blocks = torch.stack([one.tensors["weight"] for one in packed])
        here[f"{key}_blocks"] = blocks.reshape(*blocks.shape[:2], -1, 16)
        here[f"{key}_scales"] = torch.stack([one.tensors["weight_scale"] for one in packed])
        there[key] = torch.stack([one.weight.T.float() for one in packed]).contiguous()
    config = config_of(tmp_path / "made")
    quantized = {**config, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    for folder, state, written in (("packed", here, quantized), ("floats", there, config)):
        (tmp_path / folder).mkdir()
        save_file(state, tmp_path / folder / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / folder / "config.json").write_text(json.dumps(written))
    want = NativeEngine(planned(tmp_path / "floats")).start().logits(IDS)
    engine = NativeEngine(planned(tmp_path / "packed")).start()
    assert float((engine.logits(IDS) - want).abs().max()) < 2e-5 * float(want.abs().max())
    plan = planned(tmp_path / "packed", 2)
    for have in on_ranks(2, lambda rank, group: NativeEngine(plan, rank, group).start().logits(IDS)):  # type: ignore[arg-type]
        assert float((have - want).abs().max()) < 2e-5 * float(want.abs().max())


def test_a_format_that_does_not_match_its_files_fails_while_loading(float_folder: Path, tmp_path: Path) -> None:
    write(float_folder, "awq", tmp_path / "packed", tmp_path / "floats")
    config = config_of(tmp_path / "packed")
    config["quantization_config"]["group_size"] = 64
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    with pytest.raises(MlloadError) as caught:
        NativeEngine(planned(tmp_path / "packed")).start()
    assert "group" in caught.value.message
