"""What a compressed-tensors config says: its groups, and which module belongs to which.

vLLM matches a module's path first against every target, then its class name; `ignore` wins over targets
(compressed_tensors.py, `get_scheme_dict`, `find_matched_target`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from mlload.quant.formats import matching, plain_modules
from mlload.quant.formats.fields import flag, integer, mapping, pair, strings, text, width
from mlload.quant.spec import Scheme

# Layouts that compressed-tensors no longer writes and vLLM no longer reads.
SPARSE = frozenset({"marlin-24", "sparse-bitmask", "sparse-24-bitmask"})

# Class names that "Linear" stands for, as the targets of configs spell them.
LINEAR_CLASSES = ("Linear",)


class Group(NamedTuple):
    """One of `config_groups`.

    kind: of the weights' elements, "int" or "float"; actorder as written, "" for none
    """

    name: str
    targets: tuple[str, ...]
    layout: str
    bits: int
    kind: Literal["int", "float"]
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None
    symmetric: bool
    actorder: str
    activation: Literal["dynamic", "static"] | None
    activation_bits: int | None
    mx: bool
    input_symmetric: bool = True

    @property
    def scheme(self) -> Scheme:
        return Scheme(
            format="compressed_tensors",
            layout=self.layout,
            bits=self.bits,
            kind="mx" if self.mx else self.kind,
            strategy=self.strategy,
            group_size=self.group_size,
            block=self.block,
            symmetric=self.symmetric,
            act_order=self.actorder in ("group", "dynamic"),
            activation=self.activation,
            activation_bits=self.activation_bits,
            options=() if self.input_symmetric else (("input_symmetric", False),),
        )


# Presets that a group may be named after, with a plain list of targets as its value
# (compressed_tensors/quantization/quant_scheme.py): bits, type, strategy, group, activation bits (None: none).
PRESETS: dict[str, tuple[int, str, str, int | None, int | None]] = {
    "W8A16": (8, "int", "channel", None, None),
    "W4A16": (4, "int", "group", 128, None),
    "W4A16_ASYM": (4, "int", "group", 128, None),
    "W8A8": (8, "int", "channel", None, 8),
    "INT8": (8, "int", "channel", None, 8),
    "W4A8": (4, "int", "group", 128, 8),
    "FP8": (8, "float", "tensor", None, 8),
    "FP8_DYNAMIC": (8, "float", "channel", None, 8),
    "FP8_BLOCK": (8, "float", "block", None, 8),
    "NVFP4": (4, "float", "tensor_group", 16, 4),
    "NVFP4A16": (4, "float", "tensor_group", 16, None),
    "MXFP4": (4, "float", "group", 32, 4),
    "MXFP4A16": (4, "float", "group", 32, None),
    "MXFP8": (8, "float", "group", 32, 8),
    "MXFP8A16": (8, "float", "group", 32, None),
}


def groups(config: Mapping[str, Any]) -> tuple[Group, ...]:
    """The groups that quantize weights, in file order; one that only aims at attention (KV scales) is none."""
    found = []
    for name, group in mapping(config, "config_groups").items():
        preset = PRESETS.get(str(name))
        if isinstance(group, list) and preset is not None:
            found.append(_preset(str(name), strings({"targets": group}, "targets"), preset))
            continue
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            continue
        targets = strings(group, "targets")
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue
        found.append(_group(str(name), targets, group, text(config, "format")))
    return tuple(found)


def _group(name: str, targets: tuple[str, ...], group: Mapping[str, Any], default_layout: str) -> Group:
    weights = group["weights"]
    kind: Literal["int", "float"] = "float" if text(weights, "type", default="int").lower() == "float" else "int"
    bits = width(weights, "num_bits", allowed=(4, 6, 8) if kind == "float" else tuple(range(1, 9)), default=8)
    size = integer(weights, "group_size")
    block = pair(weights.get("block_structure"))
    strategy = text(weights, "strategy").lower() or _strategy(size, block)
    if strategy == "channel":
        size = -1
    activations = group.get("input_activations")
    active = isinstance(activations, dict)
    actorder = weights.get("actorder")
    micro = kind == "float" and size == 32 and strategy == "group"
    layout = text(group, "format").lower() or ("" if default_layout == "mixed-precision" else default_layout.lower())
    return Group(
        name=name,
        targets=targets,
        layout=layout or _layout(bits, kind, strategy, micro, active),
        bits=bits,
        kind=kind,
        strategy=strategy,
        group_size=size,
        block=block if strategy == "block" else None,
        symmetric=flag(weights, "symmetric", default=True),
        # `true` is an older way to say "group".
        actorder="group" if actorder is True else str(actorder or "").lower(),
        activation=None if not active else "static" if _is_static(activations) else "dynamic",
        activation_bits=integer(activations, "num_bits") if active and isinstance(activations, dict) else None,
        mx=micro,
        input_symmetric=not isinstance(activations, dict) or flag(activations, "symmetric", default=True),
    )


def _strategy(size: int | None, block: tuple[int, int] | None) -> str:
    if block is not None:
        return "block"
    return "tensor" if size is None else "group" if size > 0 else "channel"


def _is_static(activations: Any) -> bool:
    return isinstance(activations, dict) and activations.get("dynamic") in (False, None)


def _layout(bits: int, kind: str, strategy: str, micro: bool, active: bool) -> str:
    """What a group's weights are stored as where the config does not say."""
    if kind == "float" and bits == 4:
        return "mxfp4-pack-quantized" if micro else "nvfp4-pack-quantized"
    if kind == "float":
        return "mxfp8-quantized" if micro else "float-quantized"
    return "int-quantized" if bits == 8 and active else "pack-quantized"


def _preset(name: str, targets: tuple[str, ...], preset: tuple[int, str, str, int | None, int | None]) -> Group:
    bits, kind, strategy, size, active = preset
    weights = {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": size,
        "symmetric": not name.endswith("_ASYM"),
        "block_structure": [128, 128] if strategy == "block" else None,
    }
    inputs = {"num_bits": active, "dynamic": name not in ("FP8",)} if active else None
    return _group(name, targets, {"weights": weights, "input_activations": inputs}, "")


def group_of(config: Mapping[str, Any], kind: str, bits: int | None = None) -> Group | None:
    """The first group whose weights are of that kind (and width, where one has it)."""
    same = [group for group in groups(config) if group.kind == kind]
    exact = [group for group in same if group.bits == bits]
    return next(iter(exact or same), None)


def declare(config: Mapping[str, Any]) -> Callable[[str], Scheme | None]:
    """Module path -> scheme by `ignore`, then paths among the targets, then the class Linear."""
    ignored = matching.exact_or_regex(strings(config, "ignore"))
    named: list[tuple[Callable[[str], bool], Scheme]] = []
    by_class: Scheme | None = None
    for group in groups(config):
        for target in group.targets:
            if target in LINEAR_CLASSES:
                by_class = by_class or group.scheme
            else:
                named.append((matching.exact_or_regex([target]), group.scheme))

    def scheme_for(module: str) -> Scheme | None:
        if ignored(module):
            return None
        for target, scheme in named:
            if target(module):
                return scheme
        return None if plain_modules.left_plain(module) else by_class

    return scheme_for
