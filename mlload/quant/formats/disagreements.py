"""Findings about a declared quantization that the tensors, or the engine, do not go along with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.tensor import TensorRef
from mlload.quant.formats.census import Census, Kind, module_of, place
from mlload.quant.formats.declaration import Declaration
from mlload.quant.formats.facts import KERNEL_LAYOUTS, roles
from mlload.quant.formats.fields import integer
from mlload.quant.spec import KVScheme, Scheme

# Formats whose `detect` may stand in for each other without the label being wrong: they share tensors.
SAME_TENSORS = frozenset({"fp8", "compressed_tensors", "modelopt", "quark", "auto_round"})


class Seen(NamedTuple):
    """One kind of quantized linear: the anchor tensor's suffix and kind, all names of that kind, and one module
    with its tensors, its scheme by content and its scheme by the config."""

    suffix: str
    kind: Kind
    names: list[str]
    module: str
    tensors: Mapping[str, TensorRef]
    scheme: Scheme
    declared: Scheme | None

    @property
    def modules(self) -> list[str]:
        return [module_of(name, self.suffix) for name in self.names]


def leftover(declared: Declaration, census: Census) -> Iterator[Finding]:
    """No quantized tensor at all under a declaration."""
    floats = sum(len(names) for kind, names in census.kinds.items() if kind.suffix == "weight" and len(kind.shape) == 2)
    dtypes = sorted({kind.dtype for kind in census.kinds if kind.suffix == "weight" and len(kind.shape) == 2})
    seen = declared.where.endswith("config.json") and declared.seen
    # AWQ without a list of modules goes by the headers, which show nothing quantized: vLLM builds a plain model.
    by_headers = declared.method in ("awq", "awq_marlin", "auto_awq") and not declared.config.get(
        "modules_to_not_convert"
    )
    yield Finding(
        "QT001",
        "error" if seen and not by_headers else "warning",
        "starts" if _refuses_plain(declared) and not by_headers else "right",
        declared.where,
        f"{declared.where} declares {declared.method}, but 0 tensors are quantized and 0 scales are stored: "
        f"{floats} matrices are {', '.join(dtypes) or 'plain'}",
        {"method": declared.method, "quantized": 0, "plain": floats},
        (Hint("remove the quantization block: the weights are not quantized"),),
    )


def _refuses_plain(declared: Declaration) -> bool:
    """The method's weights have another name or shape, so that a plain one does not load. fp8 and int8 weights have
    the plain one's name and shape: it is cast, and its scales are whatever was in memory."""
    layout = str(declared.config.get("format", ""))
    algo = str(declared.config.get("quant_algo", "")).upper()
    return (
        declared.method in ("gptq", "gptq_marlin", "auto_gptq", "awq", "awq_marlin", "auto_awq", "modelopt_fp4")
        or "pack-quantized" in layout
        or "FP4" in algo
    )


def of_declaration(declared: Declaration, others: Sequence[Declaration]) -> Iterator[Finding]:
    """What is odd about where and how it is declared."""
    for key in ("bits", "w_bit", "group_size", "q_group_size"):
        value = declared.config.get(key)
        number = integer(declared.config, key)
        odd = number is None or (key.endswith(("bits", "bit")) and not 1 <= number <= 16)
        if value is not None and not isinstance(value, list) and odd:
            yield Finding(
                "QT018",
                "error",
                "starts",
                declared.where,
                f"{key} is {str(value)[:40]!r}, which cannot be",
            )
    if declared.where.endswith(".json") and declared.where != "config.json" and not declared.seen:
        yield Finding(
            "QT002",
            "warning",
            "starts",
            declared.where,
            f"{declared.method} is declared in {declared.where} only, which vLLM does not read unless told "
            "--quantization: the model is built unquantized and its packed weights do not load",
            {"method": declared.method},
            (
                Hint("name the method", f"--quantization {declared.method}"),
                Hint(f"copy {declared.where} into config.json as quantization_config, with quant_method"),
            ),
        )
    elif not declared.seen:
        yield Finding(
            "QT003",
            "warning",
            "starts",
            declared.where,
            f"the quantization block in {declared.where} has no quant_method: it reads as {declared.method}, and "
            "vLLM ignores it and builds the model unquantized",
            {"method": declared.method},
            (Hint(f'add "quant_method": "{declared.method}" to the block'),),
        )
    for other in others:
        ours, theirs = declared.method, other.method
        if other.where == "hf_quant_config.json" and theirs.split("_")[0] == ours.split("_")[0]:
            # Both are ModelOpt's: the algorithm tells whether they say the same.
            ours, theirs = (str(one.config.get("quant_algo") or "").upper() for one in (declared, other))
            if not (ours and theirs):
                continue
        if ours != theirs:
            yield Finding(
                "QT019",
                "warning",
                "right",
                other.where,
                f"{other.where} declares {theirs}, {declared.where} {ours}; engines follow the latter",
                {"declared": ours, "other": theirs},
            )


