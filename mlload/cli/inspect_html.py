"""`inspect --html`: one self-contained page with pictures of bytes, readable in light, dark and on paper.

No scripts, no external files. Every text that comes from a checkpoint is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path

from mlload import __version__
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.cli.describe import model_words
from mlload.cli.findings_text import advice, sentence, summary
from mlload.cli.inspect_result import InspectResult
from mlload.cli.inspect_text import COMPONENTS, TOKENS, files_words, layers_of, quantization_words, shape_of
from mlload.cli.quantities import count, percent, plural, size
from mlload.plan.fold import fold_numbers
from mlload.plan.plan import Plan

COLOURS = 10
RANKS_DRAWN = 64


def write_page(result: InspectResult, path: Path) -> None:
    try:
        path.write_text(page(result), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise MlloadError(f"cannot write {path}: {error.strerror}") from error


def page(result: InspectResult) -> str:
    label = escape(name_of(result))
    style = Path(__file__).with_name("inspect.css").read_text(encoding="utf-8")
    body = "\n".join(sections(result))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{label} - mlload inspect</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def name_of(result: InspectResult) -> str:
    return result.checkpoint.label.rstrip("/").rsplit("/", 1)[-1] or result.checkpoint.label


def sections(result: InspectResult) -> Iterator[str]:
    colours = colours_of(result)
    yield f"<h1>{escape(name_of(result))}</h1>"
    yield f'<p class="lead">{escape(lead(result))}</p>'
    yield figures(result)
    yield section("Problems", problems(result))
    yield section("Where the bytes are", where_the_bytes_are(result, colours))
    if result.sizes:
        yield section("Tensor-parallel sizes", sizes(result))
    if result.plan is not None:
        yield section(f"Bytes per rank at {escape(result.plan.mesh.label())}", ranks(result.plan, colours))
    yield section("What it is", facts(result))
    engine = f"{result.profile.engine} {result.profile.version}".strip()
    yield f"<footer>mlload {__version__}, planned as {escape(engine)} would hold it. Fingerprint of names, sizes and "
    yield f"headers: <code>{escape(result.checkpoint.fingerprint[:16])}</code></footer>"


def section(title: str, content: Iterable[str]) -> str:
    return f"<section>\n<h2>{title}</h2>\n" + "\n".join(content) + "\n</section>"


def lead(result: InspectResult) -> str:
    if result.model is None:
        return result.unplanned or result.checkpoint.format
    return ", ".join(model_words(result.model))


def figures(result: InspectResult) -> str:
    """The few numbers that people ask for first."""
    cards: list[tuple[str, str]] = []
    if result.model is not None:
        total, active = result.model.parameters_total, result.model.parameters_active
        cards.append((count(total), "parameters" if active == total else f"parameters, {count(active)} active"))
    cards.append((size(result.files.weight_bytes), f"in {plural(len(result.files.weights), 'weight file')}"))
    if result.quantization is not None and result.quantization.effective_bits is not None:
        cards.append((f"{result.quantization.effective_bits:.2f}", "bits per quantized weight"))
    working = [entry for entry in result.sizes if entry.works]
    if result.sizes:
        first = ", ".join(str(entry.mesh.tp) for entry in working)
        cards.append((first or "none", "tensor-parallel sizes that work, of those shown"))
    if working:
        kv = working[0]
        cards.append((size(kv.kv_bytes_per_token * TOKENS), f"KV cache for {TOKENS} tokens at {kv.mesh.label()}"))
    drawn = "".join(f"<div><b>{escape(value)}</b><span>{escape(text)}</span></div>" for value, text in cards)
    return f'<div class="figures">{drawn}</div>'


def colours_of(result: InspectResult) -> dict[str, int]:
    """Component -> colour, the largest first; the same component has the same colour in every picture."""
    return {share.name: at % COLOURS for at, share in enumerate(result.shares)}


def stacked(parts: Mapping[str, int], whole: int, colours: Mapping[str, int], tall: bool = False) -> str:
    """One horizontal bar whose pieces are in proportion to `whole`."""
    drawn = "".join(
        f'<i style="width:{100 * nbytes / whole:.3f}%;background:var(--c{colours.get(name, COLOURS - 1)})" '
        f'title="{escape(COMPONENTS.get(name, name))}: {size(nbytes)}"></i>'
        for name, nbytes in sorted(parts.items(), key=lambda item: colours.get(item[0], COLOURS))
        if nbytes and whole
    )
    return f'<div class="bar{" tall" if tall else ""}">{drawn}</div>'


def dot(colour: int) -> str:
    return f'<span class="dot" style="background:var(--c{colour})"></span>'


def where_the_bytes_are(result: InspectResult, colours: Mapping[str, int]) -> Iterator[str]:
    whole = sum(share.nbytes for share in result.shares)
    if not whole:
        yield "<p>No tensors.</p>"
        return
    yield stacked({share.name: share.nbytes for share in result.shares}, whole, colours, tall=True)
    yield '<div class="scroll"><table>'
    for share in result.shares:
        parameters = "" if share.parameters is None else f"{count(share.parameters)} parameters"
        yield (
            f"<tr><td>{dot(colours[share.name])}{escape(COMPONENTS.get(share.name, share.name))}</td>"
            f'<td class="extra">{parameters}</td><td>{size(share.nbytes)}</td>'
            f"<td>{escape(percent(share.nbytes, whole))}</td></tr>"
        )
    yield "</table></div>"


def sizes(result: InspectResult) -> Iterator[str]:
    yield '<div class="scroll"><table><tr><th>size</th><th>works</th><th>weights per rank</th>'
    yield f"<th>KV for {TOKENS} tokens</th><th>state per sequence</th></tr>"
    for entry in result.sizes:
        if entry.works:
            state = size(entry.kv_state_bytes_per_sequence) if entry.kv_state_bytes_per_sequence else "-"
            cells = ['<span class="good">yes</span>', size(entry.weight_bytes)]
            cells += [size(entry.kv_bytes_per_token * TOKENS), state]
        else:
            codes = ", ".join(dict.fromkeys(finding.code for finding in entry.errors))
            cells = [f'<span class="bad">no: {escape(codes)}</span>', "-", "-", "-"]
        yield f"<tr><td>{escape(entry.mesh.label())}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"
    said: dict[str, Finding] = {}
    for finding in (finding for entry in result.sizes for finding in entry.errors):
        said.setdefault(finding.code, finding)
    for finding in said.values():
        yield from finding_html(finding)


def ranks(plan: Plan, colours: Mapping[str, int]) -> Iterator[str]:
    """A bar per rank (equal neighbours share one), all drawn to the scale of the largest."""
    groups: list[tuple[list[int], dict[str, int]]] = []
    for rank in plan.ranks():
        if groups and groups[-1][1] == rank.by_component:
            groups[-1][0].append(rank.rank)
        else:
            groups.append(([rank.rank], rank.by_component))
    largest = max((sum(parts.values()) for _, parts in groups), default=0)
    yield '<div class="scroll"><table>'
    for numbers, parts in groups[:RANKS_DRAWN]:
        label = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {fold_numbers(numbers)}, each"
        yield (
            f'<tr><td>{label}</td><td class="wide">{stacked(parts, largest, colours)}</td>'
            f"<td>{size(sum(parts.values()))}</td></tr>"
        )
    yield "</table></div>"
    if len(groups) > RANKS_DRAWN:
        yield f"<p>and {len(groups) - RANKS_DRAWN} more groups of ranks</p>"
    names = dict.fromkeys(name for _, parts in groups for name in parts)
    legend = (
        f"<span>{dot(colours.get(name, COLOURS - 1))}{escape(COMPONENTS.get(name, name))}</span>"
        for name in sorted(names, key=lambda name: colours.get(name, COLOURS))
    )
    yield f'<div class="legend">{"".join(legend)}</div>'


def facts(result: InspectResult) -> Iterator[str]:
    rows = [("source", result.checkpoint.label), ("files", files_words(result))]
    if result.checkpoint.revision:
        rows.append(("revision", result.checkpoint.revision))
    if result.model is not None:
        rows.append(("shape", shape_of(result)))
        if result.model.inferred:
            rows.append(("inferred", "the model type is not in the tables; guessed from tensor names and shapes"))
    if result.quantization is not None:
        rows.append(("quantized", "; ".join(quantization_words(result.quantization, layers_of(result)))))
        rows += [("" if at else "evidence", text) for at, text in enumerate(result.quantization.evidence)]
    yield "<dl>"
    for term, text in rows:
        yield f"<dt>{term}</dt><dd>{escape(text)}</dd>"
    yield "</dl>"


def problems(result: InspectResult) -> Iterator[str]:
    if not result.problems:
        yield '<p class="good">None found in the files.</p>'
        return
    yield f"<p>{escape(summary(result.problems))}</p>"
    for finding in result.problems:
        yield from finding_html(finding)


def finding_html(finding: Finding) -> Iterator[str]:
    yield '<div class="finding">'
    yield f'<div><b class="{finding.severity}">{finding.severity} {escape(finding.code)}</b> '
    yield f"<code>{escape(finding.where)}</code></div>"
    yield f"<p>{escape(sentence(finding.message))}</p>"
    if finding.hints:
        yield "<ul>"
        for hint in finding.hints:
            command = f" <code>{escape(hint.command)}</code>" if hint.command else ""
            yield f"<li>{escape(advice(hint))}{command}</li>"
        yield "</ul>"
    yield "</div>"
