"""Embedding and output head, where both are stored: the same bytes or not."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, Hint, MlloadError
from mlload.plan.model import Model
from mlload.plan.unknowns import Unknown
from mlload.validators.deep.again import first_difference
from mlload.validators.tables import head_and_embedding


def compared(model: Model, checkpoint: Checkpoint) -> Iterator[Finding | Unknown]:
    tables = head_and_embedding(model)
    one, other = tables.embedding, tables.head
    if one is None or other is None or (one.dtype, one.shape, one.nbytes) != (other.dtype, other.shape, other.nbytes):
        return
    if (one.file, one.offset) == (other.file, other.offset):  # two names of one storage, as pickles keep them
        return
    tied = tables.head_spec is not None and tables.head_spec.alias_of is not None
    try:
        differs = first_difference(checkpoint, one, other)
    except MlloadError as error:
        yield Unknown(f"whether {other.name} equals {one.name}", error.message, "")
        return
    numbers = {"bytes": other.nbytes, "embedding": one.name, "first_difference": differs}
    if differs is None:
        message = f"{other.name} equals {one.name}, all {other.nbytes:,} bytes: "
        message += "it is safe to drop" if tied else "with tie_word_embeddings true it could be dropped"
        yield Finding("DP020", "info", "right", other.name, message, numbers)
    elif tied:
        message = (
            f"tie_word_embeddings is true, and {other.name} differs from {one.name} (at byte {differs:,} first): vLLM "
            "uses the stored head, libraries that follow the config do not"
        )
        hint = Hint("set tie_word_embeddings to false in config.json")
        yield Finding("DP020", "warning", "right", other.name, message, numbers, (hint,))
