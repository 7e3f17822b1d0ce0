"""`validate` for people: the answer, every reason once, a table of the sizes asked, and the line that starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlload.checkpoint.finding import Finding, Hint, by_severity
from mlload.cli.describe import model_words
from mlload.cli.findings_text import finding_lines, sentence, summary
from mlload.cli.layout import Cell, cells, shorten, table, wrap
from mlload.cli.output import Line, Span, Style
from mlload.cli.quantities import column, plural, size, unit_for
from mlload.cli.validate_result import Entry, ValidateResult, offered, serve_command
from mlload.plan.mesh import Mesh
from mlload.validators.verdict import Word

WORDS: dict[Word, tuple[str, Style]] = {
    "ok": ("OK", "good"),
    "warn": ("OK", "warn"),
    "fail": ("FAIL", "bad"),
    "unknown": ("UNKNOWN", "warn"),
}
SIZES_ABREAST = 4  # columns of the table of generations, which fit 80 characters
NAMES = {"vllm": "vLLM", "transformers": "transformers", "native": "mlload"}


def render(result: ValidateResult, width: int) -> Iterator[Line]:
    sources = by_source(result)
    for entries in sources:
        # Of several sources, those without a fault are in the table alone.
        if len(sources) == 1 or any(entry.verdict.verdict != "ok" for entry in entries):
            yield from of_source(entries, result, width)
    if len(sources) > 1:
        yield from overview(result, width)
    yield from closing(result, width)


def engine_label(result: ValidateResult) -> str:
    profile = result.question.profile
    return f"{NAMES.get(profile.engine, profile.engine)} {profile.version}".strip()


def of_source(entries: Sequence[Entry], result: ValidateResult, width: int) -> Iterator[Line]:
    if entries[0].question is not None:  # what settings say for this source
        result = replace(result, question=entries[0].question)
    yield from heading(entries[0], names_of(result)[entries[0].source], width)
    if len({entry.source for entry in result.entries}) == 1:
        yield from asked([entry.mesh for entry in entries], result, width)
        yield ""
    yield from answer(entries, result, width)
    yield from memory(entries, result, width)
    if entries[0].looked is not None:
        from mlload.cli.validate_deep import lines

        yield from lines(entries[0].looked, width)
    said: set[Hint] = set()
    for finding, meshes in grouped(entries):
        yield ""
        note = f"at {labels(meshes)}" if len(meshes) < len(entries) else ""
        yield from finding_lines(finding, width, note, said)
    yield from left_out(entries, width)
    open_questions = entries[0].verdict.unknowns if entries[0].verdict.starts is not False else ()
    for unknown in open_questions:
        yield ""
        how = f" To know: {unknown.how_to_know}." if unknown.how_to_know else ""
        first, *rest = wrap(f"{unknown.what}: {sentence(unknown.why)}{how}", width, " " * 8)
        yield [Span("unknown", "warn"), first[7:]]
        yield from rest
    if len(entries) > 1 and any(entry.plan is not None for entry in entries):
        yield ""
        yield from sizes_table(entries)
        for at in range(0, len(entries), SIZES_ABREAST):
            yield from generations_by_size(entries[at : at + SIZES_ABREAST])
    elif len(entries) == 1:
        yield from generations_table(entries)
        yield from kernels(entries[0], width)
    yield ""


def left_out(entries: Sequence[Entry], width: int) -> Iterator[Line]:
    """Findings that do not count: those waived, each with its reason, and how many were left out by their codes."""
    waived = {(w.finding.code, w.finding.where): w for entry in entries for w in entry.waived}
    for finding, waiver in waived.values():
        until = f"until {waiver.until}: " if waiver.until else ""
        yield ""
        yield [Span("waived ", "dim"), " ", finding.code, "  ", shorten(finding.where, max(width - 15, 20))]
        yield from wrap(sentence(f"{until}{waiver.reason}"), width, " " * 8)
    ignored = max(entry.ignored for entry in entries)
    if ignored:
        yield ""
        yield Span(f"{plural(ignored, 'finding')} left out by --select and --ignore", "dim")


def names_of(result: ValidateResult) -> dict[str, str]:
    """What each source is called: the end of its path, where that tells all of them apart."""
    names = {entry.source: entry.source.rstrip("/").rsplit("/", 1)[-1] or entry.source for entry in result.entries}
    return names if len(set(names.values())) == len(names) else {source: source for source in names}


def heading(entry: Entry, name: str, width: int) -> Iterator[Line]:
    label = shorten(name, width // 2)
    words = []
    if entry.model is not None:
        words = model_words(entry.model)
        if not entry.model.config_only:
            words.append(size(sum(entry.model.bytes_by_component.values())))
    first, *rest = wrap(", ".join(words), width, " " * 4, first=" " * (cells(label) + 2))
    yield [Span(label, "bold"), first[cells(label) :]]
    yield from rest


def asked(meshes: Sequence[Mesh], result: ValidateResult, width: int) -> Iterator[Line]:
    """ "vLLM 0.33.0, tp 8 on cc:9.0", and which optional extras of the engine count as installed."""
    gpu, judged = result.question.gpu, result.question.capability
    where = f" on {gpu.name}" if gpu else ""
    if gpu is None and judged is not None:
        where = f" on compute capability {judged[0]}.{judged[1]} (no --gpu was named; memory is not judged)"
    yield from wrap(f"{engine_label(result)}, {labels(meshes)}{where}", width)
    assumed = result.question.profile.assumed
    if assumed:
        have = ", ".join(name for name, there in assumed.items() if there) or "nothing"
        lack = ", ".join(name for name, there in assumed.items() if not there)
        text = f"assuming {have} installed" + (f", but not {lack}" if lack else "")
        yield from (Span(line, "dim") for line in wrap(text, width))


def labels(meshes: Sequence[Mesh]) -> str:
    """ "tp 1, 2, 4" where only tp differs, else each mesh in full."""
    if len({mesh._replace(tp=1) for mesh in meshes}) == 1:
        rest = meshes[0]._replace(tp=1).label().removeprefix("tp 1")
        return f"tp {', '.join(str(mesh.tp) for mesh in meshes)}{rest}"
    return ", ".join(mesh.label() for mesh in meshes)


def answer(entries: Sequence[Entry], result: ValidateResult, width: int) -> Iterator[Line]:
    """One line: the worst verdict among the sizes asked, in words."""
    by_word = {word: [e for e in entries if e.verdict.verdict == word] for word in WORDS}
    worst: Word = next(word for word in ("fail", "unknown", "warn", "ok") if by_word[word])
    name, style = WORDS[worst]
    some = by_word[worst]
    sizes = labels([entry.mesh for entry in some])
    engine = engine_label(result).split(" ")[0]
    if worst == "fail":
        refused = [entry.mesh for entry in some if entry.verdict.starts is False]
        others = [entry for entry in some if entry.verdict.starts is not False]
        wrong = [entry.mesh for entry in others if is_wrong(entry)]
        full = [entry.mesh for entry in others if does_not_fit(entry)]
        changed = [entry.mesh for entry in others if not is_wrong(entry) and not does_not_fit(entry)]
        said = [f"{engine} would refuse to start at {labels(refused)}"] if refused else []
        said += [f"it does not fit at {labels(full)}"] if full else []
        said += [f"{engine} starts at {labels(wrong)}, but its answers would be wrong"] if wrong else []
        said += [f"{engine} starts at {labels(changed)}, but this is not what was approved"] if changed else []
        text = "; ".join(said)
        fine = [entry.mesh for entry in entries if entry.verdict.verdict in ("ok", "warn")]
        text += f"; it starts at {labels(fine)}" if fine else ""
    elif worst == "unknown":
        text = f"whether {engine} starts at {sizes} could not be judged"
    else:
        refused = [entry.mesh for entry in entries if entry.verdict.starts is False]
        started = [entry.mesh for entry in entries if entry.verdict.starts is not False]
        said = [f"{engine} would refuse to start at {labels(refused)}, which is waived or left out"] if refused else []
        said += [f"{engine} would start at {labels(started)}"] if started else []
        text = "; ".join(said) + (", with warnings" if worst == "warn" else "")
    first, *rest = wrap(text, width, " " * (len(name) + 2))
    yield [Span(name, style), first[len(name) :]]
    yield from rest


def is_wrong(entry: Entry) -> bool:
    """Something other than memory is at fault, and not only that it differs from what was approved."""
    errors = [f for f in entry.verdict.findings if f.severity == "error"]
    return any(f.question != "fits" and not f.code.startswith("LK") for f in errors)


def does_not_fit(entry: Entry) -> bool:
    """Memory alone is at fault."""
    errors = [f for f in entry.verdict.findings if f.severity == "error"]
    return not is_wrong(entry) and any(f.question == "fits" for f in errors)


def grouped(entries: Sequence[Entry]) -> list[tuple[Finding, list[Mesh]]]:
    """Each violated rule once per place, with the meshes that it holds for; the first mesh's sentence stands."""
    found: dict[tuple[str, str], tuple[Finding, list[Mesh]]] = {}
    for entry in entries:
        for finding in entry.verdict.findings:
            _, meshes = found.setdefault((finding.code, finding.where), (finding, []))
            if entry.mesh not in meshes:
                meshes.append(entry.mesh)
    order = by_severity([finding for finding, _ in found.values()])
    return [found[finding.code, finding.where] for finding in order]


