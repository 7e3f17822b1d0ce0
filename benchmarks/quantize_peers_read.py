"""An independent judge of 4-bit folders: own unpacking, a plain transformers model, perplexity and KL. No mlload.

N = out_features, K = in_features, G = groups of a row. The three layouts, from their packages' documentation:
- AutoAWQ "gemm": qweight int32 [K, N/8], nibble i of a word is column 8 w + (0, 2, 4, 6, 1, 3, 5, 7)[i]; qzeros
  [G, N/8] alike; scales [G, N]; w = (q - z) s
- GPTQ v1: qweight int32 [K/8, N], nibble i of a word is row 8 w + i; qzeros [G, N/8], of z - 1; g_idx [K] or k // g
- compressed-tensors "pack-quantized": weight_packed int32 [N, K/8], of q + 8; weight_scale [N, G]; weight_zero_point
  int32 [N/8, G], of z + 8, packed along N; "int-quantized" and "float-quantized": weight [N, K], weight_scale [N, 1]
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
SHIFTS = torch.arange(8, dtype=torch.int32) * 4
CHUNKS, LENGTH = 16, 256
# First tensor of a quantized linear, which tells the layout.
AWQ_OR_GPTQ, PACKED, SCALED = ".qweight", ".weight_packed", ".weight_scale"


def nibbles(words: Tensor) -> Tensor:
    """int32 [..., W] -> [..., 8 W], lowest first."""
    return ((words.unsqueeze(-1) >> SHIFTS) & 15).flatten(-2)


def awq(t: dict[str, Tensor]) -> Tensor:
    def columns(words: Tensor) -> Tensor:
        by_word = nibbles(words).reshape(words.shape[0], -1, 8)
        found = torch.empty_like(by_word)
        found[..., list(AWQ_COLUMNS)] = by_word
        return found.flatten(-2)

    q, z, s = columns(t["qweight"]), columns(t["qzeros"]), t["scales"].float()
    size = q.shape[0] // s.shape[0]
    return ((q - z.repeat_interleave(size, 0)) * s.repeat_interleave(size, 0)).T


def gptq(t: dict[str, Tensor], *, v2: bool = False) -> Tensor:
    q, z, s = nibbles(t["qweight"].T).T, nibbles(t["qzeros"]) + (0 if v2 else 1), t["scales"].float()
    k = q.shape[0]
    group = t["g_idx"].long() if "g_idx" in t else torch.arange(k) // (k // s.shape[0])
    return ((q - z[group]) * s[group]).T


def packed(t: dict[str, Tensor]) -> Tensor:
    n, k = (int(size) for size in t["weight_shape"])
    q = nibbles(t["weight_packed"])[:, :k] - 8
    s = t["weight_scale"].float()
    size = k // s.shape[1]
    if "weight_zero_point" in t:
        z = nibbles(t["weight_zero_point"].T.contiguous()).T[:n] - 8
        q = q - z.repeat_interleave(size, 1)
    return q * s.repeat_interleave(size, 1)


def dequantized(folder: Path) -> dict[str, Tensor]:
    """Every tensor of the folder under its name before quantization; linears float32 [N, K]."""
    stored: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored |= load_file(file)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    found = {}
    for name in list(stored):
        for mark in (AWQ_OR_GPTQ, PACKED, SCALED):
            if name.endswith(mark) and name in stored:
                path = name.removesuffix(mark)
                mine = {n[len(path) + 1 :]: stored.pop(n) for n in list(stored) if n.startswith(path + ".")}
                if mark == SCALED and "weight" in mine:
                    found[path + ".weight"] = mine["weight"].float() * mine["weight_scale"].float()
                elif "weight_packed" in mine:
                    found[path + ".weight"] = packed(mine)
                elif config["quant_method"] == "awq":
                    found[path + ".weight"] = awq(mine)
                else:
                    found[path + ".weight"] = gptq(mine, v2=config.get("checkpoint_format") == "gptq_v2")
                if "bias" in mine:
                    found[path + ".bias"] = mine["bias"]
    return stored | found


def model_of(source: Path, weights: dict[str, Tensor] | None) -> Any:
    """The source's class in fp32, with `weights` in the place of its own where they are given."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if weights is not None:
        own = set(dict(model.named_parameters()))
        if missing := own - set(weights):
            raise SystemExit(f"the quantized folder lacks {sorted(missing)[0]}")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    return model.eval()


def chunks(source: Path, text: Path) -> Tensor:
    """int64 [16, 256], evenly spaced."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    ids = tokenizer(text.read_text(), add_special_tokens=False, verbose=False)["input_ids"]
    step = (len(ids) - LENGTH) // (CHUNKS - 1)
    return torch.tensor([ids[at * step : at * step + LENGTH] for at in range(CHUNKS)])


@torch.inference_mode()
def measure(model: Any, tokens: Tensor, reference: Path, write: bool) -> dict[str, float]:
    """Perplexity, and the mean KL of the float model's next-token distribution (nats) to this one's.

    reference: file of the float model's log-probabilities, float32 [S, L - 1, V]; made where `write` says so
    """
    count, length = tokens.shape[0], tokens.shape[1] - 1
    shape = (count, length, model.config.vocab_size)
    if write:
        with reference.open("wb") as handle:
            handle.truncate(4 * math.prod(shape))
    kept = torch.from_file(str(reference), shared=write, size=math.prod(shape)).reshape(shape)
    loss = divergence = 0.0
    for sample, whole in zip(tokens, kept, strict=True):
        found = torch.log_softmax(model(input_ids=sample[None]).logits[0, :-1].float(), -1)
        if write:
            whole.copy_(found)
        loss -= float(found.gather(1, sample[1:, None]).double().sum())
        divergence += float((whole.exp() * (whole - found)).double().sum())
    tokens_seen = count * length
    return {"perplexity": math.exp(loss / tokens_seen), "kl": divergence / tokens_seen}
