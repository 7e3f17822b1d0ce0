"""What a run is asked for, before anything is read: whether an interrupted run is gone on with is known at once."""

from __future__ import annotations

from hashlib import blake2b

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.quantize.recipe import Recipe
from mlload.writer.folder import request_of_rest
from mlload.writer.holdings import fingerprint

KINDS = ("another source", "other options", "other calibration data")
PIECE = 1 << 20


def asked(checkpoint: Checkpoint, recipe: Recipe, layout: str, data: str) -> str:
    """Digests of the source, of the options and of the calibration data, in the order of KINDS.

    layout: the options that decide where the bytes lie, as text; data: `data_words`
    """
    return ".".join(_digest(text) for text in (fingerprint(checkpoint), repr(recipe.as_json()) + layout, data))


def data_words(text: str, samples: int, length: int, seed: int, act_order: bool) -> str:
    """What calibration data is, without a tokenizer: a file's own bytes, or the name of what is no file."""
    if text != "builtin" and not text.startswith("hf:"):
        digest = blake2b(digest_size=16)
        try:
            with open(text, "rb") as handle:
                while piece := handle.read(PIECE):
                    digest.update(piece)
        except OSError as error:
            raise MlloadError(f"{text} cannot be read: {error.strerror}") from error
        text = f"{digest.hexdigest()} {text.endswith('.jsonl')}"
    return repr((text, samples, length, seed, act_order))


def refuse_other_rest(output: str, request: str) -> None:
    """--resume goes on with the very same run only. request: what is asked for now, or (shorter) its part from `asked`.

    Raises MlloadError where an interrupted run of something else lies there.
    """
    there = request_of_rest(output)
    if not there or there == request or ("/" not in request and there.startswith(f"{request}/")):
        return
    old, new = (text.partition("/")[0].split(".") for text in (there, request))
    other = [kind for kind, one, two in zip(KINDS, old, new, strict=False) if one != two]
    told = " and ".join(other) if len(old) == len(KINDS) and other else "another source, options or calibration data"
    raise MlloadError(
        f"{output}.partial was begun with {told}: it cannot be gone on with",
        hint="the same command as before, or remove that folder",
        exit_code=1,
    )


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
