"""Which class loads which `load_format`: ours, those registered by a program, and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TypeVar

from mlload.checkpoint.finding import MlloadError
from mlload.loader.base import BaseModelLoader

GROUP = "mlload.loaders"

# load_format -> "module:Class"; imported when asked for.
OURS = {
    "auto": "mlload.loader.auto:AutoLoader",
    "safetensors": "mlload.loader.safetensors:SafetensorsLoader",
    "pt": "mlload.loader.torch_files:TorchLoader",
    "gguf": "mlload.loader.gguf:GGUFLoader",
    "dummy": "mlload.loader.dummy:DummyLoader",
    "mlload_state": "mlload.loader.mlload_state:MlloadStateLoader",
    "sharded_state": "mlload.loader.sharded_state:ShardedStateLoader",
    "tensorizer": "mlload.loader.tensorizer:TensorizerLoader",
    "runai_streamer": "mlload.loader.runai_streamer:RunaiStreamerLoader",
    "fastsafetensors": "mlload.loader.fastsafetensors:FastSafetensorsLoader",
    "instanttensor": "mlload.loader.instanttensor:InstantTensorLoader",
}

_registered: dict[str, type[BaseModelLoader]] = {}
L = TypeVar("L", bound=type[BaseModelLoader])


def register_model_loader(load_format: str) -> Callable[[L], L]:
    """Decorator: the class loads `load_format`. A name that is taken is an error."""

    def register(loader: L) -> L:
        if load_format in OURS or _registered.get(load_format, loader) is not loader:
            raise ValueError(f"load_format {load_format!r} has a loader already")
        _registered[load_format] = loader
        return loader

    return register


def load_formats() -> tuple[str, ...]:
    """Every name that `get_model_loader` knows, ours first."""
    return (*OURS, *sorted({*_registered, *(point.name for point in entry_points(group=GROUP))} - set(OURS)))


def get_model_loader(load_format: str) -> BaseModelLoader:
    """A loader for `load_format`. Raises MlloadError, with the names there are, for an unknown one."""
    if load_format in OURS:
        module, _, name = OURS[load_format].partition(":")
        loader: type[BaseModelLoader] = getattr(import_module(module), name)
        return loader()
    if load_format in _registered:
        return _registered[load_format]()
    for point in entry_points(group=GROUP):
        if point.name == load_format:
            found = point.load()
            if not (isinstance(found, type) and issubclass(found, BaseModelLoader)):
                raise MlloadError(f"the entry point {point.value} for load_format {load_format!r} is no model loader")
            return found()
    raise MlloadError(f"no loader for load_format {load_format!r}; there are {', '.join(load_formats())}")
