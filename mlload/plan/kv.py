"""What a sequence costs: KV-cache bytes per token and fixed state, by attention class, on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.architectures import AttentionSpec
from mlload.plan.cutting import share
from mlload.plan.mesh import Mesh
from mlload.plan.params import Part
from mlload.plan.stages import stage_layers

# Engine spellings of --kv-cache-dtype -> bytes of one value.
KV_DTYPES: dict[str, str] = {
    "fp8": "F8_E4M3",
    "fp8_e4m3": "F8_E4M3",
    "fp8_e5m2": "F8_E5M2",
    "fp8_inc": "F8_E4M3",
    "fp8_ds_mla": "F8_E4M3",
    "bfloat16": "BF16",
    "float16": "F16",
    "half": "F16",
    "float32": "F32",
}


# Rotary values of a sparse MLA row.
SPARSE_ROPE = 64


class KVClass(NamedTuple):
    """One attention class on one rank.

    kind:            as in `AttentionSpec`
    layers:          how many of its layers own a cache here
    bytes_per_token: over those layers; 0 for recurrent ones
    state_bytes:     fixed, per sequence, over those layers
    window:          tokens that a sliding or chunked layer ever looks at, None for all
    """

    kind: str
    layers: int
    bytes_per_token: int
    state_bytes: int
    window: int | None


def kv_classes(
    attention: Sequence[AttentionSpec],
    mesh: Mesh,
    rank: int,
    total_layers: int,
    *,
    dtype: str,
    kv_dtype: str,
    ssm_dtype: str | None = None,
) -> tuple[KVClass, ...]:
    """The classes of one rank. dtype is the model's, kv_dtype that of keys and values, ssm_dtype that of recurrent
    states where the engine has a setting for it, None for the model's (safetensors names)."""
    kept = {"model": dtype, "ssm": ssm_dtype or dtype}
    mine = stage_layers(total_layers, mesh, mesh.pp_rank(rank))
    found: list[KVClass] = []
    for group in attention:
        shared = frozenset(group.shares)
        count = sum(1 for layer in group.layers if layer in mine and layer not in shared)
        if count and group.kind != "none":
            found.append(
                KVClass(
                    group.kind,
                    count,
                    count * token_bytes(group, mesh.tp, kv_dtype),
                    count * state_bytes(group, mesh.tp, mesh.tp_rank(rank), kept),
                    group.window,
                )
            )
    return tuple(found)


def token_bytes(group: AttentionSpec, tp: int, kv_dtype: str) -> int:
    """Bytes of one position in one layer. KV heads are divided, or one is held by several ranks."""
    size = DTYPE_BITS[kv_dtype] // 8
    if group.kind in ("linear", "ssm"):
        return 0
    # An indexer keeps one byte a value, and a float32 scale for every 128 of them.
    index = group.index_dim + -(-group.index_dim // 128) * 4
    if group.kind == "mla":
        if size == 1 and index:
            # The sparse backend's eight-bit row (flashmla_sparse.py:79): latent bytes, a float32 scale for every
            # 128 of them, and the 64 rotary values in 16 bits.
            latent = group.latent - SPARSE_ROPE
            return latent + -(-latent // 128) * 4 + SPARSE_ROPE * 2 + index
        return group.latent * size + index
    heads = max(1, -(-group.kv_heads // tp))
    return heads * (group.head_dim + group.v_head_dim) * size + index


def state_bytes(group: AttentionSpec, tp: int, rank: int, kept: dict[str, str]) -> int:
    """Bytes of one sequence's states in one layer."""
    total = 0
    for state in group.states:
        held = sum(_held(part, tp, rank) for part in state.parts)
        total += held * state.rest * DTYPE_BITS[kept.get(state.dtype, state.dtype)] // 8
    return total


def _held(part: Part, tp: int, rank: int) -> int:
    held = share(part, tp, rank)
    return held.stop - held.start
