"""What one rank of a vLLM holds after loading: bytes of weights and cache, and who runs its layers.

`holds` is sent to every worker through the engine's own `collective_rpc` and answers in JSON. It imports inside, so
that it can travel by value to workers on other machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any


def of(engine: Any) -> list[dict[str, Any]]:
    """One dict a rank, in the order of ranks."""
    import sys

    import cloudpickle  # type: ignore[import-not-found]

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    found = [json.loads(text) for text in engine.collective_rpc(holds)]
    return sorted(found, key=lambda rank: rank["rank"])


def holds(worker: Any) -> str:
    """Runs in the worker."""
    runner = worker.model_runner
    model = runner.get_model() if hasattr(runner, "get_model") else runner.model
    moved, copied = packed_away(model)
    cache = getattr(runner, "kv_cache_config", None)
    return json.dumps(
        {
            "rank": getattr(worker, "rank", 0),
            "parameter_bytes": storage_bytes(model.parameters()),
            "moved_bytes": moved,
            "copied_bytes": copied,
            "buffer_bytes": storage_bytes(model.buffers()),
            "device_bytes": int(getattr(runner, "model_memory_usage", 0) or 0),
            "kv_bytes": storage_bytes(tensors_of(getattr(runner, "kv_caches", []))),
            "num_blocks": getattr(cache, "num_blocks", None),
            "peak_host_bytes": peak_host_bytes(),
            "peak_device_bytes": peak_device_bytes(),
            "kernels": kernels(model),
        }
    )


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the distinct storages behind tensors; tied ones once."""
    seen = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            seen[(str(tensor.device), storage.data_ptr())] = storage.nbytes()
    return sum(seen.values())


def tensors_of(value: Any) -> Iterator[Any]:
    """Tensors in lists, tuples and dicts of them."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_of(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_of(inner)


def packed_away(model: Any) -> tuple[int, int]:
    """(bytes that oneDNN took over, bytes that it holds a second time): on a CPU the engine packs weights into
    memory that torch does not see, and drops the parameter where nothing else reads it."""
    moved = copied = 0
    for module in model.modules():
        for handler, itemsize in handlers(module):
            nbytes = handler.n * handler.k * itemsize
            weight = getattr(module, "weight", None)
            if weight is None or weight.numel() == 0:
                moved += nbytes
            else:
                copied += nbytes
    return moved, copied


def handlers(module: Any) -> Iterator[tuple[Any, int]]:
    """oneDNN's handles of one layer with the bytes of one of their weights: in the closure that multiplies for an
    unquantized layer, in the kernel of a quantized one."""
    import torch

    function = getattr(module, "cpu_linear", None)
    for cell in getattr(function, "__closure__", None) or ():
        if is_handler(cell.cell_contents):
            yield (
                cell.cell_contents,
                torch.get_default_dtype().itemsize
                if not hasattr(module, "params_dtype")
                else (module.params_dtype.itemsize),
            )
    kernel = kernel_of(module)
    if kernel is not None and is_handler(getattr(kernel, "dnnl_handler", None)):
        yield kernel.dnnl_handler, 1


def is_handler(value: Any) -> bool:
    return isinstance(getattr(value, "n", None), int) and isinstance(getattr(value, "k", None), int)


def kernels(model: Any) -> list[dict[str, Any]]:
    """[{layers: "Kind[name]", label: method, scheme and kernel by their classes, count}]."""
    found: dict[tuple[str, str], int] = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        backend = getattr(module, "attn_backend", None)
        if method is not None:
            label = label_of(module, method)
        elif backend is not None and hasattr(backend, "get_name"):
            label = backend.get_name()
        else:
            continue
        key = (f"{type(module).__name__}[{name.rpartition('.')[2]}]", label)
        found[key] = found.get(key, 0) + 1
    return [{"layers": layers, "label": label, "count": count} for (layers, label), count in found.items()]


def label_of(module: Any, method: Any) -> str:
    parts = [type(method).__name__]
    scheme = getattr(module, "scheme", None)
    if scheme is not None:
        parts.append(type(scheme).__name__)
    kernel = kernel_of(module)
    if kernel is not None:
        parts.append(type(kernel).__name__)
    else:
        backend = backend_of(method)
        if backend is not None:
            parts.append(backend)
    return "/".join(parts)


def kernel_of(module: Any) -> Any:
    """The object that multiplies: it lives on the scheme or on the method, under one of several names."""
    for owner in (getattr(module, "scheme", None), getattr(module, "quant_method", None)):
        for value in vars(owner).values() if hasattr(owner, "__dict__") else ():
            if type(value).__module__.startswith("vllm.model_executor.kernels.linear"):
                return value
    return None


def backend_of(method: Any) -> str | None:
    """The backend of an experts layer: an enum on its method."""
    for name, value in vars(method).items() if hasattr(method, "__dict__") else ():
        if name.endswith("backend") and hasattr(value, "value"):
            return str(value.name)
    return None


def peak_host_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_bytes() -> int:
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
