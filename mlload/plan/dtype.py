"""The dtype that an engine computes in, and so allocates unquantized weights in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView

# torch's names, as configs and command lines write them -> safetensors' names.
TORCH_DTYPES: dict[str, str] = {
    "bfloat16": "BF16",
    "float16": "F16",
    "half": "F16",
    "float32": "F32",
    "float": "F32",
    "float64": "F64",
}


def torch_dtype(value: Any) -> str | None:
    """ "torch.bfloat16" or "bfloat16" -> "BF16"; None for anything else."""
    return TORCH_DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None


def model_dtype(config: ConfigView, checkpoint: Checkpoint) -> str:
    """What the files' unquantized weights are: the config's word, else the most common float dtype."""
    declared = torch_dtype(config.get("torch_dtype"))
    if declared is not None:
        return declared
    floats = Counter(t.dtype for t in checkpoint.tensors.values() if t.dtype in ("BF16", "F16", "F32"))
    return floats.most_common(1)[0][0] if floats else "F32"


def resolve_dtype(declared: str, asked: str, supported: Sequence[str], refused_float16: bool, pooling: bool) -> str:
    """vLLM's resolution of `--dtype` (config/model.py:2415).

    With "auto", float32 becomes the preferred dtype (float16 for pooling models, else the GPU's
    first), and a dtype that the GPU or the model type cannot use falls back to the preferred one.

    supported:       torch names of what the GPU can use, the preferred one first
    refused_float16: the model type overflows in float16
    """
    if asked != "auto":
        return torch_dtype(asked) or declared
    usable = [TORCH_DTYPES[name] for name in supported if not (refused_float16 and name == "float16")]
    preferred = "F16" if pooling and "F16" in usable else usable[0]
    wanted = preferred if declared == "F32" else declared
    return wanted if wanted in usable else preferred
