"""Names on disk as the parameters of the transformers class that is built, by transformers' own renamings."""

from __future__ import annotations

from typing import Any

from torch import nn

from mlload.plan.model import Model
from mlload.plan.params import ParamSpec


class Names:
    """model: a transformers class on the meta device, before anything in it is replaced."""

    def __init__(self, model: Any) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        transforms = get_model_conversion_mapping(model)
        self._renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
        self._converters = [one for one in transforms if isinstance(one, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._state = model.state_dict()

    def parameter(self, tensor: str) -> str | None:
        """The parameter (or buffer) that a tensor goes to, wholly or in part; None where the class has none."""
        from transformers.core_model_loading import rename_source_key

        for key in (tensor, "model." + tensor):
            name, _ = rename_source_key(key, self._renamings, self._converters, self._prefix, self._state)
            if name in self._state:
                return str(name)
        return None

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._state[name].shape)


def folder_modules(model: Model) -> dict[str, ParamSpec]:
    """Modules of a GGUF -> the same modules as a folder holds them; empty for folders."""
    if model.checkpoint.format != "gguf":
        return {}
    from mlload.checkpoint.gguf_names import gguf_module
    from mlload.plan.architectures import find

    architecture = find(model.config)
    if architecture is None:
        return {}
    model_type = architecture.model_type
    return {gguf_module(spec.module, model_type) or spec.module: spec for spec in architecture.params(model.config)}


def parent_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """("a.b.weight") -> (module a.b, "weight")."""
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last
