"""Rules about `auto_map`: Python files that a checkpoint brings along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.checkpoint import hints
from mlload.checkpoint.finding import Finding
from mlload.validators.context import Context
from mlload.validators.rules import rule

# Loaded from the files whenever remote code is trusted; classes of models only where the engine has none of its own.
ALWAYS = ("AutoConfig", "AutoTokenizer", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor")
FILES = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")


@rule("FI076", "module of auto_map missing")
def module_missing(context: Context) -> Iterator[Finding]:
    """auto_map names a class in a Python file of the repository ("modeling_x.Class"), and the file is not there. With
    --trust-remote-code the config, the tokenizer and the processor are loaded from it whenever auto_map names one, and
    the start ends with "does not appear to have a file named". A name with another repository before it
    ("org/name--module.Class") is fetched from there. Nothing is said where no code is trusted and none is needed, and
    of a config without weights."""
    checkpoint, request = context.checkpoint, context.request
    there = {file.name for file in checkpoint.files}
    if not there or not checkpoint.tensors or context.plan.profile.engine not in ("vllm", "transformers"):
        return
    known = set(context.plan.profile.value("transformers_types", ()))
    known |= set(context.plan.profile.value("config_registry", ()))
    missing: dict[str, list[str]] = {}
    for file in FILES:
        fields = checkpoint.json_files.get(file)
        for key, reference in _references(fields.get("auto_map") if isinstance(fields, dict) else None):
            module = module_file(reference)
            if module is not None and module not in there:
                missing.setdefault(module, []).append(f"{file}: {key}")
    for module, places in missing.items():
        needed = any(place.rpartition(": ")[2] in ALWAYS for place in places)
        if not request.trust_remote_code and context.config.model_type in known:
            continue
        certain = request.trust_remote_code and needed
        yield Finding(
            "FI076",
            "error" if certain else "warning",
            "starts",
            module,
            f"{module} is not there, and auto_map names it ({', '.join(places)}): "
            + ("trusted code is loaded from it at the start" if needed else "the model's own class is in it"),
            {"module": module, "named_by": places},
            (hints.download_again(checkpoint.source, module),),
        )


def module_file(reference: str) -> str | None:
    """ "modeling_x.Class" -> "modeling_x.py"; None for another repository's, or where it names no module."""
    if "--" in reference or "." not in reference:
        return None
    return reference.rpartition(".")[0].replace(".", "/") + ".py"


def _references(auto_map: Any) -> Iterator[tuple[str, str]]:
    """Of a tokenizer there are two, slow and fast, either may be null."""
    for key, value in auto_map.items() if isinstance(auto_map, dict) else ():
        for reference in value if isinstance(value, list) else (value,):
            if isinstance(reference, str) and len(reference) < 200:
                yield str(key), reference