def of_content(declared: Declaration, seen: Sequence[Seen]) -> Iterator[Finding]:
    """Where tensors and declaration part, one finding for each kind of disagreement."""
    for entry in _first_of_each(seen, _label):
        yield _mislabelled(declared, entry)
    for entry in _first_of_each(seen, lambda e: e.scheme.layout if e.scheme.layout in KERNEL_LAYOUTS else None):
        yield kernel_layout(entry)
    for entry in _first_of_each(seen, _width):
        yield _other_width(declared, entry)
    for entry in _first_of_each(seen, _odd_zero):
        yield _unpacked_zero(entry)
    for entry in _first_of_each(seen, _renamed):
        yield _other_names(declared, entry)
    widths = sorted({entry.scheme.bits for entry in seen})
    if len(widths) > 1 and not _declares_widths(seen):
        yield Finding(
            "QT013",
            "warning",
            "starts",
            place(seen[0].modules),
            f"layers are stored with {' and '.join(map(str, widths))} bits; an engine that takes one width for all "
            "layers refuses the others",
            {"bits": widths},
        )


def _first_of_each(seen: Sequence[Seen], key: object) -> Iterator[Seen]:
    assert callable(key)
    met = set()
    for entry in seen:
        value = key(entry)
        if value is not None and value not in met:
            met.add(value)
            yield entry


def _label(entry: Seen) -> tuple[str, str] | None:
    have, want = entry.scheme.format, entry.declared.format if entry.declared else ""
    if not want or have == want or {have, want} <= SAME_TENSORS:
        return None
    return have, want


def _mislabelled(declared: Declaration, entry: Seen) -> Finding:
    have, want = entry.scheme.format, entry.declared.format if entry.declared else declared.method
    qweight, scales = entry.tensors.get("qweight"), entry.tensors.get("scales")
    if qweight is not None and scales is not None and {have, want} == {"awq", "gptq"}:
        n = scales.shape[-1]
        rows, columns = qweight.shape
        shows = f"qweight {list(qweight.shape)} with scales {list(scales.shape)}: N = {n}, so {columns} columns " + (
            f"are N / {n // columns}, packed along N as AWQ does"
            if have == "awq" and columns and n % columns == 0
            else "are N itself, and the packing runs along K as GPTQ does"
        )
        numbers = {"rows": rows, "columns": columns, "n": n}
    else:
        shows = ", ".join(f"{suffix} {ref.dtype} {list(ref.shape)}" for suffix, ref in entry.tensors.items())
        numbers = {}
    return Finding(
        "QT004",
        "error",
        # One packs along K and the other along N: the shapes never agree, and vLLM asserts while loading.
        "starts" if {have, want} == {"awq", "gptq"} else "right",
        place(entry.modules),
        f"{declared.where} says {declared.method}, the tensors are {have}'s: {shows}",
        {"declared": declared.method, "found": have, **numbers},
        (Hint(f"declare the format that the tensors have, {have}"),),
    )


def kernel_layout(entry: Seen) -> Finding:
    shapes = ", ".join(f"{suffix} {list(ref.shape)}" for suffix, ref in entry.tensors.items() if len(ref.shape) == 2)
    return Finding(
        "QT005",
        "error",
        "starts",
        place(entry.modules),
        f"{entry.scheme.format} layout {entry.scheme.layout!r} is made for one kernel and engines do not convert it "
        f"({shapes})",
        {"layout": entry.scheme.layout},
        (Hint("quantize again in the portable layout", needs="original weights"),),
    )


def _width(entry: Seen) -> tuple[object, ...] | None:
    have, want = entry.scheme, entry.declared
    if want is None or (have.format, have.layout) != (want.format, want.layout):
        return None
    if have.bits != want.bits:
        return ("bits", have.bits, want.bits)
    if have.block != want.block and want.block is not None:
        return ("block", have.block, want.block)
    if _groups(have) != _groups(want) and have.format in ("awq", "gptq", "compressed_tensors", "mlx"):
        return ("group", have.group_size, want.group_size)
    return None


def _groups(scheme: Scheme) -> int:
    return scheme.group_size if scheme.group_size and scheme.group_size > 0 else -1


def _other_width(declared: Declaration, entry: Seen) -> Finding:
    have, want = entry.scheme, entry.declared
    assert want is not None
    facts = ", ".join(f"{suffix} {list(ref.shape)}" for suffix, ref in entry.tensors.items() if len(ref.shape) > 1)
    if have.bits != want.bits:
        what, numbers = f"{want.bits} bits declared, {have.bits} stored", {"declared": want.bits, "stored": have.bits}
    elif have.block != want.block:
        what = f"blocks of {want.block} declared, {have.block} stored"
        numbers = {}
    else:
        what = f"group size {want.group_size} declared, {have.group_size} stored"
        numbers = {"declared": _groups(want), "stored": _groups(have)}
    return Finding(
        "QT006",
        "error",
        "starts",
        place(entry.modules),
        f"{what} ({declared.where} against {facts})",
        numbers,
        (Hint(f"correct {declared.where}: {what}"),),
    )