def codes(entry: Entry) -> str:
    severe = [f for f in entry.verdict.findings if f.severity == "error"] or [
        f for f in entry.verdict.findings if f.severity == "warning"
    ]
    return " ".join(dict.fromkeys(finding.code for finding in severe)) or "-"


def starts_cell(entry: Entry) -> Span:
    return starts_span(entry.verdict.starts)


def starts_span(starts: bool | None) -> Span:
    return {True: Span("yes", "good"), False: Span("no", "bad"), None: Span("unknown", "warn")}[starts]


def fits_cell(entry: Entry) -> Span:
    styles: dict[str, Style] = {"yes": "good", "tight": "warn", "no": "bad", "unknown": "warn"}
    word = entry.verdict.fits
    return Span("-") if word is None or entry.verdict.starts is False else Span(word, styles[word])


def largest_rank(entry: Entry) -> int | None:
    """Bytes of weights on the rank that holds the most; None where it does not start."""
    if entry.plan is None or entry.verdict.starts is False:
        return None
    return max(rank.weight_bytes for rank in entry.plan.ranks())


def sizes_table(entries: Sequence[Entry]) -> Iterator[Line]:
    """One row a size: does it start, what the largest rank holds, and why not."""
    found = [largest_rank(entry) for entry in entries]
    unit = unit_for(max((nbytes for nbytes in found if nbytes is not None), default=0))
    figures = column(found, unit)
    judged = any(entry.verdict.fits is not None for entry in entries)
    titles = ["size", "starts", f"{unit} per rank" if any(found) else "per rank", *(["fits"] if judged else []), "why"]
    rows: list[list[Cell]] = [[Span(word, "bold") for word in titles]]
    for entry, figure in zip(entries, figures, strict=True):
        fits = [fits_cell(entry)] if judged else []
        rows.append([entry.mesh.label(), starts_cell(entry), figure, *fits, codes(entry)])
    yield from table(rows, right=[title.endswith("per rank") for title in titles], gap=3)


