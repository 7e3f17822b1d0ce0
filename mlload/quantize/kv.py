"""Scales for a KV cache of fp8: `k_scale` and `v_scale` beside the attention of each layer, one element each.

The cache holds value / scale as e4m3, so that a scale is the largest magnitude over 448.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.plan.model import Model
from mlload.quant.algorithms import float8
from mlload.quantize.source import SourceTensors
from mlload.writer.layout import OutputTensor

NAME = "self_attn"  # below which engines look for the scales


def attentions(model: Model) -> dict[int, str]:
    """Layer -> disk path of its attention. Raises MlloadError where an engine would not find scales there."""
    found: dict[int, str] = {}
    for param in model.params:
        spec = param.spec
        if spec.draft or spec.mesh == "tower" or spec.component != "attention":
            continue
        if not any(part.role in ("k", "v") for part in spec.parts):
            continue
        for layer in spec.layers or ():
            found[layer] = spec.module.rpartition(".")[0].replace("{layer}", str(layer))
    if not found:
        raise MlloadError(
            f"{model.checkpoint.label} has no keys and values of its own in a cache (latent attention, or none): "
            "--kv-cache-scheme has nothing to scale"
        )
    other = next((path for path in found.values() if not path.endswith(f".{NAME}")), None)
    if other is not None:
        raise MlloadError(f"engines look for KV scales below {NAME}, and this model calls its attention {other}")
    return dict(sorted(found.items()))


def kv_tensors(model: Model) -> tuple[OutputTensor, ...]:
    paths = attentions(model).values()
    return tuple(OutputTensor(f"{path}.{which}_scale", "F32", (1,), ()) for path in paths for which in "kv")


class CachePeaks:
    """Stands for the cache that attention writes to, and keeps the largest magnitudes of what comes.

    Attention hands its keys after their rotation, as an engine's cache holds them.
    """

    def __init__(self) -> None:
        self.largest: dict[tuple[int, str], float] = {}

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        for which, seen in (("k", key), ("v", value)):
            peak = float(seen.abs().max())
            self.largest[layer, which] = max(peak, self.largest.get((layer, which), 0.0))
        return key, value

    def get_seq_length(self, *_: object) -> int:
        return 0


def kv_scales(peaks: CachePeaks, layer: int, path: str) -> Mapping[str, Tensor]:
    """Tensor name -> scale, of one layer. Raises MlloadError where its attention wrote to no cache."""
    found = {}
    for which in "kv":
        if (layer, which) not in peaks.largest:
            raise MlloadError(
                f"{path} of transformers' class writes to no cache that could be looked at",
                hint="leave out --kv-cache-scheme",
                exit_code=3,
            )
        scale = peaks.largest[layer, which] / float8.LARGEST
        found[f"{path}.{which}_scale"] = torch.tensor([scale]).clamp(min=float8.TINY)
    return found


STORED = ("input_scale", "input_global_scale", "k_scale", "v_scale")  # of what layers see and cache


def unusable_scales(tensors: SourceTensors) -> list[str]:
    """A sentence for each stored scale of activations or of the cache that is no positive number."""
    found = []
    for name in tensors.checkpoint.tensors:
        if name.rpartition(".")[2] in STORED:
            value = float(tensors.tensor(name).float().reshape(-1)[0])
            if not 0 < value < math.inf:
                found.append(f"{name} is {value}: nothing can be scaled by it")
    return found
