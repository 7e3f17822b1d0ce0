"""`inspect` on one screen: what it is, how it is quantized, where the bytes are, what each rank holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mlload.checkpoint.finding import Hint
from mlload.cli.describe import model_words
from mlload.cli.findings_text import advice, capped, finding_lines, summary
from mlload.cli.inspect_facts import Quantization, SchemeUse
from mlload.cli.inspect_result import InspectResult, Size, TensorRow
from mlload.cli.layout import Cell, bar, cells, shorten, table, wrap
from mlload.cli.output import Line, Span
from mlload.cli.quantities import UNITS, column, digits, percent, plural, size, unit_for
from mlload.plan.fold import fold_numbers
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model

COMPONENTS = {
    "embedding": "embeddings",
    "head": "lm_head",
    "shared_expert": "shared experts",
    "mixer": "mixer",
    "draft": "draft (MTP)",
}
LAYERS = re.compile(r".*?\blayers\.([0-9,-]+)\.(.+)")
LABEL = 12
TOKENS = 1024
PROBLEMS_SHOWN = 12
WORDS_SHOWN = 6


def render(result: InspectResult, width: int, unicode: bool) -> Iterator[Line]:
    yield from heading(result, width)
    yield from facts(result, width)
    yield ""
    yield from where_the_bytes_are(result, width, unicode)
    if result.sizes:
        yield ""
        yield from per_rank(result, width)
        yield from ranks_table(result)
    yield from problems(result, width)


def heading(result: InspectResult, width: int) -> Iterator[Line]:
    """The answer: a name, what it is, how large."""
    checkpoint, model = result.checkpoint, result.model
    words = model_words(model) if model is not None else []
    if checkpoint.format == "adapter":
        words.append(adapter(result))
    if result.files.weights:
        words.append(f"{size(result.files.weight_bytes)} in {plural(len(result.files.weights), 'file')}")
    words = words or ["nothing that a model could be read from"]
    label = shorten(checkpoint.label.rstrip("/").rsplit("/", 1)[-1] or checkpoint.label, width // 2)
    first, *rest = wrap(", ".join(words), width, " " * (LABEL + 1), first=" " * (cells(label) + 2))
    yield [Span(label, "bold"), first[cells(label) :]]
    yield from rest


def adapter(result: InspectResult) -> str:
    settings = result.checkpoint.json_files.get("adapter_config.json")
    settings = settings if isinstance(settings, dict) else {}
    return (
        f"LoRA adapter for {settings.get('base_model_name_or_path', 'an unnamed base')}, rank {settings.get('r', '?')}"
    )


def facts(result: InspectResult, width: int) -> Iterator[Line]:
    def row(label: str, text: str) -> Iterator[Line]:
        first, *rest = wrap(text, width, " " * LABEL)
        yield [Span(f"{label:<{LABEL}}", "dim"), first[LABEL:]]
        yield from rest

    if result.model is not None:
        shape = shape_of(result)
        if shape:
            yield from row("shape", shape)
        if result.model.inferred:
            yield from row("inferred", "the model type is not in the tables; guessed from tensor names and shapes")
    if result.unplanned:
        yield from row("no plan", result.unplanned)
    if result.quantization is not None:
        yield from row("quantized", "; ".join(quantization_words(result.quantization, layers_of(result))))
    yield from row("files", files_words(result))
    if result.checkpoint.revision:
        yield from row("revision", result.checkpoint.revision)


def shape_of(result: InspectResult) -> str:
    """ "80 layers, hidden 8192, 64 heads / 8 KV heads of 128, 131072 tokens of context"."""
    assert result.model is not None
    config = result.model.config
    words = []
    if config.layers:
        words.append(plural(config.layers, "layer"))
    if config.hidden:
        words.append(f"hidden {config.hidden}")
    words += attention_words(result.model)
    if config.experts:
        per_token = config.get("num_experts_per_tok")
        words.append(f"{config.experts} experts" + (f", {per_token} a token" if per_token else ""))
    if config.vocab:
        words.append(f"vocabulary {config.vocab}" + (" (tied)" if config.tied else ""))
    context = config.get("max_position_embeddings")
    if isinstance(context, int):
        words.append(f"{context} tokens of context")
    return ", ".join(words)


def attention_words(model: Model) -> Iterator[str]:
    """ "64 heads / 8 KV heads of 128" for each kind of attention, with its layers where there are several kinds."""
    kinds = model.architecture.attention(model.config)
    for kind in kinds:
        words = {
            "full": f"{kind.heads} heads / {kind.kv_heads} KV heads of {kind.head_dim}",
            "sliding": f"{kind.heads} heads / {kind.kv_heads} KV heads of {kind.head_dim} in a window of {kind.window}",
            "chunked": f"{kind.heads} heads / {kind.kv_heads} KV heads of {kind.head_dim} in chunks of {kind.window}",
            "mla": f"{kind.heads} heads on a latent of {kind.latent}",
            "linear": "linear attention",
            "ssm": "state space",
        }.get(kind.kind)
        if words is not None:
            yield words + (f" ({plural(len(kind.layers), 'layer')})" if len(kinds) > 1 else "")


def quantization_words(quant: Quantization, layers: int) -> Iterator[str]:
    for use in quant.schemes[:3]:
        yield scheme_words(use)
    if len(quant.schemes) > 3:
        yield f"and {len(quant.schemes) - 3} more schemes"
    if len(quant.schemes) > 1 and quant.effective_bits is not None:
        yield f"{digits(quant.effective_bits)} bits per weight over all"
    if quant.unquantized:
        yield f"in floats: {some(tuple(short(name, layers) for name in quant.unquantized))}"
    if quant.kv is not None:
        yield f"KV cache {quant.kv.kind}{quant.kv.bits} per {quant.kv.strategy}"


def scheme_words(use: SchemeUse) -> str:
    """ "awq gemm 4-bit int, group 128, zero points, 4.16 bits per weight"."""
    scheme = use.scheme
    layout = f" {scheme.layout}" if scheme.layout not in ("", scheme.format) else ""
    words = [f"{scheme.format}{layout} {scheme.bits}-bit {scheme.kind}"]
    if scheme.block is not None:
        words.append(f"blocks of {scheme.block[0]}x{scheme.block[1]}")
    elif scheme.group_size is not None and scheme.group_size > 0:
        words.append(f"group {scheme.group_size}")
    elif scheme.strategy:
        words.append(f"per {scheme.strategy}")
    if not scheme.symmetric:
        words.append("zero points")
    if scheme.act_order:
        words.append("act-order")
    if scheme.activation is not None:
        words.append(f"{scheme.activation} {scheme.activation_bits or 16}-bit activations")
    return ", ".join([*words, f"{digits(use.effective_bits)} bits per weight"])


def layers_of(result: InspectResult) -> int:
    return result.model.config.layers if result.model is not None else 0


def short(name: str, layers: int) -> str:
    """ "model.layers.3-60.mlp.gate" -> "mlp.gate (layers 3-60)", without the range where it is all of them."""
    found = LAYERS.fullmatch(name)
    if found is None:
        return name.removeprefix("model.")
    return found[2] if found[1] == f"0-{layers - 1}" else f"{found[2]} (layers {found[1]})"


def some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - WORDS_SHOWN} more" if len(names) > WORDS_SHOWN else ""
    return ", ".join(names[:WORDS_SHOWN]) + more


def files_words(result: InspectResult) -> str:
    files, cut = result.files, result.model.checkpoint.cut if result.model is not None else None
    if cut is not None and cut.layout == "mlload":
        size_of_cut = Mesh(cut.tp, cut.pp, bool(cut.ep)).label()
        words = [f"{plural(len(files.stray), 'safetensors file')} of the ranks of {size_of_cut}, for mlload alone"]
        files = replace(files, stray=())
    else:
        words = [plural(len(files.weights), f"{result.checkpoint.format} file")] if files.weights else ["no weights"]
    if files.index is not None:
        words.append("index agrees with headers" if files.index_agrees else "index and headers disagree")
    if files.stray:
        words.append(f"{plural(len(files.stray), 'stray weight file')} outside the index: {some(files.stray)}")
    words.append(f"tokenizer {files.tokenizer}" if files.tokenizer else "no tokenizer")
    words.append(f"chat template in {files.chat_template}" if files.chat_template else "no chat template")
    return ", ".join(words)


def where_the_bytes_are(result: InspectResult, width: int, unicode: bool) -> Iterator[Line]:
    whole = sum(share.nbytes for share in result.shares)
    if not whole:
        yield "no tensors"
        return
    unit = unit_for(result.shares[0].nbytes)
    large = [share.nbytes if share.nbytes >= 0.05 * 1024 ** UNITS.index(unit) else None for share in result.shares]
    figures = [
        size(share.nbytes) if figure == "-" else f"{figure} {unit}"
        for share, figure in zip(result.shares, column(large, unit), strict=True)
    ]
    names = [COMPONENTS.get(share.name, share.name) for share in result.shares]
    label = max(LABEL, max(map(len, names)) + 2)
    figure_width = max(map(len, figures))
    room = max(width - label - figure_width - 11, 8)
    largest = result.shares[0].nbytes
    yield Span("where the bytes are", "bold")
    for name, share, figure in zip(names, result.shares, figures, strict=True):
        filled = bar(share.nbytes / largest, room, unicode)
        yield [
            f"{name:<{label}}",
            Span(filled, "accent"),
            " " * (room - len(filled)),
            f"  {figure:>{figure_width}}  {percent(share.nbytes, whole):>7}",
        ]


def per_rank(result: InspectResult, width: int) -> Iterator[Line]:
    """The table of sizes, then why those that do not work do not."""
    working = [entry for entry in result.sizes if entry.works]
    units = {
        "weights": unit_for(max((entry.weight_bytes for entry in working), default=0)),
        "kv": unit_for(max((entry.kv_bytes_per_token * TOKENS for entry in working), default=0)),
        "state": unit_for(max((entry.kv_state_bytes_per_sequence for entry in working), default=0)),
    }

    def row(label: str, unit: str, figure: str) -> list[Cell]:
        times = TOKENS if unit == "kv" else 1
        values = [getattr(entry, figure) * times if entry.works else None for entry in result.sizes]
        return [label, *column(values, units[unit]), units[unit]]

    rest = result.sizes[0].mesh._replace(tp=1).label().removeprefix("tp 1")
    head: list[Cell] = [Span(f"per rank{rest}", "bold"), *(f"tp {entry.mesh.tp}" for entry in result.sizes), ""]
    starts: list[Cell] = ["works"]
    starts += [Span("yes", "good") if entry.works else Span("no", "bad") for entry in result.sizes]
    rows: list[list[Cell]] = [head, [*starts, ""]]
    if working:
        rows += [row("weights", "weights", "weight_bytes"), row(f"KV / {TOKENS} tokens", "kv", "kv_bytes_per_token")]
        if any(entry.kv_state_bytes_per_sequence for entry in working):
            rows.append(row("state / sequence", "state", "kv_state_bytes_per_sequence"))
    yield from table(rows, right=[False, *[True] * len(result.sizes), False], gap=3)
    yield from why_not(result.sizes, width)


def why_not(sizes: tuple[Size, ...], width: int) -> Iterator[Line]:
    """One line for each rule that forbids sizes: its first sentence stands for the others."""
    reasons: dict[str, tuple[list[int], str]] = {}
    for entry in sizes:
        for finding in entry.errors:
            place = "" if finding.where == "config.json" else f"{finding.where}: "
            found, _ = reasons.setdefault(finding.code, ([], place + finding.message))
            if entry.mesh.tp not in found:
                found.append(entry.mesh.tp)
    for code, (found, text) in reasons.items():
        where = f"tp {', '.join(map(str, found))}"
        lines = wrap(f"{where}: {text}", width, " " * (len(code) + 2))
        yield [Span(code, "bad"), lines[0][len(code) :]]
        yield from lines[1:]
    hints = [
        hint for entry in sizes for finding in entry.errors for hint in finding.hints if hint.needs == "these files"
    ]
    if hints:
        yield from wrap(advice(hints[0]), width)


def ranks_table(result: InspectResult) -> Iterator[Line]:
    """The ranks of the mesh asked, where they differ; equal neighbours are folded."""
    if result.plan is None:
        return
    groups: list[tuple[list[int], tuple[int, int, int, int]]] = []
    for rank in result.plan.ranks():
        figures = (rank.disk_bytes, rank.weight_bytes, rank.kv_bytes_per_token, rank.kv_state_bytes_per_sequence)
        if groups and groups[-1][1] == figures:
            groups[-1][0].append(rank.rank)
        else:
            groups.append(([rank.rank], figures))
    if len(groups) == 1:
        return
    yield ""
    head: list[Cell] = [Span(result.plan.mesh.label(), "bold"), "reads", "weights", f"KV / {TOKENS} tokens", "state"]
    rows: list[list[Cell]] = [head]
    for ranks, (disk, weight, kv, state) in groups:
        label = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {fold_numbers(ranks)}"
        rows.append([label, size(disk), size(weight), size(kv * TOKENS), size(state) if state else "-"])
    yield from table(rows, right=[False, True, True, True, True], gap=3)


def problems(result: InspectResult, width: int) -> Iterator[Line]:
    yield ""
    if not result.problems:
        yield Span("no problems found in the files", "good")
        return
    shown, left = capped(result.problems, PROBLEMS_SHOWN)
    said: set[Hint] = set()
    for finding in shown:
        yield from finding_lines(finding, width, said=said)
    if left:
        yield f"and {left} more: --format json lists all"
    yield ""
    code = result.problems[0].code
    yield f"{summary(result.problems)}.  mlload rules {code} explains."


def tensor_lines(rows: tuple[TensorRow, ...]) -> Iterator[Line]:
    """The listing of --tensors: one tensor a line, names never cut so that they grep."""
    head = ("tensor", "role", "shape", "dtype", "bytes", "cut", "file")
    lines: list[list[Cell]] = [[Span(word, "bold") for word in head]]
    for row in rows:
        shape = "x".join(map(str, row.shape)) or "scalar"
        lines.append([row.name, row.role, shape, row.dtype, size(row.nbytes), row.cut, row.file])
    yield from table(lines, right=[False, False, True, False, True])
    yield ""
    yield f"{plural(len(rows), 'tensor')}, {size(sum(row.nbytes for row in rows))}"
