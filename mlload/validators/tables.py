"""The two tables at the ends of a language model: its embedding and its output head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mlload.checkpoint.tensor import TensorRef
from mlload.plan.params import ParamSpec

if TYPE_CHECKING:
    from mlload.plan.model import Model


class Tables(NamedTuple):
    """embedding, head: as stored, None where no file holds them; *_spec: as the architecture expects them."""

    embedding_spec: ParamSpec | None
    head_spec: ParamSpec | None
    embedding: TensorRef | None
    head: TensorRef | None


def head_and_embedding(model: Model) -> Tables:
    """Finds both in the files of a checkpoint."""
    specs: dict[str, ParamSpec | None] = {"embedding": None, "head": None}
    for param in model.params:
        spec = param.spec
        if spec.draft or spec.mesh != "text" or spec.layers is not None or "K" not in spec.axes:
            continue
        if spec.kind == "ParallelLMHead":
            specs["head"] = spec
        elif spec.kind == "VocabParallelEmbedding" and specs["embedding"] is None:
            specs["embedding"] = spec
    tensors = model.checkpoint.tensors

    def stored(spec: ParamSpec | None) -> TensorRef | None:
        if spec is None:
            return None
        return next(
            (ref for s in (".weight", ".qweight", ".weight_packed") if (ref := tensors.get(spec.module + s))), None
        )

    return Tables(specs["embedding"], specs["head"], stored(specs["embedding"]), stored(specs["head"]))


def vocabulary_rows(model: Model) -> int:
    """Rows of the embedding: as stored where that is plain, else as the model class makes them; 0 = unknown."""
    tables = head_and_embedding(model)
    if tables.embedding is not None and len(tables.embedding.shape) == 2 and tables.embedding.name.endswith(".weight"):
        return tables.embedding.shape[0]
    return max(model.config.vocab, tables.embedding_spec.n if tables.embedding_spec is not None else 0)
