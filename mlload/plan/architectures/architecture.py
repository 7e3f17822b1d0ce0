"""`Architecture`: what a model class expects of a checkpoint, as functions of its config."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mlload.checkpoint.config import ConfigView
from mlload.plan.architectures.attention import AttentionSpec
from mlload.plan.params import ParamSpec

Params = Callable[[ConfigView], Iterable[ParamSpec]]
Attention = Callable[[ConfigView], tuple[AttentionSpec, ...]]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model type.

    model_type: as in config.json
    build:      config -> its modules, in the order of the network
    attend:     config -> its memory, by groups of layers
    alternates: (prefix on disk, our prefix): other spellings that published checkpoints use for the same
                modules, tried when a module is missing under its own name; "" is the empty prefix
    variants:   other layouts of the same model in published checkpoints (experts stacked, transposed), each the
                modules of the whole; the one whose names and shapes fit the files best is meant
    nested:     its language model is whatever type the nested config names, with that type's table
    inferred:   guessed from tensor names; verdicts that hang on it are not certain
    """

    model_type: str
    build: Params
    attend: Attention
    alternates: tuple[tuple[str, str], ...] = ()
    variants: tuple[Params, ...] = ()
    nested: bool = False
    inferred: bool = False

    def params(self, config: ConfigView) -> tuple[ParamSpec, ...]:
        """Modules named as saved on disk; tied heads are there with `alias_of`."""
        return tuple(self.build(config))

    def attention(self, config: ConfigView) -> tuple[AttentionSpec, ...]:
        return self.attend(config)
