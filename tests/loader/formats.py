"""Checkpoints of every quantization format: bytes packed by the test's own arithmetic, or blocks of random bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.engine.packing import FORMATS, mxfp4
from tests.plan.tiny_models import GPT_OSS, LLAMA, model, tensors_of

WIDE: dict[str, Any] = {
    **LLAMA, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "num_hidden_layers": 2, "torch_dtype": "float32",
}  # fmt: skip
INT8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}
# Beside those of tests/engine/packing: what a config may declare over the same tensors, or over some of them.
MORE: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # name -> (quantization_config, ending of a module -> format of tests/engine/packing that it is packed in)
    "ct mixed groups": (
        {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "ignore": ["lm_head", "re:.*o_proj"],
            "config_groups": {
                "group_0": {
                    "targets": ["re:.*(q|k|v)_proj"],
                    "format": "int-quantized",
                    "weights": {**INT8, "strategy": "channel", "dynamic": False},
                    "input_activations": {**INT8, "strategy": "token", "dynamic": True},
                },
                "group_1": {
                    "targets": ["re:.*mlp.*"],
                    "format": "pack-quantized",
                    "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
                },
            },
        },
        {"q_proj": "ct w8a8", "k_proj": "ct w8a8", "v_proj": "ct w8a8", "gate_proj": "ct w4a16",
         "up_proj": "ct w4a16", "down_proj": "ct w4a16"},
    ),
}  # fmt: skip
NAMES = (*FORMATS, *MORE)


def write_packed(folder: Path, name: str) -> dict[str, bytes]:
    """A small decoder whose projections are packed; the bytes of every tensor."""
    floats = tensors_of(model(folder, WIDE))
    generator = torch.Generator().manual_seed(11)
    state: dict[str, Tensor] = {}
    quantization = FORMATS[name].config if name in FORMATS else MORE[name][0]
    for key, ref in floats.items():
        value = torch.randn(ref.shape, generator=generator)
        ending = key.removesuffix(".weight").rpartition(".")[2]
        form = name if name in FORMATS else MORE[name][1].get(ending, "")
        if ending.endswith("_proj") and form:
            for suffix, tensor in FORMATS[form].pack(value).tensors.items():
                state[f"{key.removesuffix('.weight')}.{suffix}"] = tensor.contiguous()
        else:
            state[key] = value
    (folder / "config.json").write_text(json.dumps({**WIDE, "quantization_config": quantization}))
    return save(folder, state)


def write_gpt_oss(folder: Path) -> dict[str, bytes]:
    """Experts in blocks of 32 of four bits, stacked."""
    config = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 64, "torch_dtype": "float32"}
    floats = tensors_of(model(folder, config))
    generator = torch.Generator().manual_seed(11)
    state: dict[str, Tensor] = {}
    for key, ref in floats.items():
        value = torch.randn(ref.shape, generator=generator)
        if ".experts." not in key or key.endswith("_bias"):
            state[key] = value
            continue
        packed = [mxfp4("weight")(expert.T).tensors for expert in value]
        blocks = torch.stack([one["weight"] for one in packed])
        state[f"{key}_blocks"] = blocks.reshape(*blocks.shape[:2], -1, 16)
        state[f"{key}_scales"] = torch.stack([one["weight_scale"] for one in packed])
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return save(folder, state)


def save(folder: Path, state: dict[str, Tensor]) -> dict[str, bytes]:
    state = {key: value.contiguous() for key, value in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return {key: (value.reshape(1) if value.dim() == 0 else value).view(torch.uint8).numpy().tobytes()
            for key, value in state.items()}  # fmt: skip


BLOCK_TYPES = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
               "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0",
               "MXFP4")  # fmt: skip


def write_gguf(folder: Path, kind: str) -> dict[str, bytes]:
    """A decoder of one layer whose matrices are random blocks of one type; row-parallel halves are whole blocks."""
    hidden, width, words = 512, 1024, 64
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(words)
    matrices = {
        "attn_q": (hidden, hidden), "attn_k": (hidden // 2, hidden), "attn_v": (hidden // 2, hidden),
        "attn_output": (hidden, hidden), "ffn_gate": (width, hidden), "ffn_up": (width, hidden),
        "ffn_down": (hidden, width),
    }  # fmt: skip
    rng = np.random.default_rng(3)
    data: dict[str, bytes] = {}
    quant = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[quant]
    for name, (n, k) in {"token_embd": (words, hidden), "output": (words, hidden),
                         **{f"blk.0.{key}": shape for key, shape in matrices.items()}}.items():  # fmt: skip
        blocks = np.frombuffer(rng.bytes(n * k // values * size), dtype=np.uint8).reshape(n, -1)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=quant)
        data[f"{name}.weight"] = blocks.tobytes()
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        norm = rng.standard_normal(hidden).astype(np.float32)
        writer.add_tensor(f"{name}.weight", norm)
        data[f"{name}.weight"] = norm.tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return data
