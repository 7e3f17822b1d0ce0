"""One pass over all tensors: which suffixes, dtypes and shapes there are, and under which names.

A checkpoint of 90,000 tensors has some dozens of distinct (suffix, dtype, shape); everything that is asked of
the content is asked of one module of each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from mlload.checkpoint.fold import ranges
from mlload.checkpoint.json_text import quote
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.tensors import is_joined, tensor_name

FLOAT_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})

# Suffixes (after the module path) of tensors that stand for a quantized linear, over all formats.
SUFFIXES = (
    "weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "B",
    "s",
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "_blocks",
    "_scales",
    "blocks",
    "bitmask",
    "compressed",
    "meta",
    "scale_packed",
    "biases",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
    "_weight_qdata",
    "_weight_scale",
    "_weight_zero_point",
    "weight.qdata",
    "weight.scale",
    "scale",
    "bias",
    "_bias",
    "",
)

# Last components that a plain checkpoint does not have, and the suffix after the module that each belongs to.
# Each begins the search for a quantized linear.
ANCHORS: dict[str, str] = {
    "qweight": "qweight",
    "B": "B",
    "weight_packed": "weight_packed",
    "weight_scale": "weight_scale",
    "weight_scale_inv": "weight_scale_inv",
    "blocks": "blocks",
    "bitmask": "bitmask",
    "absmax": "weight.absmax",
    "SCB": "SCB",
    "biases": "biases",
    "qdata": "weight.qdata",
    "_weight_qdata": "_weight_qdata",
    "scale": "scale",
}
JOINED_ANCHOR = "_blocks"


# Integer tensors that plain checkpoints have.
BUFFERS = frozenset({"bias", "masked_bias", "position_ids", "attention_mask", "relative_position_index"})


class Kind(NamedTuple):
    """suffix: the last component of the name."""

    suffix: str
    dtype: str
    shape: tuple[int, ...]


class Census:
    """kinds: (suffix, dtype, shape) -> names, in file order."""

    def __init__(self, tensors: Mapping[str, TensorRef]) -> None:
        found: defaultdict[tuple[str, str, tuple[int, ...]], list[str]] = defaultdict(list)
        for name, ref in tensors.items():
            found[name[name.rfind(".") + 1 :], ref[1], ref[2]].append(name)
        self.tensors = tensors
        self.kinds: dict[Kind, list[str]] = {Kind(*key): names for key, names in found.items()}
        last = {kind.suffix for kind in self.kinds}
        # Suffixes worth looking up: those whose last component occurs at all.
        joined = any(name.endswith(JOINED_ANCHOR) for name in last)
        self.suffixes = tuple(s for s in SUFFIXES if s.rpartition(".")[2] in last or (joined and is_joined(s)))
        self.ends = tuple((suffix, tensor_name("", suffix)) for suffix in self.suffixes)

    def anchors(self) -> list[tuple[str, Kind, list[str]]]:
        """(suffix after the module, kind, names) of each kind that marks a quantized linear."""
        found = []
        for kind, names in self.kinds.items():
            suffix = ANCHORS.get(kind.suffix)
            if suffix is None and kind.suffix.endswith(JOINED_ANCHOR):
                suffix = JOINED_ANCHOR
            elif suffix is None and kind.suffix == "weight" and kind.dtype not in FLOAT_DTYPES:
                suffix = "weight"
            if suffix is not None:
                found.append((suffix, kind, names))
        return found

    @cached_property
    def widths(self) -> frozenset[int]:
        """Sizes of the first axis: outputs of linears as most formats store them, norms, the vocabulary."""
        return frozenset(kind.shape[0] for kind in self.kinds if kind.shape)

    def linear(self, module: str) -> dict[str, TensorRef]:
        """The tensors of one linear, by suffix after its path."""
        tensors = self.tensors
        return {s: ref for s, end in self.ends if (ref := tensors.get(module + end)) is not None}

    def packed(self) -> list[str]:
        """Names of matrices that are no floats (buffers of masks and positions aside): something is packed there."""
        return [
            name
            for kind, names in self.kinds.items()
            if kind.dtype not in FLOAT_DTYPES and len(kind.shape) > 1 and kind.suffix not in BUFFERS
            for name in names
        ]


def module_of(name: str, suffix: str) -> str:
    """The path of a linear from one of its tensors' names."""
    return name[: len(name) - len(suffix) - (0 if is_joined(suffix) else 1)]


def place(modules: Sequence[str]) -> str:
    """Where something is, in one phrase: the module, or the pattern that its numbers run through."""
    if len(modules) == 1:
        return shown(modules[0])
    patterns: dict[str, tuple[set[int], set[int]]] = {}
    for module in islice(modules, 20_000):
        numbers = [int(n) for n in re.findall(r"(?<=\.)\d{1,9}(?=\.|$)", module)][:2]
        numbered = patterns.setdefault(re.sub(r"(?<=\.)\d{1,9}(?=\.|$)", "{}", module), (set(), set()))
        for values, number in zip(numbered, numbers, strict=False):
            values.add(number)
    pattern, runs = next(iter(patterns.items()))
    for values in runs:
        pattern = pattern.replace("{}", ranges(values) if values else "*", 1)
    more = len(patterns) - 1
    return shown(pattern.replace("{}", "*")) + (f" and {more} more" if more else "")


def shown(name: str) -> str:
    """A name as it can be printed: control characters escaped, absurd lengths cut."""
    name = name if len(name) <= 200 else name[:200] + "..."
    return name if name.isprintable() else quote(name)
