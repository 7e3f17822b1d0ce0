"""GPUs by name: compute capability, memory, bandwidth. `cc:9.0[,mem:80]` stands for any other."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mlload.checkpoint.finding import MlloadError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    key:           as typed: "h100", "cc:9.0"
    name:          as people write it
    capability:    compute capability, None for one that has none (AMD)
    arch:          AMD's architecture ("gfx942"), "" elsewhere
    memory_gib:    memory that the driver reports, GiB; None where only a capability is known
    bandwidth_gbs: memory bandwidth, GB/s; None where unknown
    """

    key: str
    name: str
    capability: tuple[int, int] | None
    arch: str = ""
    memory_gib: float | None = None
    bandwidth_gbs: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gib is None else int(self.memory_gib * 2**30)


@cache
def catalogue() -> dict[str, Gpu]:
    """Every GPU by key, oldest generation first."""
    data = _data()
    return {
        key: Gpu(
            key=key,
            name=entry["name"],
            capability=tuple(entry["capability"]) if entry["capability"] else None,
            arch=entry.get("arch", ""),
            memory_gib=entry["memory_gib"],
            bandwidth_gbs=entry["bandwidth_gbs"],
        )
        for key, entry in data["gpus"].items()
    }


def generations() -> tuple[Gpu, ...]:
    """One GPU of each generation: the rows of a table when none was named."""
    known = catalogue()
    return tuple(known[key] for key in _data()["generations"])


def judged_by_default() -> Gpu:
    """Whose capability a verdict is for when no GPU was named: the newest generation that most people rent. Nothing
    is said about its memory."""
    gpu = catalogue()[_data()["judged_by_default"]]
    return replace(gpu, memory_gib=None, bandwidth_gbs=None)


def find(text: str) -> Gpu:
    """ "h100", "H100-80GB", "A100 40GB", "rtx 4090", "cc:9.0", "cc:9.0,mem:80" (GiB), "local" (asks the driver)."""
    key = text.strip().lower()
    if key == "local":
        from mlload.profiles.local_gpu import local_gpu

        return local_gpu()
    if key.startswith(("cc:", "mem:")):
        return _from_numbers(key)
    key = key.removeprefix("nvidia").removeprefix("amd").strip().replace("_", "-").replace("geforce", "").strip()
    known, aliases = catalogue(), _data()["aliases"]
    for spelling in (key.replace(" ", "-"), key.replace(" ", "").replace("-", "")):
        if spelling in known:
            return known[spelling]
        if spelling in aliases:
            return known[aliases[spelling]]
    raise MlloadError(
        f"unknown GPU {text!r}; known: {', '.join(known)}",
        hint="cc:9.0,mem:80 stands for any GPU: its compute capability, and its memory in GiB",
    )


def _from_numbers(text: str) -> Gpu:
    capability: tuple[int, int] | None = None
    memory: float | None = None
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        if name == "cc":
            major, dot, minor = value.partition(".")
            if not (major.isdigit() and dot and minor.isdigit() and 0 < int(major) < 100 and int(minor) < 10):
                raise MlloadError(f"{value!r} is no compute capability; write cc:9.0")
            capability = (int(major), int(minor))
        elif name == "mem":
            try:
                memory = float(value.removesuffix("gib").removesuffix("gb"))
            except ValueError:
                memory = -1.0
            if not 0 < memory < 1e5:
                raise MlloadError(f"{value!r} is no memory size; write mem:80 for 80 GiB")
        else:
            raise MlloadError(f"unknown part {part!r} of a GPU; write cc:9.0,mem:80")
    if capability is None:
        raise MlloadError(f"{text!r} names no compute capability; write cc:9.0,mem:80")
    name = f"compute capability {capability[0]}.{capability[1]}"
    return Gpu(key=text, name=name, capability=capability, memory_gib=memory)


@cache
def _data() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "gpus.json"), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data
