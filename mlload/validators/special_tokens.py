"""Rules about the ids of special tokens: beginning, end, padding, and what stands for an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding, Hint
from mlload.validators.context import Context
from mlload.validators.rules import rule
from mlload.validators.tables import vocabulary_rows
from mlload.validators.tokenizer_files import tokenizer_of

GENERATION = "generation_config.json"
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# Ids that stand for a picture, a frame or a sound in a prompt; models fill their rows from a tower.
PLACEHOLDERS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_index",
    "eoi_token_index",
)


class Stop(NamedTuple):
    """A token at which the engine stops, and the file that says so."""

    id: int
    place: str


def stops(context: Context) -> tuple[Stop, ...]:
    """vLLM's stop tokens: the tokenizer's eos_token, and eos_token_id of generation_config.json, or of config.json
    where there is no such file (sampling_params.py:775, transformers_utils/config.py:1275)."""
    checkpoint, tokenizer = context.checkpoint, tokenizer_of(context.checkpoint)
    found: dict[int, str] = {}
    eos = tokenizer.roles.get("eos_token")
    number = tokenizer.id_of(eos) if eos is not None else None
    if number is not None:
        found[number] = "tokenizer_config.json"
    generation = checkpoint.json_files.get(GENERATION)
    if isinstance(generation, dict):
        place, value = GENERATION, generation.get("eos_token_id")
    else:
        place, value = "config.json", context.config.given("eos_token_id")
    for number in _ids(value):
        found.setdefault(number, place)
    return tuple(Stop(number, place) for number, place in found.items())


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [number for number in values if type(number) is int]


@rule("FI074", "special token outside the vocabulary")
def outside(context: Context) -> Iterator[Finding]:
    """An id that a config gives for a special token is no row of the embedding: below 0 or past its end. For the end
    of a text this means that the model can never stop there; for an image, that every request with one fails. It
    happens when a config was copied from another model. -1 counts as "none", as configs use it."""
    rows = vocabulary_rows(context.model)
    if not rows:
        return
    seen: set[tuple[str, int]] = set()
    for place, fields in _places(context):
        for name in (*IDS, *PLACEHOLDERS):
            for number in _ids(fields.get(name)):
                if -1 <= number < rows or (name, number) in seen or (name in PLACEHOLDERS and number < 0):
                    continue
                seen.add((name, number))
                yield Finding(
                    "FI074",
                    "warning",
                    "right",
                    f"{place}: {name}",
                    f"{name} is {number:,}, and the vocabulary has {rows:,} rows (ids 0 to {rows - 1:,}): "
                    + ("the engine never stops there" if name == "eos_token_id" else "no such token exists"),
                    {"id": number, "rows": rows},
                    (Hint(f"Write the {name} that the original model's {place} has."),),
                )


def _places(context: Context) -> Iterator[tuple[str, dict[str, Any]]]:
    config = context.config
    yield "config.json", config.text
    if config.raw is not config.text:
        yield "config.json", config.raw
    generation = context.checkpoint.json_files.get(GENERATION)
    if isinstance(generation, dict):
        yield GENERATION, generation


@rule("FI073", "eos_token_id is no number")
def eos_kind(context: Context) -> Iterator[Finding]:
    """eos_token_id must be a whole number or a list of them. Anything else (a text, an object, a fraction) is taken
    over without a check, and the first request fails or never stops."""
    for place, fields in _places(context):
        value = fields.get("eos_token_id")
        if value is None or type(value) is int:
            continue
        if isinstance(value, list) and value and all(type(entry) is int for entry in value):
            continue
        yield Finding(
            "FI073",
            "error",
            "right",
            f"{place}: eos_token_id",
            f"eos_token_id is {str(value)[:60]!r}, which is no token id and no list of ids",
            hints=(Hint(f"Write the eos_token_id that the original model's {place} has."),),
        )
