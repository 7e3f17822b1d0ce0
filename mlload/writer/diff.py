"""Two checkpoints compared: tensors by name, dtype, shape and bytes; weights by the numbers that they stand for;
config by key; other files by content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint, Index
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.plan.bound import BoundParam
from mlload.plan.model import read_model
from mlload.writer.carry import carried
from mlload.writer.numbers import FLOATS, Distance, distance, float_array, raw_array
from mlload.writer.read_state import of_state
from mlload.writer.tensor_bytes import Side

# The first code of findings that are about other files than those of the weights.
BESIDE = "FI060"
# What differs from one writing of a config to the next, and tells nothing of the model.
IDLE_KEYS = {"transformers_version", "_name_or_path", "_commit_hash"}


class TensorDifference(NamedTuple):
    """what: "only in A", "only in B", "dtype", "shape", "bytes"; one, other: how each side has it; distance: between
    the numbers, where both sides have numbers of one shape"""

    name: str
    what: str
    one: str
    other: str
    distance: Distance | None = None


class Difference(NamedTuple):
    """A key of the config, or a file: how each side has it."""

    name: str
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Diff:
    """equal: tensors of equal dtype, shape and bytes; weights: modules whose stored form differs and whose numbers
    were compared; layout: weight files and indexes, which change nothing of the content; broken: the first fault of
    each side's files by which it is not whole"""

    equal: int
    tensors: tuple[TensorDifference, ...]
    weights: tuple[TensorDifference, ...]
    config: tuple[Difference, ...]
    files: tuple[Difference, ...]
    layout: tuple[Difference, ...] = ()
    broken: tuple[Difference, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.tensors or self.config or self.files)


def diff(one: Checkpoint, other: Checkpoint) -> Diff:
    """Reads both once; memory is bounded by a piece, or by one weight where that has to be dequantized."""
    left, right = Side(one), Side(other)
    for side in (left, right):
        if not side.tensors:
            raise MlloadError(f"{side.checkpoint.label} holds no tensors to compare", exit_code=3)
    tensors: list[TensorDifference] = []
    equal = 0
    for name in [*left.tensors, *(name for name in right.tensors if name not in left.tensors)]:
        found = _tensor(name, left, right)
        if found is None:
            equal += 1
        else:
            tensors.append(found)
    changed = {found.name for found in tensors}
    return Diff(
        equal,
        tuple(tensors),
        tuple(_weights(left, right, changed)) if changed else (),
        tuple(_config(one.config, other.config)),
        tuple(_files(one, other)),
        tuple(_layout(left.checkpoint, right.checkpoint)),
        tuple(_broken(left, right)),
    )


def _broken(left: Side, right: Side) -> Iterator[Difference]:
    faults = [_fault(side.checkpoint.problems) for side in (left, right)]
    if any(faults):
        yield Difference("not whole", *faults)


def _fault(problems: Iterable[Finding]) -> str:
    """The first sentence about weight files that no engine starts with."""
    errors = (p for p in problems if (p.severity, p.question) == ("error", "starts") and p.code < BESIDE)
    return next((problem.message for problem in errors), "")


def _tensor(name: str, left: Side, right: Side) -> TensorDifference | None:
    a, b = left.tensors.get(name), right.tensors.get(name)
    if a is None or b is None:
        there = a or b
        assert there is not None
        text = f"{there.dtype} {list(there.shape)}"
        return TensorDifference(name, f"only in {'A' if a else 'B'}", text if a else "", "" if a else text)
    if a.dtype != b.dtype:
        far = None
        if a.shape == b.shape and a.dtype in FLOATS and b.dtype in FLOATS:
            far = distance([(float_array(left.whole(name), a.dtype), float_array(right.whole(name), b.dtype))])
        return TensorDifference(name, "dtype", a.dtype, b.dtype, far)
    if a.shape != b.shape:
        return TensorDifference(name, "shape", str(list(a.shape)), str(list(b.shape)))
    if all(piece == twin for piece, twin in zip(left.pieces(name), right.pieces(name), strict=True)):
        return None
    far = None
    if a.dtype in FLOATS:
        far = distance(
            (float_array(piece, a.dtype), float_array(twin, b.dtype))
            for piece, twin in zip(left.pieces(name), right.pieces(name), strict=True)
        )
    return TensorDifference(name, "bytes", f"{a.dtype} {list(a.shape)}", f"{b.dtype} {list(b.shape)}", far)


