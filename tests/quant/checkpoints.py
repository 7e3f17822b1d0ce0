"""Checkpoints made of names, dtypes and shapes alone: what detection looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.tensors import shape, tensor_name
from mlload.quant.spec import TensorSpec

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def checkpoint(
    config: Mapping[str, Any] | None = None,
    tensors: Tensors | None = None,
    *,
    side_files: Mapping[str, Any] | None = None,
    container: str = "safetensors",
) -> Checkpoint:
    refs = {name: TensorRef(name, dtype, dims, 0, 0, 0) for name, (dtype, dims) in (tensors or {}).items()}
    return Checkpoint(
        label="test",
        source=cast(Source, None),
        format=container if refs else "none",
        tensors=refs,
        stray={},
        config=dict(config or {}),
        json_files=dict(side_files or {}),
        metadata={},
        index=None,
        files=(),
        fingerprint="",
        problems=(),
    )


def linear(path: str, specs: tuple[TensorSpec, ...], n: int, k: int, scale_dtype: str = "F16") -> Tensors:
    """The tensors that a spec asks for."""
    return {tensor_name(path, s.suffix): (s.dtype or scale_dtype, shape(s, n, k)) for s in specs}


def refs(tensors: Tensors) -> dict[str, TensorRef]:
    return {name: TensorRef(name, dtype, dims, 0, 0, 0) for name, (dtype, dims) in tensors.items()}


def codes(findings: Any) -> list[str]:
    return [finding.code for finding in findings]
