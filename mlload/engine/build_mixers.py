"""Mixers with a state (Mamba, gated delta nets, short convolutions) whose channels are cut: what they count by.

A depthwise convolution keeps its own channels, a norm over all of them joins the ranks'. States need no telling: the
classes make them of what they are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from mlload.engine.parts import Part
from mlload.plan.cutting import parts_of, runs, share
from mlload.quant.layers.norm import GatheredGatedNorm

if TYPE_CHECKING:
    from mlload.engine.build import Builder

# What the classes call the sizes of their runs of channels, and the numbers of their heads, by the role in the plan.
CHANNELS = {
    "x": ("intermediate_size", "d_ssm"),
    "k": ("key_dim",),
    "v": ("value_dim",),
    "B": ("groups_time_state_size",),
}
COUNTS = {"dt": ("num_heads",), "k": ("num_k_heads",), "v": ("num_v_heads",), "B": ("n_groups",)}
CONVOLVED = ("conv_dim",)
FILTERS = ("in_channels", "out_channels", "groups")


def divide_mixers(builder: Builder, parts: list[Part]) -> None:
    """Mixers whose projections are cut count their own channels, heads and groups."""
    for part in parts:
        spec = part.param.spec
        if part.at.size == 1 or spec.style != "column":
            continue
        if spec.op == "norm" and len(spec.shape) == 1:
            _gated_norm(builder, part)
        if spec.component != "mixer":
            continue
        path = part.target.rpartition(".")[0]
        mixer = builder.model.get_submodule(path if spec.op == "param" else path.rpartition(".")[0])
        here = {piece.role: share(piece, part.at.size, part.at.rank).allocated for piece in spec.parts}
        if spec.op == "conv":
            _recount(builder.model.get_submodule(path), FILTERS, spec.n, sum(here.values()))
            _recount(mixer, CONVOLVED, spec.n, sum(here.values()))
        elif spec.op == "linear":
            for piece in spec.parts:
                _recount(mixer, CHANNELS.get(piece.role, ()), piece.length, here[piece.role])
                _recount(mixer, COUNTS.get(piece.role, ()), piece.length // piece.unit, here[piece.role] // piece.unit)


def divide_buffers(builder: Builder, parts: list[Part]) -> None:
    """Buffers that lie over the outputs of a mixer's projection (Falcon-H1's multipliers), once they are computed."""
    for part in parts:
        spec = part.param.spec
        if part.at.size == 1 or spec.component != "mixer" or spec.op != "linear" or spec.style != "column":
            continue
        mixer = builder.model.get_submodule(part.target.rpartition(".")[0].rpartition(".")[0])
        held = [torch.arange(run.start, run.stop) for run in runs(spec, part.at.size, part.at.rank)]
        for name, buffer in mixer.named_buffers(recurse=False):
            if buffer.dim() and buffer.shape[-1] == spec.n and len(parts_of(spec)) > 1:
                mixer._buffers[name] = buffer[..., torch.cat(held).to(buffer.device)]


def _recount(module: nn.Module, names: tuple[str, ...], whole: int, here: int) -> None:
    for name in names:
        if getattr(module, name, None) == whole:
            setattr(module, name, here)


def _gated_norm(builder: Builder, part: Part) -> None:
    path = part.target.rpartition(".")[0]
    holder = builder.model.get_submodule(path.rpartition(".")[0])
    inner = builder.model.get_submodule(path)
    setattr(holder, path.rpartition(".")[2], GatheredGatedNorm(inner, part.at.rank, builder.group))
