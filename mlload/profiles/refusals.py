"""What an engine refuses before it builds a layer: model type, architecture, dtype, quantization config.

Pure functions of config.json, side files and the GPU's capability. Everything that would be refused
is found, though the engine stops at the first. Line numbers are of vLLM 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.json_text import quote
from mlload.profiles.methods import capability_number
from mlload.profiles.profile import Profile
from mlload.profiles.quant_configs import quant_config_refusals
from mlload.profiles.quantization import Quantization

# Dtypes as commands write them -> torch's names.
DTYPES = {
    "half": "float16",
    "float16": "float16",
    "float": "float32",
    "float32": "float32",
    "bfloat16": "bfloat16",
}
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def config_refusals(
    config: dict[str, Any], profile: Profile, *, trust_remote_code: bool = False
) -> tuple[Finding, ...]:
    """Model type and architecture (transformers_utils/config.py:415, models/registry.py:1221)."""
    if profile.engine == "transformers":
        return tuple(_quantizer(config, profile))
    if profile.engine != "vllm" or not config:
        return ()
    return (*_model_type(config, profile, trust_remote_code), *_architecture(config, profile))


def _quantizer(config: dict[str, Any], profile: Profile) -> Iterator[Finding]:
    """The installed Transformers has a quantizer for the method, or it refuses (quantizers/auto.py)."""
    quantization = config.get("quantization_config")
    known = profile.value("quantizers")
    if not isinstance(quantization, dict) or known is None:
        return
    method = str(quantization.get("quant_method") or "").lower()
    if method == "bitsandbytes":
        method += "_4bit" if quantization.get("load_in_4bit") else "_8bit"
    if method and method not in known:
        message = f"{profile.label} has no quantizer for {method}; it has {', '.join(known)}"
        yield Finding("EN010", "error", "starts", "quantization_config", message, {"method": method})


def _model_type(config: dict[str, Any], profile: Profile, trusted: bool) -> list[Finding]:
    model_type = config.get("model_type")
    names = _architectures(config)
    if model_type is None and names:
        model_type = profile.value("architecture_to_model_type", {}).get(names[0])
    if model_type is not None and not isinstance(model_type, str):
        model_type = str(model_type)
    known = set(profile.value("transformers_types", ())) | set(profile.value("config_registry", ()))
    if not known or model_type in known or "speculators_config" in config:
        return []
    auto_map = config.get("auto_map")
    code = auto_map.get("AutoConfig") if isinstance(auto_map, dict) else None
    if code is not None and trusted:
        return []
    if code is not None:
        message = f"model type {quote(str(model_type))} needs the repository's own code ({code})"
        hint = Hint("read the code, then start with it trusted", "--trust-remote-code")
        return [Finding("EN001", "error", "starts", "config.json", message, {"model_type": model_type}, (hint,))]
    severity: Any = "warning" if trusted else "error"
    message = (
        f"neither Transformers nor the engine knows the model type {quote(model_type)}"
        if model_type
        else "config.json names no model_type"
    )
    if trusted:
        message += "; it starts only if trusted code registers it"
    return [Finding("EN002", severity, "starts", "config.json", message, {"model_type": model_type})]


def _architectures(config: dict[str, Any]) -> list[str]:
    value = config.get("architectures")
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _architecture(config: dict[str, Any], profile: Profile) -> list[Finding]:
    names = _architectures(config)
    registered = profile.architectures
    if not names or not registered or any(name in registered for name in names):
        return []
    for name in names:
        if name in (removed := profile.value("architectures_removed", {})):
            message = f"{name} was supported until {profile.engine} {removed[name]} and is not any more"
            hint = Hint(f"use {profile.engine} {removed[name]}")
            numbers = {"architecture": name, "last_version": removed[name]}
            return [Finding("EN003", "error", "starts", "config.json", message, numbers, (hint,))]
        if name in (plugins := profile.value("architectures_plugin", {})):
            message = f"{name} is supported by a plugin only: {plugins[name]}"
            hint = Hint("install the plugin", f"pip install git+{plugins[name]}")
            return [Finding("EN004", "error", "starts", "config.json", message, {"architecture": name}, (hint,))]
    shown = ", ".join(name if len(name) <= 60 and name.isprintable() else quote(name) for name in names[:4])
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    message = f"{profile.engine} has no class for {shown}{more}"
    fallback = set(profile.value("transformers_classes", ()))
    if any(name in fallback for name in names) or "auto_map" in config or not fallback:
        message += "; it may run through the Transformers backend"
        return [Finding("EN005", "warning", "starts", "config.json", message, {"architectures": names})]
    message += ", and Transformers has none either"
    return [Finding("EN006", "error", "starts", "config.json", message, {"architectures": names})]


def dtype_refusals(
    model_type: str, asked: str, capability: tuple[int, int] | None, profile: Profile
) -> tuple[Finding, ...]:
    """A dtype asked for by name (config/model.py:2415, platforms/cuda.py:638). "auto" is never refused."""
    asked = asked.lower()
    if asked == "auto" or profile.engine != "vllm":
        return ()
    dtype = DTYPES.get(asked)
    if dtype is None:
        message = f"unknown dtype {asked!r}; known: auto, {', '.join(DTYPES)}"
        return (Finding("EN016", "error", "starts", "--dtype", message, {"dtype": asked}),)
    if dtype == "float16" and model_type in profile.value("float16_refused", ()):
        message = f"model type {quote(model_type)} may not run in float16, it is numerically unstable"
        hint = Hint("let the engine choose", "--dtype auto")
        return (Finding("EN014", "error", "starts", "--dtype", message, {"model_type": model_type}, (hint,)),)
    if capability is not None and dtype not in profile.dtypes(capability):
        major, minor = capability
        message = f"bfloat16 needs compute capability 8.0, this GPU has {major}.{minor}"
        numbers = {"capability": capability_number(capability), "min_capability": 80}
        return (Finding("EN015", "error", "starts", "--dtype", message, numbers, (Hint("use half", "--dtype half"),)),)
    return ()


def quant_refusals(
    quantization: Quantization, dtype: str, capability: tuple[int, int] | None, profile: Profile
) -> tuple[Finding, ...]:
    """What the quantization config is refused for (config/vllm.py:916, each method's `from_config`).

    dtype: that the model runs in, resolved ("BF16"); capability None judges nothing about the GPU.
    """
    method = quantization.method
    record = profile.value("quant_methods", {}).get(method)
    if method is None or record is None:
        return ()
    where = quantization.where or "--quantization"
    findings: list[Finding] = list(quant_config_refusals(quantization, profile))
    least, cc = record.get("min_capability"), capability_number(capability)
    if capability is not None and least is not None and cc < least:
        message = (
            f"{method} needs compute capability {least} ({least // 10}.{least % 10}), this GPU has "
            f"{cc} ({cc // 10}.{cc % 10})"
        )
        findings.append(
            Finding("EN020", "error", "starts", where, message, {"min_capability": least, "capability": cc})
        )
    supported = [DTYPES.get(name, name) for name in record.get("act_dtypes", ())]
    running = _NAMES.get(dtype, dtype)
    refused_already = any(finding.code == "EN020" for finding in findings)
    if supported and running not in supported and not refused_already:
        message = f"{method} does not run in {running}; it runs in {', '.join(supported)}"
        findings.append(Finding("EN021", "error", "starts", where, message, {"dtype": running, "supported": supported}))
    return tuple(findings)