def _odd_zero(entry: Seen) -> str | None:
    zero = entry.tensors.get("weight_zero_point")
    packed = entry.tensors.get("weight_packed")
    if zero is None or packed is None or entry.scheme.layout != "pack-quantized":
        return None
    return "zero" if zero.dtype != "I32" else None


def _unpacked_zero(entry: Seen) -> Finding:
    zero, packed, scale = (entry.tensors[s] for s in ("weight_zero_point", "weight_packed", "weight_scale"))
    rows = -(-packed.shape[0] * entry.scheme.bits // 32)
    want = [rows, *scale.shape[1:]]
    return Finding(
        "QT008",
        "error",
        "starts",
        place([f"{module}.weight_zero_point" for module in entry.modules]),
        f"weight_zero_point is {zero.dtype} {list(zero.shape)}, stored unpacked; packed words would be I32 {want}",
        {"rows": zero.shape[0] if zero.shape else 1, "packed_rows": rows},
    )


def _renamed(entry: Seen) -> tuple[str, ...] | None:
    """Tensors that the declared method wants under other names than the stored ones have."""
    have, want = entry.scheme, entry.declared
    if want is None or have.format == want.format or not {have.format, want.format} <= SAME_TENSORS:
        return None
    return tuple(sorted(roles(want).required - set(entry.tensors))) or None


def _other_names(declared: Declaration, entry: Seen) -> Finding:
    missing = _renamed(entry) or ()
    want = roles(entry.declared).required if entry.declared is not None else frozenset()
    stored = sorted(set(entry.tensors) - want - {"bias"})
    shapes = ", ".join(f"{s} {entry.tensors[s].dtype} {list(entry.tensors[s].shape)}" for s in stored)
    return Finding(
        "QT008",
        "error",
        "starts",
        place(entry.modules),
        f"{declared.method} reads {' and '.join(missing)}, and the tensors are called otherwise: {shapes or 'none'}",
        {"missing": list(missing), "stored": stored},
        (
            Hint(f"rename {', '.join(stored)} to {', '.join(missing)}")
            if len(stored) == len(missing)
            else Hint("declare the method whose tensors these are"),
        ),
    )


def _declares_widths(seen: Sequence[Seen]) -> bool:
    return all(entry.declared is not None and entry.declared.bits == entry.scheme.bits for entry in seen)


def undeclared(seen: Sequence[Seen]) -> Iterator[Finding]:
    entry = seen[0]
    yield Finding(
        "QT014",
        "error",
        "starts",
        place(entry.modules),
        f"the tensors are {entry.scheme.format}'s ({entry.scheme.bits} bits, {entry.kind.suffix} {entry.kind.dtype} "
        f"{list(entry.kind.shape)}) and no config declares a quantization",
        {"bits": entry.scheme.bits, "modules": sum(len(e.names) for e in seen)},
        (Hint("add quantization_config to config.json"),),
    )
    for other in _first_of_each(seen, lambda e: e.scheme.layout if e.scheme.layout in KERNEL_LAYOUTS else None):
        yield kernel_layout(other)


def unreadable(declared: Declaration, packed: Sequence[str]) -> Iterator[Finding]:
    """Packed tensors under a declaration, and none of them in a form that any format has."""
    yield Finding(
        "QT008",
        "warning",
        "right",
        place(packed),
        f"{declared.where} declares {declared.method}, and {len(packed)} packed tensors have none of its forms",
        {"method": declared.method, "tensors": len(packed)},
    )


def foreign(declared: Declaration) -> Iterator[Finding]:
    yield Finding(
        "QT007",
        "warning",
        "starts",
        declared.where,
        f"the weights are GGUF, and {declared.where} declares {declared.method}: it is the config of the model that "
        "the file was converted from",
        {"method": declared.method},
        (Hint("remove the quantization block, or serve the file without that config"),),
    )


def unknown(declared: Declaration) -> Finding:
    return Finding(
        "QT012",
        "warning",
        "starts",
        declared.where,
        f"quantization method {declared.method!r} is not known here"
        if declared.method
        else f"the quantization block in {declared.where} names no method and fits none",
        {"method": declared.method},
    )


def of_kv(declared: KVScheme | None, scales: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    shapes: dict[int, list[str]] = {}
    for name, shape in scales.items():
        count = 1
        for length in shape:
            count *= length
        shapes.setdefault(count, []).append(name)
    if len(shapes) > 1:
        text = ", ".join(f"{len(names)} of {count} element(s)" for count, names in sorted(shapes.items()))
        fewest = min(shapes.values(), key=len)
        yield Finding(
            "QT016",
            "error",
            "right",
            place(fewest),
            f"KV scales come in {len(shapes)} shapes: {text}; an engine reads one form for all layers",
            {"elements": sorted(shapes)},
        )
    if declared is not None and declared.bits == 8 and not scales:
        yield Finding(
            "QT017",
            "info",
            "right",
            declared.declared_by,
            f"{declared.declared_by} asks for an 8-bit KV cache and no KV scale is stored: engines use 1.0",
        )