def memory(entries: Sequence[Entry], result: ValidateResult, width: int) -> Iterator[Line]:
    """What the largest rank of a single size holds, and what that leaves for the cache of the GPU that was named."""
    if len(entries) != 1:
        return
    entry = entries[0]
    nbytes, answer = largest_rank(entry), entry.verdict.memory
    if nbytes is None:
        return
    texts = [f"{size(nbytes)} of weights on the largest rank"]
    if answer is not None:
        low, high = answer.peak.beside
        texts.append(
            f"of {size(answer.settings.budget)} ({answer.settings.utilization:g} of the GPU), {size(low)} to "
            f"{size(high)} go beside them"
        )
    yield from wrap("; ".join(texts), width)
    if answer is not None and answer.concurrency[1] > 0:
        low, high = answer.tokens
        few, many = answer.concurrency
        text = (
            f"the KV cache holds {low:,} to {high:,} tokens: {few:,.1f} to {many:,.1f} requests of {answer.request:,}"
        )
        if answer.max_model_len is not None and answer.max_model_len < answer.request:
            text += f"; one of up to {answer.max_model_len:,} surely fits" if low else ""
        yield from wrap(text, width)
    nodes = 1 if entry.question is None else entry.question.asked.nodes
    if nodes > 1 and entry.plan is not None:
        held = [0] * nodes
        for rank in entry.plan.ranks():
            held[entry.mesh.node(rank.rank, nodes)] += rank.weight_bytes
        here = entry.mesh.tp * entry.mesh.pp * entry.mesh.dp // nodes
        text = f"{plural(nodes, 'machine')} of {plural(here, 'rank')}; the fullest holds {size(max(held))} of weights"
        yield from wrap(text, width)
    if entry.verdict.fits == "unknown":
        yield from wrap("whether it fits could not be judged", width)


