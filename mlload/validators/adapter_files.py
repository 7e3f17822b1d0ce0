"""What a LoRA adapter's files say: its settings, and the pair of matrices of every module.

Letters: r = rank; N = out_features, K = in_features of the base's module. A [r, K] comes first, B [N, r] second.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint

PREFIX = "base_model.model."
# Tensors that are no pair: PEFT saves whole tables beside an adapter when tokens were added.
BASE_TABLES = (".embed_tokens.base_layer.weight", ".lm_head.base_layer.weight")
PAIR = re.compile(r"(.+)\.lora_([AB])(?:\.[^.]+)?\.weight|(.+)\.lora_embedding_([AB])(?:\.[^.]+)?")
NUMBER = re.compile(r"\.(\d+)(?=\.)")


@dataclass(slots=True)
class Pair:
    """Shapes of one module's matrices, None where one is missing. `embedding`: of a table, whose A is [r, rows]."""

    a: tuple[int, ...] | None = None
    b: tuple[int, ...] | None = None
    embedding: bool = False


@dataclass(frozen=True, slots=True)
class Adapter:
    """label:   as typed
    config:     adapter_config.json
    pairs:      module of the base ("model.layers.0.self_attn.q_proj") -> its matrices
    other:      tensors that are none
    """

    label: str
    config: Mapping[str, Any]
    pairs: Mapping[str, Pair] = field(default_factory=dict)
    other: tuple[str, ...] = ()

    @property
    def rank(self) -> int | None:
        value = self.config.get("r")
        return value if type(value) is int else None

    @property
    def ranks(self) -> tuple[int, ...]:
        """r and the ranks of rank_pattern, as far as they are numbers."""
        pattern = self.config.get("rank_pattern")
        values = [self.config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
        return tuple(value for value in values if type(value) is int)

    def rank_of(self, module: str) -> int | None:
        """The rank of one module: rank_pattern's key is a regular expression for the end of its name. Keys that are
        plain names are compared; one that is a real expression makes the rank unknown."""
        pattern = self.config.get("rank_pattern")
        for key, value in pattern.items() if isinstance(pattern, dict) else ():
            if not re.fullmatch(r"[\w.]+", key):
                return None
            if (module == key or module.endswith("." + key)) and type(value) is int:
                return value
        return self.rank


def read_adapter(checkpoint: Checkpoint) -> Adapter:
    """The adapter that a folder holds; with no pairs where there are no tensors of any."""
    config = checkpoint.json_files.get("adapter_config.json")
    pairs: dict[str, Pair] = {}
    other = []
    for name, tensor in checkpoint.tensors.items():
        if name.endswith(BASE_TABLES):
            continue
        found = PAIR.fullmatch(name)
        if found is None:
            other.append(name)
            continue
        module = (found[1] or found[3]).removeprefix(PREFIX)
        pair = pairs.setdefault(module, Pair())
        pair.embedding = found[3] is not None
        if (found[2] or found[4]) == "A":
            pair.a = tensor.shape
        else:
            pair.b = tensor.shape
    return Adapter(checkpoint.label, config if isinstance(config, dict) else {}, pairs, tuple(other))


def folded(modules: Mapping[str, Any]) -> dict[str, list[str]]:
    """ "model.layers.{}.mlp.up_proj" -> the modules that differ from it in their numbers only."""
    families: dict[str, list[str]] = {}
    for module in modules:
        families.setdefault(NUMBER.sub(".{}", module + ".")[:-1], []).append(module)
    return families


def called(family: str, modules: list[str]) -> str:
    """ "model.layers.0-79.mlp.up_proj" for a family of modules."""
    spans = zip(*([int(n) for n in NUMBER.findall(module + ".")] for module in modules), strict=True)
    shown = [str(min(span)) if min(span) == max(span) else f"{min(span)}-{max(span)}" for span in map(list, spans)]
    return family.format(*shown) if family.count("{}") == len(shown) else modules[0]
