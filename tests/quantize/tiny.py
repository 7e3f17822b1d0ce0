"""Tiny models of many kinds with a tokenizer of 80 words, and what transformers' own class says with given weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.engine.calibrate_quality import Dequantized
from mlload.engine.calibrate_text import Calibration
from mlload.plan.model import read_model
from tests.engine.architectures import CONFIGS
from tests.engine.tiny import save

VOCAB = 80
GROUP = 32
TOKENS = torch.randint(3, VOCAB, (8, 32), generator=torch.Generator().manual_seed(0))
# Every width in whole groups; sizes of a model differ, so that swapped dims show.
WIDTHS = {
    "hidden_size": 64, "n_embd": 64, "word_embed_proj_dim": 64, "intermediate_size": 96, "ffn_dim": 96,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 160,
}  # fmt: skip
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 96, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 24}


def config(name: str, **fields: Any) -> dict[str, Any]:
    """One of tests.engine.architectures, wide enough for groups of 32."""
    found = dict(CONFIGS[name])
    found |= {key: width for key, width in WIDTHS.items() if key in found}
    if "kv_lora_rank" in found:
        found |= LATENT
    elif "head_dim" in found:
        found["head_dim"] = 16
    return {**found, **fields}


def write(folder: Path, settings: dict[str, Any]) -> Any:
    """The model as transformers saves it, with a tokenizer; gives the model."""
    made = save(folder, settings)
    words: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(VOCAB)}, "unk_token": "w0"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(words))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2", "bos_token": "w1"})
    )
    return made


def calibration() -> Calibration:
    return Calibration(TOKENS, TOKENS, "random words", "", 0)


def text(path: Path) -> Path:
    """The same kind of data as a file."""
    words = torch.randint(3, VOCAB, (4000,), generator=torch.Generator().manual_seed(3)).tolist()
    path.write_text("\n".join(" ".join(f"w{i}" for i in words[at : at + 20]) for at in range(0, len(words), 20)))
    return path


def dequantized(folder: Path) -> dict[str, Tensor]:
    """A quantized folder's tensors under the names of the unquantized one, by the formats' own readers."""
    reader = Dequantized(read_model(Checkpoint.open(str(folder))))
    return {name: reader.tensor(name).clone().float() for name in reader.names}


def said(original: Path, tensors: dict[str, Tensor], scratch: Path) -> Tensor:
    """Logits of TOKENS by the class of transformers, loaded by its own `from_pretrained`."""
    import transformers

    scratch.mkdir()
    shutil.copy(original / "config.json", scratch)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(contiguous, scratch / "model.safetensors", {"format": "pt"})
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    with torch.inference_mode():
        found: Tensor = load(scratch, dtype=torch.float32).eval()(TOKENS).logits
    shutil.rmtree(scratch)
    return found


def naively_rounded(weight: Tensor, bits: int, *, symmetric: bool) -> Tensor:
    """Each group of 32 of a row to the nearest of 2**bits even steps that reach from its least to its greatest, zero
    among them and in their middle where symmetric: what any method has to beat."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    step = (high - low).clamp(min=1e-9) / (2**bits - 1)
    zero = (-low / step).round()
    found: Tensor = ((groups / step).round() + zero).clamp(0, 2**bits - 1) - zero
    return found.mul(step).reshape(weight.shape)


def relative(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """The folder's tensors, changed in place."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
