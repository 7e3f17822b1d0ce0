"""The ranks of a deployment, and which coordinates each of them has."""

from __future__ import annotations

from typing import NamedTuple


class Mesh(NamedTuple):
    """tp: tensor-parallel size; pp: pipeline stages; ep: whole experts per rank instead of slices of each;
    dp: data-parallel replicas, across which experts (and only they) are spread.

    partition: layers of each stage when the user fixes them, else None (the engine's own split)
    """

    tp: int = 1
    pp: int = 1
    ep: bool = False
    dp: int = 1
    partition: tuple[int, ...] | None = None

    @property
    def ranks(self) -> range:
        """Ranks of one replica: rank = pp_rank * tp + tp_rank."""
        return range(self.tp * self.pp)

    def tp_rank(self, rank: int) -> int:
        return rank % self.tp

    def pp_rank(self, rank: int) -> int:
        return rank // self.tp

    @property
    def moe_size(self) -> int:
        """Ranks that share one layer's experts: with ep they divide the experts, without it each expert."""
        return self.tp * self.dp

    def node(self, rank: int, nodes: int) -> int:
        """The machine of a rank: all ranks of all replicas are dealt in contiguous blocks (vLLM's --nnodes)."""
        return min(rank // max(1, self.tp * self.pp * self.dp // nodes), nodes - 1)

    def label(self) -> str:
        """How a table calls it: "tp 8 pp 2 ep"."""
        words = [f"tp {self.tp}"]
        if self.pp > 1:
            words.append(f"pp {self.pp}")
        if self.ep:
            words.append("ep")
        if self.dp > 1:
            words.append(f"dp {self.dp}")
        return " ".join(words)


def experts_of(count: int, size: int, rank: int) -> range:
    """The experts that one rank of an expert-parallel group holds.

    Where the count does not divide, the first ranks hold one more (vLLM
    fused_moe/expert_map_manager.py:66, linear placement).
    """
    base, spare = divmod(count, size)
    start = rank * base + min(rank, spare)
    return range(start, start + base + (1 if rank < spare else 0))
