"""Which quantization method vLLM sees in a checkpoint, under its own name for it.

The declaration is looked for where vLLM looks: `quantization_config` (or `compression_config`) of
config.json, then of its text_config, and hf_quant_config.json where config.json has none at all.
A quantize_config.json alone is not read (transformers_utils/config.py:951).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding, Hint
from mlload.profiles.profile import Profile

# The flag's words for each family (auto_awq.py:274, auto_gptq.py:226).
FLAGS: dict[str, tuple[str, ...]] = {
    "auto_awq": ("awq", "awq_marlin", "auto_awq", "marlin"),
    "auto_gptq": ("gptq", "gptq_marlin", "auto_gptq", "marlin"),
}


class Quantization(NamedTuple):
    """method:  vLLM's name of the method ("auto_gptq", "modelopt_fp4", ...), None for none
    declared:   the method as the config writes it, "" for none
    config:     the dict that vLLM reads it from
    where:      the file it lies in
    findings:   refusals at the config stage
    """

    method: str | None
    declared: str
    config: dict[str, Any]
    where: str
    findings: tuple[Finding, ...] = ()


NONE = Quantization(None, "", {}, "")


def resolve_quantization(
    config: dict[str, Any],
    json_files: dict[str, Any],
    profile: Profile,
    *,
    asked: str | None = None,
    allow_deprecated: bool = False,
) -> Quantization:
    """The method that the engine resolves, with the refusals met on the way (config/model.py:1382).

    config: config.json as parsed; json_files: side files by name; asked: --quantization.
    """
    declared, where = declaration(config, json_files)
    if declared is None:
        return _only_asked(asked, json_files, profile, allow_deprecated) if asked else NONE
    written = str(declared.get("quant_method") or "")
    name, findings = _normalized(declared, where)
    model_type = str(config.get("model_type") or "")
    method = _override(name, declared, model_type) if name else None
    if asked and method and asked not in FLAGS.get(method, (method,)) and asked != method:
        findings.append(_clash(asked, method, where))
    findings += _known(method, profile, where, allow_deprecated)
    return Quantization(method, written or name, declared, where, tuple(findings))


def declaration(config: dict[str, Any], json_files: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The dict that vLLM takes for the quantization config, and its file."""
    own = config.get("quantization_config")
    side = json_files.get("hf_quant_config.json")
    if own is None and isinstance(side, dict):
        return side, "hf_quant_config.json"
    if own is None:
        own = config.get("compression_config")
    if isinstance(own, dict):
        return own, "config.json"
    text = config.get("text_config")
    if isinstance(text, dict):
        nested = text.get("quantization_config", text.get("compression_config"))
        if isinstance(nested, dict):
            return nested, "config.json"
    return None, ""


def _normalized(declared: dict[str, Any], where: str) -> tuple[str, list[Finding]]:
    """model_arch_config_convertor.py:241. "" where no method is named: the model is built unquantized."""
    findings: list[Finding] = []
    name = str(declared.get("quant_method") or "").lower().replace("compressed_tensors", "compressed-tensors")
    producer = declared.get("producer")
    nested = declared.get("quantization")
    nested = nested if isinstance(nested, dict) else {}
    by_modelopt = isinstance(producer, dict) and producer.get("name") == "modelopt"
    if (by_modelopt or "modelopt_quant_config" in nested) and nested.get("quant_algo") is not None:
        algo = str(nested["quant_algo"]).upper()
        if algo in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"):
            name = "modelopt"
        elif algo == "NVFP4":
            name = "modelopt_fp4"
        elif algo == "MIXED_PRECISION":
            name = "modelopt_mixed"
        else:
            message = f"the ModelOpt algorithm {nested['quant_algo']!r} is not known to the engine"
            findings.append(Finding("EN013", "error", "starts", where, message, {"quant_algo": nested["quant_algo"]}))
            name = ""
    return name, findings


def _override(name: str, declared: dict[str, Any], model_type: str) -> str:
    """The methods that claim a checkpoint as theirs, each by its `override_quantization_method`."""
    if name == "gptq":
        return "auto_gptq"
    if name == "awq":
        return "auto_awq"
    if name == "auto-round":
        return "inc"
    if name.startswith("modelopt"):
        nested = declared.get("quantization")
        source = nested if isinstance(nested, dict) else declared
        algo = str(source.get("quant_algo") or "").upper()
        if algo == "FP8":
            return "modelopt"
        if "FP4" in algo:
            return "modelopt_fp4"
        if algo == "MXFP8":
            return "modelopt_mxfp8"
        if algo == "MIXED_PRECISION":
            return "modelopt_mixed"
    if name == "mxfp4" and model_type == "gpt_oss":
        return "gpt_oss_mxfp4"
    if name == "fp8" and model_type in ("deepseek_v4", "deepseek_v41"):
        return "deepseek_v4_fp8"
    return name


def _known(method: str | None, profile: Profile, where: str, allow_deprecated: bool) -> list[Finding]:
    if method is None:
        return []
    methods = profile.value("quant_methods", {})
    if methods and method not in methods:
        message = f"the quantization method {method!r} is not known to the engine, which has: {', '.join(methods)}"
        return [Finding("EN010", "error", "starts", where, message, {"method": method})]
    if method in profile.value("quant_deprecated", ()) and not allow_deprecated:
        message = f"the quantization method {method!r} is deprecated and refused"
        hint = Hint("start with the method allowed", "--allow-deprecated-quantization")
        return [Finding("EN011", "error", "starts", where, message, {"method": method}, (hint,))]
    return []


def _clash(asked: str, method: str, where: str) -> Finding:
    message = f"--quantization {asked} was asked for, the checkpoint is {method!r}"
    return Finding(
        "EN012",
        "error",
        "starts",
        where,
        message,
        {"asked": asked, "method": method},
        (Hint("leave --quantization out"),),
    )


def _only_asked(asked: str, json_files: dict[str, Any], profile: Profile, allow_deprecated: bool) -> Quantization:
    """A flag on a checkpoint that declares nothing in config.json (weight_utils.py:197): the method reads a
    side file of its own, or quantizes while loading."""
    unknown = _known(asked, profile, "--quantization", allow_deprecated)
    record = profile.value("quant_methods", {}).get(asked, {})
    wanted = record.get("config_files", [])
    online = record.get("config") == "OnlineQuantizationConfig" or asked in ("fp8", "mxfp8")
    files = [name for name in json_files if name.endswith(tuple(wanted))] if wanted else []
    if len(files) == 1 and isinstance(json_files[files[0]], dict):
        method = next((name for name, words in FLAGS.items() if asked in words), asked)
        return Quantization(method, asked, json_files[files[0]], files[0], tuple(unknown))
    if online and not files:
        return Quantization("online", asked, {}, "", tuple(unknown))
    if wanted and not unknown:
        found = f"found {', '.join(files)}" if files else "found none"
        message = f"--quantization {asked} needs exactly one file named {' or '.join(wanted)}, {found}"
        unknown.append(Finding("EN033", "error", "starts", "--quantization", message, {"files": files}))
    return Quantization(asked, asked, {}, "", tuple(unknown))
