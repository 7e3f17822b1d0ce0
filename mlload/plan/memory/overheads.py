"""What an engine needs beside weights and cache: activations, CUDA graphs, and memory that torch does not see.

Each is a range, because nobody knows it before the engine has run: `docs/memory.md` has the formulas, where
their numbers come from, and how far measured ones lie apart.
"""

from __future__ import annotations

from typing import NamedTuple

from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.memory.settings import GIB, Settings
from mlload.plan.plan import Plan

MIB = 2**20
FLOAT32 = 4
# Bytes a layer and graph: 0.21 GiB for 35 graphs of 16 layers were logged, 26 MiB a graph elsewhere.
GRAPH_LAYER = (0.1 * MIB, 0.8 * MIB)
# Outside torch's allocator: libraries alone on one rank (0.16 to 0.20 GiB logged), with NCCL's buffers on several.
ALONE, TOGETHER = (0.1 * GIB, 0.5 * GIB), (0.2 * GIB, 2.0 * GIB)
# Buffers that attention and MoE kernels keep between steps.
WORKSPACE = (0.0, 0.5 * GIB)
# Image patches that become one token of the language model, at most, and what a tower keeps of each beside its MLP.
PATCHES_PER_TOKEN, TOWER_WIDTHS = 4, 4


class Span(NamedTuple):
    """Bytes, at least and at most."""

    low: int
    high: int

    def __add__(self, other: object) -> Span:
        if not isinstance(other, Span):
            return NotImplemented
        return Span(self.low + other.low, self.high + other.high)


def span(low: float, high: float) -> Span:
    return Span(int(low), int(high))


def activations(plan: Plan, settings: Settings) -> Span:
    """The peak of one step of `max_num_batched_tokens`, and of sampling for `max_num_seqs` sequences.

    Low: the larger of the two, each tensor once. High: half as much again for the step (temporaries that overlap),
    the sampler's sort and probabilities beside it, kept workspaces, and the towers' own step.
    """
    config, tokens = plan.model.config, settings.max_num_batched_tokens
    width = DTYPE_BITS[plan.dtype] // 8
    narrow, wide = (tokens * values * width for values in widest_layer(plan))
    sampling = (0, 0)
    if not plan.view.pooling:
        logits = min(settings.max_num_seqs, tokens) * config.size("vocab_size")
        # Model dtype and float32; then a sorted copy, its int64 order, and probabilities.
        sampling = (logits * (width + FLOAT32), logits * (width + FLOAT32 + FLOAT32 + 8 + FLOAT32))
    low = max(narrow, sampling[0])
    high = 1.5 * wide + sampling[1] + WORKSPACE[1]
    return span(low, high + _tower(plan, tokens, width))


def widest_layer(plan: Plan) -> tuple[int, int]:
    """Values a token that are alive at once in the widest layer of a rank: (evenly spread experts, all on one rank)."""
    config, tp = plan.model.config, plan.mesh.tp
    hidden = config.hidden
    heads = config.heads * config.head_dim if config.heads else hidden
    kv = config.kv_heads * config.head_dim
    attention = (2 * heads + 2 * kv) // tp
    dense = 3 * config.size("intermediate_size") // tp
    base = 3 * hidden
    experts = config.experts
    if not experts:
        wide = base + max(attention, dense)
        return wide, wide
    chosen = max(config.size("num_experts_per_tok"), 1)
    inner = config.size("moe_intermediate_size") or config.size("intermediate_size")
    ranks = plan.mesh.moe_size
    each = 3 * inner // (1 if plan.mesh.ep else ranks) + hidden
    spread = chosen * each // (ranks if plan.mesh.ep else 1)
    return base + max(attention, dense, spread), base + max(attention, dense, chosen * each)


def _tower(plan: Plan, tokens: int, width: int) -> int:
    """A tower's own step over as many patches as a batch of tokens may stand for; 0 without a tower."""
    raw = plan.model.config.raw.get("vision_config")
    if not isinstance(raw, dict) or not any(param.spec.mesh == "tower" for param in plan.model.params):
        return 0
    tower = ConfigView(raw)
    inner = tower.size("intermediate_size") or 4 * tower.hidden
    share = plan.mesh.tp if plan.view.tower_tp else 1
    return PATCHES_PER_TOKEN * tokens * (TOWER_WIDTHS * tower.hidden + inner // share) * width


def graphs(plan: Plan, settings: Settings, layers: int) -> Span:
    """CUDA graphs: one for mixed batches and one for decoding a size, each with a part for every layer."""
    if settings.enforce_eager:
        return Span(0, 0)
    blackwell = plan.capability is not None and plan.capability[0] == 10
    largest = min(2 * settings.max_num_seqs, 1024 if blackwell else 512, settings.max_num_batched_tokens)
    sizes = [size for size in (1, 2, 4) if size <= largest]
    sizes += [*range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
    count = len(sizes) + sum(size <= settings.max_num_seqs for size in sizes)
    return span(count * layers * GRAPH_LAYER[0], count * layers * GRAPH_LAYER[1])


def outside_torch(plan: Plan) -> Span:
    """Libraries and communication buffers."""
    return span(*(ALONE if plan.mesh.tp * plan.mesh.pp * plan.mesh.dp == 1 else TOGETHER))


def buffers(plan: Plan) -> int:
    """Rotary tables: cos and sin of every position, whole on every rank, in the model's dtype, one a distinct rope."""
    config = plan.model.config
    groups = plan.model.architecture.attention(config)
    if not any(group.kind in ("full", "sliding", "chunked", "mla") for group in groups) or _placed_otherwise(plan):
        return 0
    rotated = (
        config.size("qk_rope_head_dim") or config.size("rotary_dim") or int(config.head_dim * _rotated_share(config))
    )
    distinct = 2 if config.get("rope_local_base_freq") and len({group.kind for group in groups}) > 1 else 1
    return distinct * config.size("max_position_embeddings") * rotated * DTYPE_BITS[plan.dtype] // 8


def _placed_otherwise(plan: Plan) -> bool:
    """Positions are learned (a table of the checkpoint) or a bias by distance (ALiBi)."""
    config = plan.model.config
    specs = (param.spec for param in plan.model.params if param.spec.mesh == "text")
    learned = any(spec.module.endswith(("wpe", "embed_positions", "position_embeddings")) for spec in specs)
    return learned or config.flag("alibi") or config.text_type in ("bloom", "mpt")


def _rotated_share(config: ConfigView) -> float:
    """Share of each head that is rotated."""
    value = config.get("partial_rotary_factor")
    if value is None and isinstance(rope := config.given("rope_parameters"), dict):
        value = rope.get("partial_rotary_factor")
    return float(value) if isinstance(value, (int, float)) and 0 < value <= 1 else 1.0
