"""Keys and values: full precision or fp8, in memory that is allocated once; sliding windows and states as the class
keeps them.

What a class hands over is what is kept: of MLA the latent vector and the rotary part of the key, where it expands them
after the cache, the expanded heads where it does so before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


class Scales:
    """Of one layer, from the checkpoint; 1.0 where it has none. A tensor of one, or one a head of this rank."""

    def __init__(self, k: Tensor | None = None, v: Tensor | None = None) -> None:
        self.k = _by_head(k)
        self.v = _by_head(v)


def _by_head(scale: Tensor | None) -> Tensor:
    return torch.ones(1, 1, 1, 1) if scale is None else scale.detach().float().reshape(1, -1, 1, 1)


class RoomLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer's keys and values [batch, heads, room, head_dim], written in place; attention sees what is filled."""

    def __init__(self, room: int, store: torch.dtype | None, scales: Scales) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = room
        self.store = store
        self.scales = scales
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.scales.k = self.scales.k.to(self.device)
        self.scales.v = self.scales.v.to(self.device)
        kept = self.store or self.dtype
        for name, states in (("keys", key_states), ("values", value_states)):
            shape = (*states.shape[:2], self.room, states.shape[-1])
            setattr(self, name, torch.zeros(shape, dtype=kept, device=self.device))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        start, stop = self.length, self.length + key_states.shape[-2]
        self.keys[:, :, start:stop] = self._packed(key_states, self.scales.k)
        self.values[:, :, start:stop] = self._packed(value_states, self.scales.v)
        self.length = stop
        keys, values = self.keys[:, :, :stop], self.values[:, :, :stop]
        return self._unpacked(keys, self.scales.k), self._unpacked(values, self.scales.v)

    def _packed(self, states: Tensor, scale: Tensor) -> Tensor:
        return states if self.store is None else to_fp8(states, scale, self.store)

    def _unpacked(self, kept: Tensor, scale: Tensor) -> Tensor:
        return kept if self.store is None else (kept.float() * scale).to(self.dtype)

    def get_seq_length(self) -> int:
        return self.length

    def reset(self) -> None:
        self.length = 0


class SlidingFp8Layer(DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """A window whose kept positions are fp8."""

    def __init__(self, sliding_window: int, store: torch.dtype, scales: Scales) -> None:
        super().__init__(sliding_window)
        self.store = store
        self.scales = scales

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        found = []
        first = not self.is_initialized
        if first:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        for name, states, scale in (("keys", key_states, self.scales.k), ("values", value_states, self.scales.v)):
            packed = to_fp8(states, scale, self.store).view(torch.uint8)
            whole = packed if first else torch.cat([getattr(self, name).view(torch.uint8), packed], -2)
            kept = whole[:, :, -self.sliding_window + 1 :].contiguous()
            setattr(self, name, kept.view(self.store))
            found.append((whole.view(self.store).float() * scale).to(states.dtype))
        return found[0], found[1]


def to_fp8(states: Tensor, scale: Tensor, store: torch.dtype) -> Tensor:
    """Saturating, as engines store it."""
    largest = LARGEST[store]
    return (states.float() / scale).clamp(-largest, largest).to(store)


def new_cache(config: Any, room: int, store: torch.dtype | None, scales: Mapping[int, Scales]) -> DynamicCache:
    """An empty cache for sequences of up to `room` tokens. store: an fp8 dtype, None for the model's own."""
    cache = DynamicCache(config=config)
    for number, layer in enumerate(cache.layers):
        mine = scales.get(number) or Scales()
        if type(layer) is DynamicLayer:
            cache.layers[number] = RoomLayer(room, store, mine)
        elif type(layer) is DynamicSlidingWindowLayer and store is not None:
            cache.layers[number] = SlidingFp8Layer(layer.sliding_window, store, mine)
    return cache


def cache_bytes(cache: DynamicCache) -> int:
    """Bytes of the storages that a cache holds."""
    seen: dict[int, int] = {}
    for layer in cache.layers:
        for value in vars(layer).values():
            for tensor in (*value.values(),) if isinstance(value, dict) else (value,):
                if isinstance(tensor, Tensor) and tensor.dim() > 2 and tensor.numel() > 1:
                    storage = tensor.untyped_storage()
                    seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