def _weights(left: Side, right: Side, changed: set[str]) -> Iterator[TensorDifference]:
    """Weights that at least one side stores quantized, compared by value."""
    one, other = _modules(left), _modules(right)
    for path, a in one.items():
        b = other.get(path)
        if b is None or (a.scheme is None and b.scheme is None):
            continue
        names = {path + tensor.suffix for param in (a, b) for tensor in param.stored}
        if not names & changed or (a.spec.n, a.spec.k) != (b.spec.n, b.spec.k) or "E" in a.spec.axes:
            continue
        first, second = dequantized(left, path, a), dequantized(right, path, b)
        if first is None or second is None:
            continue
        yield TensorDifference(path, "numbers", _form(a), _form(b), distance([(first, second)]))


def _modules(side: Side) -> dict[str, BoundParam]:
    """Linears by disk path; none where no architecture can be told."""
    try:
        model = read_model(side.checkpoint)
    except MlloadError:
        return {}
    return {
        path: param
        for param in model.params
        if param.stored and param.spec.op in ("linear", "embedding")
        for path in param.modules()
    }


def dequantized(side: Side, path: str, param: BoundParam) -> Any:
    """float32 [N, K] of one module, None where its format has no way to it."""
    from mlload.quant.formats import registry

    spec = param.spec
    held = {tensor.suffix: path + tensor.suffix for tensor in param.stored if path + tensor.suffix in side.tensors}
    if param.scheme is None:
        name = path + "." + spec.weight if spec.weight else path
        if name not in side.tensors or len(side.tensors[name].shape) != 2:
            return None
        values = float_array(side.whole(name), side.tensors[name].dtype).reshape(side.tensors[name].shape)
        return values if spec.axes == ("N", "K") else values.T
    arrays: dict[str, Any] = {}
    for suffix, name in held.items():
        described = side.tensors[name]
        flat = raw_array(side.whole(name), described.dtype)
        block = described.dtype not in FLOATS and flat.size != _elements(described.shape)
        arrays[suffix.removeprefix(".")] = flat if block else flat.reshape(described.shape)
    try:
        return registry.get(param.scheme.format).dequantize(param.scheme, arrays, spec.n, spec.k)
    except (KeyError, ValueError, TypeError, MlloadError):
        return None


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _form(param: BoundParam) -> str:
    scheme = param.scheme
    return param.stored[0].dtype if scheme is None else f"{scheme.format} {scheme.layout} {scheme.bits} bits"


def _config(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    a, b = dict(_flat(one)), dict(_flat(other))
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key) and key not in IDLE_KEYS:
            yield Difference(key, str(a.get(key, "")), str(b.get(key, "")))


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    import json

    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield prefix + key, json.dumps(item, sort_keys=True)


def _files(one: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    """Files that are neither weights nor config.json (whose keys are compared)."""
    sides = [
        {file.name: file for file in carried(side) if file.name != "config.json" and not of_state(file.name)}
        for side in (one, other)
    ]
    a, b = sides
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            there = a.get(name) or b[name]
            text = f"{there.size:,} bytes"
            yield Difference(name, text if name in a else "", text if name in b else "")
        elif a[name].size != b[name].size or one.source.read(name) != other.source.read(name):
            yield Difference(name, f"{a[name].size:,} bytes", f"{b[name].size:,} bytes")


def _layout(one: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    names = [[file.name for file in side.files if file.used] for side in (one, other)]
    if names[0] != names[1]:
        yield Difference("weight files", *(f"{len(files):,}" for files in names))
    a, b = one.index, other.index
    maps = [None if index is None else (index.weight_map, index.total_size) for index in (a, b)]
    if maps[0] != maps[1]:
        yield Difference("index entries", _indexed(a), _indexed(b))


def _indexed(index: Index | None) -> str:
    return "none" if index is None else f"{len(index.weight_map):,} tensors, total_size {index.total_size}"
