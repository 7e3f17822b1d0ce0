"""The quantization method that vLLM resolves for a checkpoint, which decides its layers' parameters."""

from __future__ import annotations

from typing import Any

from mlload.checkpoint.config import ConfigView
from mlload.quant.spec import QuantSpec

# Declared method -> the class family that overrides it (each `override_quantization_method`).
OVERRIDES: dict[str, str] = {
    "awq": "auto_awq",
    "awq_marlin": "auto_awq",
    "gptq": "auto_gptq",
    "gptq_marlin": "auto_gptq",
    "auto-round": "inc",
}


def engine_method(quant: QuantSpec, config: ConfigView) -> str:
    """ "auto_awq", "auto_gptq", "fp8", "compressed-tensors", "modelopt_fp4", "gpt_oss_mxfp4", ..."""
    declared = str(quant.config.get("quant_method") or quant.method).lower()
    algo = (
        _modelopt_algo(quant.config) if declared.startswith("modelopt") or not quant.config.get("quant_method") else ""
    )
    if algo:
        return _modelopt_method(algo)
    if declared in ("mxfp4", "gpt_oss_mxfp4"):
        return "gpt_oss_mxfp4" if config.model_type == "gpt_oss" else declared
    return OVERRIDES.get(declared, declared)


def _modelopt_algo(config: dict[str, Any]) -> str:
    """ModelOpt's algorithm, at either of the places where it is written."""
    nested = config.get("quantization")
    algo = nested.get("quant_algo") if isinstance(nested, dict) else config.get("quant_algo")
    return str(algo).upper() if algo else ""


def _modelopt_method(algo: str) -> str:
    if algo == "MIXED_PRECISION":
        return "modelopt_mixed"
    if "MXFP8" in algo:
        return "modelopt_mxfp8"
    if "FP4" in algo:
        return "modelopt_fp4"
    return "modelopt"
