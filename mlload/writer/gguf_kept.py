"""GGUF blocks that stay quantized: those that are integers times one scale of 16 bits for every 32 values.

compressed-tensors' pack-quantized says the same in other words: int32 [N, K*b/32] of values offset by 2**(b-1), and
weight_scale f16 [N, K/32]. So nothing is rounded. Of Q4_1 and Q5_1 the least value of a block is a number of its own
and no multiple of the scale; the K types have scales of scales: they have no counterpart, and become plain numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model
from mlload.plan.plan import make_plan
from mlload.profiles import load
from mlload.writer.numbers import need_numpy

# GGUF type -> (bits that hold it, what its codes are offset by).
KEPT = {"Q4_0": (4, 8), "Q5_0": (8, 16), "Q8_0": (8, 0)}
GROUP = 32
# Suffix -> dtype of what a kept weight consists of.
PARTS = {"weight_packed": "I32", "weight_scale": "F16", "weight_shape": "I64"}


def kept_tensors(model: Model, dtype: str) -> dict[str, int]:
    """GGUF tensor -> bits that it is kept in. Parts of one fused layer get the width that holds all of them, or become
    plain numbers together. Raises MlloadError where none can be kept, or the scales would be rounded."""
    label = model.checkpoint.label
    if dtype != "F16":
        raise MlloadError(f"--keep-quantized keeps scales of 16 bits: it goes with --dtype f16, not {dtype.lower()}")
    profile = load("vllm", None)
    kind = model.config.text_type
    if kind in profile.value("float16_refused", ()):
        raise MlloadError(
            f"{label}: the model type {kind} is not served in float16 (vLLM {profile.version}), which the scales of "
            "GGUF blocks are",
            hint="without --keep-quantized the numbers become bfloat16",
            exit_code=1,
        )
    linears = {
        path + ".weight": param
        for param in model.params
        if param.spec.quantized and param.component != "head"
        for path in param.modules()
    }
    layers: dict[str, set[str]] = {}
    for segment in make_plan(model, profile, Mesh(1)).segments(0):
        if segment.tensor in linears:
            layers.setdefault(segment.engine, set()).add(segment.tensor)
    found: dict[str, int] = {}
    for names in layers.values():
        types = {model.checkpoint.tensors[name].dtype for name in names if name in model.checkpoint.tensors}
        if types and types <= KEPT.keys():
            found |= dict.fromkeys(names & model.checkpoint.tensors.keys(), max(KEPT[one][0] for one in types))
    if not found:
        types = {ref.dtype for name, ref in model.checkpoint.tensors.items() if name in linears}
        raise MlloadError(
            f"{label} has linears of {', '.join(sorted(types)) or 'no type'}; of these none can be kept, those of "
            f"{', '.join(KEPT)} can",
            hint="without --keep-quantized they become plain numbers",
            exit_code=1,
        )
    return found


def packed(kind: str, blocks: Any, bits: int) -> bytes:
    """weight_packed of raw blocks uint8 [N, blocks, nbytes]."""
    from mlload.quant.formats import gguf_blocks

    np = need_numpy()
    codes = gguf_blocks.decode(kind, blocks)["codes"]
    # Q8_0 holds two's complement, of which the first bit is the offset by 128.
    codes = codes ^ 0x80 if kind == "Q8_0" else codes + np.uint8((1 << (bits - 1)) - KEPT[kind][1])
    flat = codes.reshape(-1)
    if bits == 4:
        flat = flat[0::2] | (flat[1::2] << 4)
    raw: bytes = flat.tobytes()
    return raw


def scales(kind: str, blocks: Any) -> bytes:
    """weight_scale of raw blocks: their own 16 bits."""
    from mlload.quant.formats import gguf_blocks

    raw: bytes = gguf_blocks.decode(kind, blocks)["d"].astype("<f2").tobytes()
    return raw


def part_shape(part: str, n: int, k: int, bits: int) -> tuple[int, ...]:
    return {"weight_packed": (n, k * bits // 32), "weight_scale": (n, k // GROUP), "weight_shape": (2,)}[part]


def shape_content(n: int, k: int) -> bytes:
    return struct.pack("<2q", n, k)


def quantization_config(kept: Mapping[str, int], plain: Iterable[str]) -> dict[str, Any]:
    """What config.json says. kept: module -> bits; plain: linears that are plain numbers"""
    by_bits: dict[int, list[str]] = {}
    for module, bits in kept.items():
        by_bits.setdefault(bits, []).append(module)
    ordered = sorted(by_bits.items(), key=lambda item: -len(item[1]))
    groups = {
        # Paths are matched before the class, so that the commonest width can be everyone else's.
        f"group_{number}": {
            "targets": ["Linear"] if not number else modules,
            "weights": {
                "num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
            "format": "pack-quantized",
        }
        for number, (bits, modules) in enumerate(ordered)
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "version": "0.13.0",
        "config_groups": groups,
        "ignore": sorted(plain),
    }
