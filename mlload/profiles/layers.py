"""`EngineLayer`: one module of the engine's model as one rank holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLayer:
    """One module on one rank.

    kind:       the engine's class: "QKVParallelLinear", "RowParallelLinear", "RoutedExperts", ...
    name:       last part of the engine's module path: "qkv_proj"
    parts:      out_features of each fused part on this rank. Experts: (intermediate, intermediate) for
                gate and up of one expert, (intermediate,) where there is no gate
    k:          in_features on this rank. Experts: the hidden size
    parts_full: `parts` over all ranks
    k_full:     `k` over all ranks. Experts: the hidden size
    tp:         size of the group that divides this layer, 1 for a replicated one. Experts: the
                tensor-parallel size of the stage, expert parallel or not
    bias:       elements of its bias on this rank, 0 for none. Experts: 1 when the experts have biases
    experts:    experts on this rank, 0 for a dense layer
    experts_all: experts over all ranks
    ep:         expert-parallel size, 1 where experts are cut by tp
    dp:         data-parallel size
    activation: of the experts, the engine's word: "silu", "gelu", "swigluoai", "relu2_no_mul", ...
    loose_blocks: the class lets fp8 blocks straddle its fused parts
    """

    kind: str
    name: str
    parts: tuple[int, ...]
    k: int
    parts_full: tuple[int, ...] = ()
    k_full: int = 0
    tp: int = 1
    bias: int = 0
    experts: int = 0
    experts_all: int = 0
    ep: int = 1
    dp: int = 1
    activation: str = "silu"
    loose_blocks: bool = False

    @property
    def n(self) -> int:
        """out_features on this rank, all parts."""
        return sum(self.parts)

    @property
    def n_full(self) -> int:
        return sum(self.parts_full) if self.parts_full else self.n

    @property
    def in_full(self) -> int:
        """in_features over all ranks."""
        return self.k_full or self.k

    @property
    def intermediate(self) -> int:
        """Of one expert, on this rank."""
        return self.parts[0]

    @property
    def gated(self) -> bool:
        return len(self.parts) > 1

    @property
    def moe_tp(self) -> int:
        """By how much each expert is cut: 1 under expert parallelism."""
        return 1 if self.ep > 1 else self.tp
