"""Peak memory of a run by arithmetic, before it begins: RssAnon + RssShmem. Pages of mapped files are not counted.

Constants were measured on models of 7 to 93 million parameters a layer; benchmarks/quantize_memory.py compares.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlload.quant.algorithms import awq, gptq
from mlload.quantize.recipe import Recipe
from mlload.quantize.slabs import ELEMENTS, slab_rows, workers
from mlload.quantize.targets import Target

MIB = 2**20
START = 190 * MIB  # an interpreter with torch in it
CLASS_START = 345 * MIB  # and with transformers, one model class, and the tokenizer's work
SMALL = {"fp8": 12, "int8": 12}  # MiB that a thread of a method without data works with; others: 20
WHOLE = 17  # bytes an element of a weight that is packed as a whole: read, codes, words
ROUNDED = 6  # times the largest matrix, where weights are rounded whole with scales for what they see


def data_free(targets: Iterable[Target], recipe: Recipe, limit: int | None = None) -> tuple[int, int]:
    """Bytes, and threads: fewer where `limit` allows no more."""
    largest = SMALL.get(recipe.method, 20) * MIB
    for target in targets:
        rows = slab_rows(target.scheme, target.n, target.k)
        if rows * target.k > 2 * ELEMENTS:
            largest = max(largest, 8 * MIB + WHOLE * rows * target.k)
    threads = workers()
    while limit is not None and threads > 1 and START + threads * largest > limit:
        threads -= 1
    return START + threads * largest, threads


def calibrated(targets: Iterable[Target], recipe: Recipe, length: int) -> int:
    """One layer, the second moments of its inputs, and what the method works with. length: tokens of a sample.

    Experts stored one by one are held one by one.
    """
    layers: dict[str, int] = {}
    inputs: dict[str, dict[str, int]] = {}
    together: dict[str, int] = {}
    expert, widest, wide = 0, 0, 0
    for target in targets:
        layer = layer_of(target)
        size = target.n * target.k
        widest, wide = max(widest, target.k), max(wide, target.n)
        together[target.fused] = together.get(target.fused, 0) + size
        if target.param.spec.component == "experts":
            expert = max(expert, together[target.fused])
            continue
        layers[layer] = layers.get(layer, 0) + size
        inputs.setdefault(layer, {})[target.fused] = target.k
    matrix = max(together.values(), default=0)
    weights = max(layers.values(), default=0) + expert
    moments = max((sum(k * k for k in found.values()) for found in inputs.values()), default=0)
    work: float
    ranges = 5 * min(matrix, awq.ELEMENTS)
    if recipe.method == "gptq":
        # Moments go one by one; the last and widest beside its factor.
        work = max(moments, 2 * widest * widest) + 1.5 * min(matrix, gptq.ELEMENTS) + matrix / 4 + ranges
    elif recipe.method == "awq":
        # Weights before and after their scales, until the layer is proven to compute what it did.
        work = moments + weights + matrix / 2 + ranges
    else:
        work = ROUNDED * matrix
    return CLASS_START + round(4 * (weights + work + length * (3 * wide + 4 * widest)))


def layer_of(target: Target) -> str:
    """The number of a target's layer, as text; "" outside the layers."""
    head, found, _ = target.param.spec.module.partition("{layer}")
    return target.path[len(head) :].split(".", 1)[0] if found else ""
