"""Loaders by load_format: a plan becomes a live model, each rank reading only its own bytes.

`get_model_loader(load_format)` finds one; `register_model_loader` and the entry points `mlload.loaders` add others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlload.loader.base import BaseModelLoader, Loaded, RankTensor
    from mlload.loader.registry import get_model_loader, load_formats, register_model_loader

__all__ = [
    "BaseModelLoader",
    "Loaded",
    "RankTensor",
    "get_model_loader",
    "load_formats",
    "register_model_loader",
]


def __getattr__(name: str) -> Any:
    if name in ("BaseModelLoader", "Loaded", "RankTensor"):
        from mlload.loader import base

        return getattr(base, name)
    if name in __all__:
        from mlload.loader import registry

        return getattr(registry, name)
    raise AttributeError(name)
