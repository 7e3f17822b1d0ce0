"""`NativeEngine`: one rank of a model, loaded by our loaders into our layers, run by its transformers class.

A measuring harness, not a server: a batch is prefilled together and decoded together.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mlload.checkpoint.finding import MlloadError
from mlload.engine.build import Builder
from mlload.engine.cache import Scales, new_cache
from mlload.engine.memory import storage_bytes
from mlload.engine.parts import Built
from mlload.engine.towers import LAZY, WITH, has_towers, towers_only, without_towers
from mlload.engine.transforms import transform
from mlload.loader import Loaded, get_model_loader
from mlload.loader.auto import load_format_of
from mlload.plan.plan import Plan
from mlload.quant.formats.kv import kv_scale_of
from mlload.quant.layers.experts import QuantizedExperts
from mlload.quant.layers.group import ALONE, Group
from mlload.quant.layers.linear import ParallelLinear
from mlload.quant.layers.method import KernelUse
from mlload.quant.layers.plain_experts import PlainExperts

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
CPU = torch.device("cpu")
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
KV_STORES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


@dataclass
class NativeEngine:
    """plan, rank, group, device: where it runs. Steps in order: `build`, `load`, `repack`, then `prefill`, `decode`.

    towers: "load" them with the language model, "skip" them, or "lazy": load them when one is first called. `plan` is
    that of what is there."""

    plan: Plan
    rank: int = 0
    group: Group = ALONE
    device: torch.device = CPU
    towers: str = WITH

    def __post_init__(self) -> None:
        self.whole = self.plan
        if self.towers != WITH and has_towers(self.plan):
            self.plan = without_towers(self.plan)
        self.dtype = DTYPES[self.plan.dtype]
        self.built: Built | None = None
        self.loaded: Loaded | None = None

    @property
    def model(self) -> Any:
        assert self.built is not None, "build comes first"
        return self.built.model

    def build(self) -> None:
        """The class with our layers, allocated and empty. Raises MlloadError for what the engine cannot run."""
        refuse(self.plan)
        self._builder = Builder(self.plan, self.rank, self.device, self.dtype, self.group)
        if self.towers == LAZY:
            self._builder.wake = self.load_towers
        self.built = self._builder.build()
        # The name of the argument changed between the versions of transformers that are supported.
        taken = inspect.signature(type(self.model).forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in taken), "past_key_values")

    def load(self, load_format: str = "auto", tick: Callable[[int], None] | None = None) -> Loaded:
        """Fill every parameter exactly once."""
        assert self.built is not None, "build comes first"
        self._load_format = load_format
        self.loaded = self._fill(self.plan, self.built, tick)
        return self.loaded

    def _fill(self, plan: Plan, built: Built, tick: Callable[[int], None] | None = None) -> Loaded:
        loader = get_model_loader(self._load_format)
        loaded = loader.load(plan, self.rank, built.destinations, tick)
        if loader.reads_weights:
            for name, steps in built.transforms.items():
                view = built.destinations[name].view()
                view.copy_(transform(view, steps))
        return loaded

    def load_towers(self) -> Loaded | None:
        """Build, load and repack the towers that were left for later; None where there are none, or they are there."""
        if self.plan is self.whole or self.built is None:
            return None
        plan = towers_only(self.whole)
        built = self._builder.build_towers(plan)
        loaded = self._fill(plan, built)
        _repack(built)
        self.plan = self.whole
        self.built.add(built)
        return loaded

    def repack(self) -> None:
        """Each quantized layer into the form that its kernel reads; a format that does not match its files fails."""
        assert self.built is not None, "build comes first"
        _repack(self.built)

    def start(self, load_format: str = "auto") -> NativeEngine:
        """Build, load and repack."""
        self.build()
        self.load(load_format)
        self.repack()
        return self

    def predicted_bytes(self) -> int:
        """What the plan says of the same storages."""
        assert self.built is not None
        return self.plan.ranks()[self.rank].weight_bytes - self.built.texts

    def weight_bytes(self) -> int:
        """Of the storages that are filled from the checkpoint, as allocated."""
        assert self.built is not None
        apart = self.built.beside.keys() | self.built.uncounted
        places = self.built.destinations
        buffers = {places[name].param.data_ptr() for name in self.built.uncounted}
        filled = (one.param for name, one in places.items() if name not in apart)
        every = (*self.model.parameters(), *filled)
        return storage_bytes(tensor for tensor in every if tensor.data_ptr() not in buffers)

    def kernels(self) -> dict[str, set[KernelUse]]:
        """Kernels by kind of layer ("q_proj", "experts")."""
        assert self.built is not None
        found: dict[str, set[KernelUse]] = {}
        for path, layer in self.built.replaced.items():
            uses: set[KernelUse] = set()
            if isinstance(layer, ParallelLinear) and layer.method.use is not None:
                uses = {layer.method.use}
            elif isinstance(layer, QuantizedExperts | PlainExperts):
                uses = layer.uses
            if uses:
                found.setdefault(path.rpartition(".")[2], set()).update(uses)
        return found

    def cache(self, room: int) -> Any:
        """An empty cache for up to `room` tokens a sequence, in the plan's kv_dtype."""
        return new_cache(self.model.config, room, KV_STORES.get(self.plan.kv_dtype), self._scales())

    def _scales(self) -> dict[int, Scales]:
        assert self.built is not None
        found: dict[int, Scales] = {}
        for name, tensor in self.built.beside.items():
            where = kv_scale_of(name)
            numbers = [int(word) for word in name.split(".") if word.isdigit()]
            if where is None or not numbers:
                continue
            scales = found.setdefault(numbers[0], Scales())
            for which in ("k", "v") if where[1] == "kv" else (where[1],):
                if which in ("k", "v"):
                    setattr(scales, which, self._own_heads(tensor.data))
        return found

    def _own_heads(self, scale: Tensor) -> Tensor:
        """A scale for each head of the model, cut to the heads of this rank."""
        if scale.numel() <= 1 or self.group.size == 1:
            return scale.float().reshape(1, -1, 1, 1)
        count = scale.numel()
        size = self.group.size
        if size >= count:
            first, held = self.group.rank * count // size, 1
        else:
            held = count // size
            first = self.group.rank * held
        return scale.float().reshape(-1)[first : first + held].reshape(1, -1, 1, 1)

    @torch.inference_mode()
    def step(self, ids: Tensor, cache: Any, *, every: bool = False) -> Tensor:
        """ids [batch, n] after what the cache holds -> logits of the last position [batch, vocab] (every: of all)."""
        arguments: dict[str, Any] = {} if every else {"logits_to_keep": 1}
        arguments[self._cache_name] = cache
        out = self.model(input_ids=ids.to(self.device), use_cache=True, **arguments)
        logits: Tensor = out.logits
        return logits if every else logits[:, -1]

    def logits(self, ids: Tensor) -> Tensor:
        """Of all positions [batch, n, vocab], from an empty cache."""
        return self.step(ids, self.cache(ids.shape[1]), every=True)

    def greedy(self, ids: Tensor, count: int) -> Tensor:
        """The `count` most likely tokens after ids [1, n], one after another."""
        cache = self.cache(ids.shape[1] + count)
        found: list[Tensor] = []
        following = ids
        for _ in range(count):
            following = self.step(following, cache).argmax(-1, keepdim=True)
            found.append(following)
        return torch.cat(found, -1)

    def synchronize(self) -> float:
        """The time once everything asked for is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _repack(built: Built) -> None:
    for layer in built.replaced.values():
        if isinstance(layer, ParallelLinear | QuantizedExperts | PlainExperts):
            try:
                layer.process_weights_after_loading()
            except (ValueError, IndexError, KeyError, RuntimeError, AssertionError) as error:
                path = getattr(layer, "path", "experts")
                raise MlloadError(
                    f"{path} cannot be repacked, its tensors are not what its format says: {error}", exit_code=1
                ) from error


def refuse(plan: Plan) -> None:
    """Raises MlloadError, with validate's own sentence, for a checkpoint that does not match its format or the size."""
    # A config that cannot be read names no model type: that it cannot is the reason, not that the type is unknown.
    unread = () if plan.model.config.model_type else plan.model.checkpoint.problems
    for finding in (*unread, *plan.model.findings, *plan.violations):
        if finding.severity == "error":
            told = not finding.where or finding in unread
            said = finding.message if told else f"{finding.where}: {finding.message}"
            way = finding.hints[0] if finding.hints else None
            raise MlloadError(said, hint=(way.command or way.what) if way else None, exit_code=1)
    if plan.mesh.ep:
        total = max((param.expert_total for param in plan.view.params), default=0)
        if total < plan.mesh.moe_size:
            raise MlloadError(
                f"expert parallelism over {plan.mesh.moe_size} ranks, and the model has {total} routed experts",
                exit_code=1,
            )


__all__ = ["NativeEngine", "load_format_of", "refuse"]
