"""Layers cut over ranks against the whole matrix: columns, rows, a vocabulary, a norm over all heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlload.plan.params import Style
from mlload.quant.layers.embedding import VocabParallelEmbedding
from mlload.quant.layers.group import Group
from mlload.quant.layers.linear import ParallelLinear, ParallelLMHead
from mlload.quant.layers.method import StoredTensor, UnquantizedMethod
from mlload.quant.layers.norm import GatheredNorm
from tests.engine.ranks import ThreadGroup, on_ranks

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(12, 8, generator=GENERATOR)
BIAS = torch.randn(12, generator=GENERATOR)
X = torch.randn(3, 8, generator=GENERATOR)


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def linear(style: Style, weight: Tensor, bias: Tensor | None, group: Group | ThreadGroup) -> ParallelLinear:
    n, k = weight.shape
    layer = ParallelLinear("layer", n, k, style, UnquantizedMethod(torch.float32), group)  # type: ignore[arg-type]
    stored = {"weight": StoredTensor((n, k), torch.float32)}
    if bias is not None:
        stored["bias"] = StoredTensor(tuple(bias.shape), torch.float32)
    layer.create_weights(stored, allocate)
    layer.stored["weight"].data.copy_(weight)
    if bias is not None:
        layer.stored["bias"].data.copy_(bias)
    layer.process_weights_after_loading()
    return layer


def column(rank: int, group: ThreadGroup) -> Tensor:
    mine = slice(rank * 6, rank * 6 + 6)
    return group.join(linear("column", WEIGHT[mine], BIAS[mine], group)(X))


def row(rank: int, group: ThreadGroup) -> Tensor:
    mine = slice(rank * 4, rank * 4 + 4)
    return torch.as_tensor(linear("row", WEIGHT[:, mine], BIAS, group)(X[:, mine]))


@pytest.mark.parametrize("work", [column, row])
def test_two_ranks_are_the_whole_linear(work: Callable[[int, ThreadGroup], Tensor]) -> None:
    for have in on_ranks(2, work):
        assert torch.allclose(have, F.linear(X, WEIGHT, BIAS), atol=1e-6)


def test_a_replicated_layer_sends_nothing() -> None:
    layer = linear("replicated", WEIGHT, None, Group(0, 2))
    assert torch.equal(layer(X), F.linear(X, WEIGHT))


def test_a_head_drops_the_padding_of_its_vocabulary() -> None:
    """11 rows on 2 ranks: 6 and 5, of which the last rank allocates 6."""

    def work(rank: int, group: ThreadGroup) -> Tensor:
        head = ParallelLMHead("head", 6, 8, 11, UnquantizedMethod(torch.float32), group)  # type: ignore[arg-type]
        head.create_weights({"weight": StoredTensor((6, 8), torch.float32)}, allocate)
        rows = WEIGHT[rank * 6 : min(rank * 6 + 6, 11)]
        head.stored["weight"].data[: len(rows)] = rows
        return torch.as_tensor(head(X))

    for have in on_ranks(2, work):
        assert torch.allclose(have, F.linear(X, WEIGHT[:11]), atol=1e-6)


def test_ids_of_other_ranks_look_up_nothing() -> None:
    ids = torch.tensor([[0, 5, 6, 10]])

    def work(rank: int, group: ThreadGroup) -> Tensor:
        rows = (rank * 6, min(rank * 6 + 6, 11))
        table = VocabParallelEmbedding(nn.Embedding(11, 8), rows, 8, torch.float32, group=group)  # type: ignore[arg-type]
        table.create_weights({"weight": StoredTensor((6, 8), torch.float32)}, allocate)
        table.weight.data[: rows[1] - rows[0]] = WEIGHT[rows[0] : rows[1]]
        return torch.as_tensor(table(ids))

    for have in on_ranks(2, work):
        assert torch.equal(have, WEIGHT[ids])


@pytest.mark.parametrize(("ranks", "share", "copies"), [(2, 4, 1), (4, 4, 2)])
def test_a_norm_over_all_heads(ranks: int, share: int, copies: int) -> None:
    """Two heads of 4; on four ranks each is held by two."""
    norm = nn.RMSNorm(8)
    norm.weight.data.copy_(torch.arange(8.0))
    want = norm(X)

    def work(rank: int, group: ThreadGroup) -> Tensor:
        start = rank // copies * share
        with torch.no_grad():
            layer = GatheredNorm(norm, share, copies, group)  # type: ignore[arg-type]
            return torch.as_tensor(layer(X[:, start : start + share]))

    for rank, have in enumerate(on_ranks(ranks, work)):
        start = rank // copies * share
        assert torch.allclose(have, want[:, start : start + share])
