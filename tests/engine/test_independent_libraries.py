"""Checkpoints that libraries write while the test runs: compressed-tensors, bitsandbytes, gguf, transformers itself."""

# mypy: disable-error-code="no-untyped-call,import-untyped,import-not-found"
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mlload.engine.native import NativeEngine
from tests.engine.independent import compressed, grouped, kept_activations
from tests.engine.ranks import on_ranks
from tests.engine.tiny import config_of, planned, save

pytestmark = [pytest.mark.slow, pytest.mark.transformers]

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


def transformers_logits(folder: Path, dtype: torch.dtype = torch.float32, **arguments: Any) -> Tensor:
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **arguments)
    with torch.inference_mode():
        logits: Tensor = model.eval()(input_ids=IDS).logits.float()
    return logits


def ours(folder: Path, file: str = "") -> NativeEngine:
    engine = NativeEngine(planned(folder / file if file else folder))
    engine.build()
    engine.load()
    assert engine.weight_bytes() == engine.predicted_bytes()
    engine.repack()
    return engine


def apart(have: Tensor, want: Tensor) -> float:
    return float((have.double() - want.double()).norm() / want.double().norm())


# compressed-tensors: how far logits may be from what transformers has of the same files. Activations that are rounded
# to 8 or 4 bits land on another side here and there, and two random layers spread that.
PRESETS = {
    "W4A16": 2e-5, "W8A16": 2e-5, "W4A16_ASYM": 2e-5, "W8A8": 0.05, "W8A8 inputs asym": 0.05,
    "FP8_DYNAMIC": 0.1, "FP8": 0.1, "FP8_BLOCK": 0.1,
    "NVFP4A16": 0.05, "MXFP4A16": 0.05, "MXFP8A16": 0.05, "MXFP8": 0.15,
}  # fmt: skip
# transformers 5.24 fails on these files; the floats that they stand for are its answer instead.
UNREAD = {"W4A16_ASYM"}
# Only in bf16, whose rounding is what the bound above is of.
HALF = {"NVFP4A16", "MXFP4A16", "MXFP8A16", "MXFP8"}
WEIGHT_ONLY = {preset for preset in PRESETS if preset.endswith(("A16", "ASYM"))}