def generations_table(entries: Sequence[Entry]) -> Iterator[Line]:
    """One row a GPU generation, where none was named and one size was asked."""
    rows = entries[0].generations if len(entries) == 1 else ()
    if not rows:
        return
    yield ""
    cells_: list[list[Cell]] = [[Span(word, "bold") for word in ("GPU", "capability", "starts", "why")]]
    for row in rows:
        assert row.gpu.capability is not None
        capability = ".".join(map(str, row.gpu.capability))
        cells_.append([row.gpu.name, capability, starts_span(row.starts), " ".join(row.codes) or "-"])
    yield from table(cells_, gap=3)


def generations_by_size(entries: Sequence[Entry]) -> Iterator[Line]:
    """One row a GPU generation and one column a size: whether it starts there; why not is in the JSON."""
    if not all(entry.generations for entry in entries):
        return
    yield ""
    titles = ["GPU", "capability", *(entry.mesh.label() for entry in entries)]
    rows: list[list[Cell]] = [[Span(word, "bold") for word in titles]]
    for same_gpu in zip(*(entry.generations for entry in entries), strict=True):
        gpu = same_gpu[0].gpu
        assert gpu.capability is not None
        starts = [starts_span(row.starts) for row in same_gpu]
        rows.append([gpu.name, ".".join(map(str, gpu.capability)), *starts])
    yield from table(rows, gap=3)


def kernels(entry: Entry, width: int) -> Iterator[Line]:
    """Which kernel runs which layers on the GPU that was named; why the others do not is in the JSON."""
    chosen: dict[str, list[str]] = {}
    for choice in entry.verdict.kernels:
        if choice.chosen is not None:
            name = f"{choice.chosen} ({choice.provider})" if choice.provider else choice.chosen
            chosen.setdefault(name, []).append(choice.layers.partition("[")[2].rstrip("]") or choice.layers)
    if not chosen:
        return
    yield ""
    yield Span("kernels", "bold")
    column_width = max(map(len, chosen)) + 2
    for name, layers in chosen.items():
        yield from wrap(", ".join(dict.fromkeys(layers)), width, " " * column_width, first=f"{name:<{column_width}}")


def overview(result: ValidateResult, width: int) -> Iterator[Line]:
    """All sources and sizes in one table."""
    yield from asked(list(dict.fromkeys(entry.mesh for entry in result.entries)), result, width)
    yield ""
    names = names_of(result)
    rows: list[list[Cell]] = [[Span(word, "bold") for word in ("source", "size", "starts", "verdict", "why")]]
    for entry in result.entries:
        word = Span(entry.verdict.verdict, WORDS[entry.verdict.verdict][1])
        label = shorten(names[entry.source], width // 2)
        rows.append([label, entry.mesh.label(), starts_cell(entry), word, codes(entry)])
    yield from table(rows, gap=2)
    yield ""


def closing(result: ValidateResult, width: int) -> Iterator[Line]:
    if result.upgrades:
        from mlload.cli.validate_upgrade import lines

        for upgrade in result.upgrades:
            yield from lines(upgrade, width)
    if result.not_judged:
        said = wrap(f"not judged: {', '.join(result.not_judged)}", width, " " * 4, first="")
        yield from (Span(text, "dim") for text in said)
    sources = by_source(result)
    findings = by_severity([finding for source in sources for finding, _ in grouped(source)])
    line = summary(findings)
    if findings and findings[0].severity != "info":
        line += f".  mlload rules {findings[0].code} explains."
    yield line
    if len(sources) == 1 and result.question.profile.engine == "vllm":
        command = serve_command(offered(sources[0]), result.question)
        if command is not None:
            yield f"would start: {command}"
            nodes = (offered(sources[0]).question or result.question).asked.nodes
            if nodes > 1 and "--node-rank 0" in command:
                text = f"on each of the {nodes} machines, with its own --node-rank and the address of the first"
                yield Span(text, "dim")


def by_source(result: ValidateResult) -> list[list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in result.entries:
        found.setdefault(entry.source, []).append(entry)
    return list(found.values())
