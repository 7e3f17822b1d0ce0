"""Rules about the small files beside the weights: the generation config, and what prepares images and sound."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from mlload.checkpoint import hints
from mlload.checkpoint.config import AUDIO_KEYS, VISION_KEYS
from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule
from mlload.validators.special_tokens import GENERATION
from mlload.validators.tokenizer_files import tokenizer_of

# Any of these tells transformers how to build the processor of a model that sees or hears.
PROCESSORS = (
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
)
# Sampling settings that a request takes over as they are -> (least, most) that vLLM accepts
# (sampling_params.py, _verify_args); None = no bound.
SAMPLING: dict[str, tuple[float, float | None]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (-1, None),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, None),
}


@rule("FI075", "processor files missing")
def no_processor(context: Context) -> Iterator[Finding]:
    """The model has a vision or audio tower, and no file tells how pictures or sound are prepared for it
    (preprocessor_config.json or processor_config.json). vLLM builds the processor when it starts, to measure the
    largest input, and stops with "Can't load image processor" or "Can't load feature extractor". Tools that save only
    the model and the tokenizer lose these files. A model that is used for text alone starts with --limit-mm-per-prompt
    set to 0 for each kind of input. Not judged where the repository's own code decides, or where not even a tokenizer
    is there."""
    checkpoint, config, profile = context.checkpoint, context.config, context.plan.profile
    names = {file.name for file in checkpoint.files}
    tokenizer = tokenizer_of(checkpoint)
    if profile.engine != "vllm" or not tokenizer.known or not tokenizer.forms or not checkpoint.tensors:
        return
    sees = [key for key in (*VISION_KEYS, *AUDIO_KEYS) if isinstance(config.raw.get(key), dict)]
    if not sees or names.intersection(PROCESSORS) or "params.json" in names:
        return
    own_code = isinstance(config.raw.get("auto_map"), dict) or isinstance(tokenizer.config.get("auto_map"), dict)
    if own_code or config.model_type not in profile.value("transformers_types", ()):
        return
    if context.request.options.get("limit-mm-per-prompt") or context.request.options.get("language-model-only"):
        return
    yield Finding(
        "FI075",
        "error",
        "starts",
        PROCESSORS[0],
        f"config.json has {' and '.join(sees)}, and neither {PROCESSORS[0]} nor {PROCESSORS[1]} is there: the engine "
        "cannot build the processor",
        {"config": sees},
        (
            hints.download_again(checkpoint.source, PROCESSORS[0]),
            Hint("Serve it for text alone.", "--language-model-only"),
        ),
    )


@rule("FI077", "generation config that requests cannot use")
def sampling(context: Context) -> Iterator[Finding]:
    """generation_config.json gives the defaults of every request. A temperature below 0, a top_p outside 0 to 1, or a
    text where a number belongs passes the start, and then each request that does not set the field itself is refused.
    vLLM ignores the file with --generation-config vllm."""
    generation = context.checkpoint.json_files.get(GENERATION)
    if not isinstance(generation, dict) or context.request.options.get("generation-config") == "vllm":
        return
    for name, (least, most) in SAMPLING.items():
        value = generation.get(name)
        if value is None or _within(value, least, most, whole=name == "top_k"):
            continue
        least_shown = "above 0" if least == 1e-9 else f"at least {least:g}"
        bounds = least_shown + ("" if most is None else f" and at most {most:g}")
        yield Finding(
            "FI077",
            "warning",
            "right",
            f"{GENERATION}: {name}",
            f"{name} is {str(value)[:40]}, and the engine takes a number {bounds}: requests that do not set it fail",
            {"value": value if isinstance(value, (int, float, str)) else str(value)[:100]},
            (Hint("Leave the file out.", "--generation-config vllm"),),
        )


def _within(value: Any, least: float, most: float | None, *, whole: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return False
    if isinstance(value, float) and not isfinite(value):
        return False
    return bool(value >= least) and (most is None or bool(value <= most))
