"""A device that is not there: tensors "on" it lie in ordinary memory, and every operation that mixes both is refused.

`with FarDevice() as far:` tensors made with `device=FAR`, moved there, or computed from ones that are there say that
they are on FAR. An operation on a far and a near tensor raises Mixed, as a GPU would have it, but for what torch allows
there too: numbers (no dims), copies from one to the other, and indices on the CPU. numpy of a far tensor raises.
What it cannot show is whether an operator exists on a GPU, and how fast or how exact it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

FAR = torch.device("xla")
CPU = torch.device("cpu")
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten.index_put_.default}
INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default}


class Mixed(RuntimeError):
    """Tensors of two devices in one operation."""


class Places:
    """Which storages are far. Weak references, so that no address is taken for another one's."""

    def __init__(self) -> None:
        self.far: dict[int, StorageWeakRef] = {}
        self.operations = 0

    def is_far(self, tensor: torch.Tensor) -> bool:
        if tensor.is_meta:
            return False
        found = self.far.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()  # type: ignore[no-untyped-call]

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            storage = tensor.untyped_storage()
            self.far[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return tensor


class Checked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operator: where its tensors are, and where its results are then."""

    def __init__(self, places: Places) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and not t.is_meta]
        far = [self.places.is_far(t) for t in tensors]
        if func in INDEXED and far[0]:
            indices = {id(t) for t in tree_flatten(args[1])[0] if isinstance(t, torch.Tensor)}
            near = [t for t, there in zip(tensors, far, strict=True) if not there and id(t) not in indices]
        else:
            near = [t for t, there in zip(tensors, far, strict=True) if not there]
        if any(far) and func not in COPIES and any(t.dim() for t in near):
            raise Mixed(f"{func}: {[tuple(t.shape) for t in near]} beside a tensor on {FAR}")
        self.places.operations += any(far)
        found = func(*args, **kwargs)
        if func not in COPIES and any(far):
            tree_map(lambda t: self.places.put(t) if isinstance(t, torch.Tensor) else t, found)
        return found


class FarDevice(TorchFunctionMode):
    """What python sees: `device=`, `.to`, `.cpu`, `.device`, `.numpy`."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places()
        self._checked = Checked(self.places)

    def __enter__(self) -> FarDevice:
        self._checked.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._checked.__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        where = self.places
        if func == torch.Tensor.device.__get__:
            return FAR if where.is_far(args[0]) else func(*args)
        if func is torch.Tensor.numpy and where.is_far(args[0]):
            raise Mixed("numpy of a tensor that is not on the CPU")
        if func is torch.Tensor.cpu:
            return self._moved(args[0], CPU)
        if func is torch.Tensor.to and (target := _device_of(args[1:], kwargs)) is not None:
            rest = [a for a in args[1:] if not _is_device(a) and not isinstance(a, torch.Tensor)]
            kwargs.pop("device", None)
            copied = kwargs.pop("copy", False)
            found = func(args[0], *rest, **kwargs) if rest or kwargs else args[0]
            return self._moved(found, target, copied=copied)
        target = kwargs.get("device")
        if target is not None and torch.device(target) == FAR:
            kwargs["device"] = CPU
            return where.put(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _moved(self, tensor: torch.Tensor, target: torch.device, *, copied: bool = False) -> torch.Tensor:
        if target.type == "meta":
            return tensor.to("meta")
        if self.places.is_far(tensor) == (target == FAR):
            return tensor.clone() if copied else tensor
        plain = torch.empty(tensor.shape, dtype=tensor.dtype)
        if target == FAR:
            self.places.put(plain)
        return plain.copy_(tensor)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", "meta", str(FAR)))


def _device_of(args: Any, kwargs: Any) -> torch.device | None:
    for value in (*args, kwargs.get("device")):
        if _is_device(value):
            return torch.device(value)
    return None
