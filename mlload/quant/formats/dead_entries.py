"""Lists in a config against the tensors there are: entries that name nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mlload.checkpoint.finding import Finding, Hint
from mlload.quant.formats import matching
from mlload.quant.formats.census import Census, place
from mlload.quant.formats.declaration import Declaration
from mlload.quant.formats.fields import mapping, strings

IGNORE_KEYS = (
    "ignore",
    "ignored_layers",
    "modules_to_not_convert",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)

# Methods whose entries match anywhere in a name.
ANYWHERE = ("awq", "auto_awq", "awq_marlin", "modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8")
# What engines call the layer that they fuse -> one of its parts; lists may use either name.
FUSED = {"qkv_proj": "q_proj", "gate_up_proj": "gate_proj"}


def find(declared: Declaration, census: Census) -> Iterator[Finding]:
    """Ignore entries and per-module settings that name no tensor.

    Only full paths are judged: patterns and short names are habits of recipes ("lm_head", "re:.*mtp.*") that
    many healthy checkpoints have nothing for.
    """
    exists = _existence(census, anywhere=declared.method in ANYWHERE)
    wrapped, dead = [], []
    for entry in _literal(strings(declared.config, *IGNORE_KEYS)):
        short = matching.without_wrapper(entry)
        if exists(entry):
            continue
        if short != entry and exists(short):
            wrapped.append(entry)
        else:
            dead.append(entry)
    if wrapped:
        yield Finding(
            "QT010",
            "warning",
            "starts",
            declared.where,
            f"{len(wrapped)} ignore entries end in a quantizer's own name and match no tensor, for example "
            f"{wrapped[0]!r} where the module is {matching.without_wrapper(wrapped[0])!r}: the engine takes these "
            "modules for quantized",
            {"entries": len(wrapped)},
            (Hint("take the endings off: " + ", ".join(sorted({_ending(entry) for entry in wrapped}))),),
        )
    if dead:
        yield Finding(
            "QT010",
            "info",
            "starts",
            declared.where,
            f"{len(dead)} ignore entries match no tensor: {place(dead)}",
            {"entries": len(dead)},
        )
    unused = [name for name in _literal(_settings(declared.config)) if not exists(name)]
    if unused:
        yield Finding(
            "QT015",
            "warning",
            "starts",
            declared.where,
            f"{len(unused)} per-module settings match no tensor: {place(unused)}; the default applies where they "
            "were meant to",
            {"settings": len(unused)},
        )


def _literal(entries: Iterable[str]) -> Iterator[str]:
    """Entries that are full paths into the layers."""
    for entry in entries:
        pattern = entry.startswith("re:") or set(entry) & set("*?[]^$|\\()")
        if not pattern and len(entry) < 512 and any(part.isdigit() for part in entry.split(".")):
            yield entry


def _settings(config: Mapping[str, Any]) -> list[str]:
    names = [*mapping(config, "quantized_layers"), *mapping(config, "extra_config")]
    names += mapping(config, "layer_quant_config")
    names += [key for key, value in config.items() if "." in key and isinstance(value, dict)]
    for group in mapping(config, "config_groups").values():
        names += strings(group, "targets") if isinstance(group, dict) else ()
    return [str(name) for name in names]


def _ending(entry: str) -> str:
    return entry[len(matching.without_wrapper(entry)) :]


def _existence(census: Census, *, anywhere: bool) -> Callable[[str], bool]:
    """Whether a tensor has this name, or lies below it; with `anywhere`, also whether the name is inside one."""
    tensors = census.tensors
    names: list[str] = []

    def exists(entry: str) -> bool:
        if f"{entry}.weight" in tensors or entry in tensors:
            return True
        if not names:
            names.extend(sorted(tensors))
        at = bisect_left(names, entry + ".")
        if at < len(names) and names[at].startswith(entry + "."):
            return True
        head, _, last = entry.rpartition(".")
        if last in FUSED:
            return exists(f"{head}.{FUSED[last]}")
        return anywhere and any(entry in name for name in names)

    return exists