def compress(made: Any, preset: str, folder: Path) -> None:
    """The model through the library's own life cycle: schemes applied, ranges observed, compressed, saved."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    name, _, inputs = preset.partition(" inputs ")
    scheme = preset_name_to_scheme(name, ["Linear"])
    if inputs == "asym":
        scheme.input_activations.symmetric = False
    args: Any = scheme.weights
    if args.group_size == 128:
        args.group_size = 32
    if args.block_structure is not None:
        args.block_structure = [32, 32]
        scheme.input_activations.group_size = 32
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(made, config)
    for name, module in made.named_modules():
        if not isinstance(module, nn.Linear) or name == "lm_head":
            continue
        weight = module.weight.detach()
        n, k = weight.shape
        strategy = str(args.strategy)
        if strategy == "block":
            tiles = weight.reshape(n // 32, 32, k // 32, 32)
            low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
        elif strategy == "tensor":
            low, high = weight.min().reshape(1), weight.max().reshape(1)
        else:
            rows = weight.reshape(n, -1, args.group_size if (args.group_size or -1) > 0 else k)
            low, high = rows.amin(-1), rows.amax(-1)
        extra = {}
        if strategy == "tensor_group":
            module.weight_global_scale.data = (448.0 * 6.0 / weight.abs().max()).reshape(1)
            extra["global_scale"] = module.weight_global_scale.data
        scale, zero = calculate_qparams(low, high, args, **extra)
        module.weight_scale.data = scale.to(module.weight_scale.dtype)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)
        if isinstance(module.__dict__["_parameters"].get("input_scale"), Tensor):
            module.input_scale.data = torch.full((1,), 0.02)
        module.quantization_status = QuantizationStatus.FROZEN
    compressor = ModelCompressor.from_pretrained_model(made)
    compressor.compress_model(made)
    made.save_pretrained(folder)
    compressor.update_config(str(folder))


@pytest.mark.parametrize("preset", PRESETS)
def test_compressed_tensors(preset: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    compress(save(tmp_path / "made", LLAMA), preset, tmp_path / "packed")
    config = config_of(tmp_path / "packed")["quantization_config"]
    engine = ours(tmp_path / "packed")
    floats = load_file(tmp_path / "made" / "model.safetensors")
    seen = 0
    for path, tensors in grouped(load_file(tmp_path / "packed" / "model.safetensors")).items():
        if "weight_scale" not in tensors:
            continue
        weight = compressed(tensors, config)
        floats[f"{path}.weight"] = weight.float()
        x = kept_activations(5, weight.shape[1], config, tensors)
        assert apart(engine.model.get_submodule(path)(x), x.double() @ weight.T) < 3e-6, path
        seen += 1
    assert seen == 14
    have = engine.logits(IDS)
    if preset not in UNREAD:
        dtype = torch.bfloat16 if preset in HALF else torch.float32
        assert apart(have, transformers_logits(tmp_path / "packed", dtype)) < PRESETS[preset]
    if preset in WEIGHT_ONLY:
        save_file(floats, tmp_path / "made" / "model.safetensors", metadata={"format": "pt"})
        assert apart(have, transformers_logits(tmp_path / "made")) < 2e-5


@pytest.mark.parametrize("kind", ["nf4", "nf4 nested", "fp4", "int8"])
def test_bitsandbytes(kind: str, tmp_path: Path) -> None:
    """Quantized and saved by transformers with bitsandbytes, and read by them again."""
    functional = pytest.importorskip("bitsandbytes.functional")
    import transformers

    save(tmp_path / "made", LLAMA)
    if kind == "int8":
        asked = transformers.BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    else:
        asked = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind[:3],
            bnb_4bit_use_double_quant="nested" in kind,
            bnb_4bit_compute_dtype=torch.float32,
        )
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "made", quantization_config=asked, dtype=torch.float32, device_map={"": "cpu"}
    )
    theirs.save_pretrained(tmp_path / "packed")
    engine = ours(tmp_path / "packed")
    floats = load_file(tmp_path / "made" / "model.safetensors")
    for path, module in theirs.named_modules():
        if "Linear" not in type(module).__name__ or path == "lm_head":
            continue
        n, k = module.out_features, module.in_features
        x = torch.randint(-126, 127, (5, k), generator=torch.Generator().manual_seed(1)).float()
        x[:, 0] = 127
        if kind == "int8":
            weight = module.weight.data.double() * module.weight.SCB.double()[:, None] / 127
        else:
            weight = functional.dequantize_4bit(module.weight.data, module.weight.quant_state).double()
        assert weight.shape == (n, k)
        floats[f"{path}.weight"] = weight.float()
        assert apart(engine.model.get_submodule(path)(x), x.double() @ weight.T) < 3e-6
    have = engine.logits(IDS)
    if kind != "int8":
        save_file(floats, tmp_path / "made" / "model.safetensors", metadata={"format": "pt"})
        assert apart(have, transformers_logits(tmp_path / "made")) < 2e-5
    # The library's own 4-bit product rounds to bf16 on this processor, and its int8 one rounds activations.
    assert apart(have, transformers_logits(tmp_path / "packed", device_map={"": "cpu"})) < 0.05


GGUF_KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0"]
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def to_gguf(state: dict[str, Tensor], kind: str, path: Path) -> dict[str, Tensor]:
    """A llama file written and quantized by the gguf package; what its own reader makes of every tensor, under the
    names that transformers uses."""
    import gguf
    from gguf import quants

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(state["model.norm.weight"].numel())
    writer.add_block_count(1)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(96)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{number}" for number in range(96)])
    writer.add_token_types([1] * 96)
    meant: dict[str, Tensor] = {}
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, value in state.items():
        module = name.removesuffix(".weight")
        own = outside.get(module) or "blk.0." + GGUF_NAMES[module.removeprefix("model.layers.0.")]
        array = value.float().numpy()
        heads = {"attn_q": 4, "attn_k": 2}.get(own.rpartition(".")[2])
        if heads:  # llama.cpp pairs neighbouring rows for its rotation
            rows = array.shape[0] // heads
            array = array.reshape(heads, 2, rows // 2, -1).swapaxes(1, 2).reshape(array.shape)
        chosen = gguf.GGMLQuantizationType["F32" if array.ndim == 1 else kind]
        stored = quants.quantize(np.ascontiguousarray(array), chosen)
        writer.add_tensor(own + ".weight", stored, raw_dtype=chosen)
        back = quants.dequantize(stored, chosen).reshape(array.shape)
        if heads:
            back = back.reshape(heads, rows // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)
        meant[name] = torch.from_numpy(np.array(back, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_gguf(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    # Two ranks want whole blocks of 256 in each half.
    hidden = 512 if kind.startswith("TQ") else 256
    fields = {
        **LLAMA, "hidden_size": hidden, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": hidden // 4
    }  # fmt: skip
    made = save(tmp_path / "made", fields)
    meant = to_gguf(made.state_dict(), kind, tmp_path / "model.gguf")
    engine = NativeEngine(planned(tmp_path / "model.gguf")).start()
    for name in ("model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"):
        weight = meant[f"{name}.weight"].double()
        x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(1))
        assert apart(engine.model.get_submodule(name)(x), x.double() @ weight.T) < 3e-6
    made.load_state_dict(meant)
    with torch.inference_mode():
        want = made(input_ids=IDS).logits
    have = engine.logits(IDS)
    assert apart(have, want) < 2e-5
    plan = planned(tmp_path / "model.gguf", 2)
    assert not plan.violations
    for cut in on_ranks(2, lambda rank, group: NativeEngine(plan, rank, group).start().logits(IDS)):  # type: ignore[arg-type]
        assert apart(cut, have) < 2e-5


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q5_1"])
def test_gguf_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    fields = {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64}
    to_gguf(save(tmp_path / "made", fields).state_dict(), kind, tmp_path / "model.gguf")
    want = transformers_logits(tmp_path, gguf_file="model.gguf")
    assert apart(NativeEngine(planned(tmp_path / "model.gguf")).start().logits(IDS), want) < 2e-5


def test_a_config_of_the_library_survives_the_round_trip(tmp_path: Path) -> None:
    """What `compress` wrote is a whole config: the tests above would pass on any that says as much."""
    pytest.importorskip("compressed_tensors")
    compress(save(tmp_path / "made", LLAMA), "W4A16", tmp_path / "packed")
    block = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    assert (block["quant_method"], block["format"]) == ("compressed-tensors", "pack-quantized")
    assert block["quantization_status"] == "compressed"
