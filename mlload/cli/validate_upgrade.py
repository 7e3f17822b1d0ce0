"""`--engine vllm@A,vllm@B`: what changes between two versions, of the engine and of the answers about these files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mlload.cli.layout import wrap
from mlload.cli.output import Line, Span
from mlload.plan.mesh import Mesh
from mlload.profiles.changes import Change, changes
from mlload.profiles.profile import Profile

if TYPE_CHECKING:
    from mlload.cli.validate_result import Entry

# Changes shown to people; the JSON has all of them.
SHOWN = 12


class Difference(NamedTuple):
    """One source at one mesh whose answer differs; codes that only one side finds."""

    source: str
    mesh: Mesh
    before: str
    after: str
    starts_before: bool | None
    starts_after: bool | None
    gone: tuple[str, ...]
    new: tuple[str, ...]


class Upgrade(NamedTuple):
    """From one engine to the next.

    differences: answers that differ; judged: how many were compared
    changes:     everything that differs between the profiles; concerning: those about an architecture, a
                 quantization method or a model type of these files
    """

    old: Profile
    new: Profile
    judged: int
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    concerning: tuple[Change, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "from": {"name": self.old.engine, "version": self.old.version},
            "to": {"name": self.new.engine, "version": self.new.version},
            "verdicts": [
                {
                    "source": entry.source,
                    "tp": entry.mesh.tp,
                    "pp": entry.mesh.pp,
                    "ep": entry.mesh.ep,
                    "dp": entry.mesh.dp,
                    "before": entry.before,
                    "after": entry.after,
                    "starts_before": entry.starts_before,
                    "starts_after": entry.starts_after,
                    "gone": list(entry.gone),
                    "new": list(entry.new),
                }
                for entry in self.differences
            ],
            "changes": [{**change._asdict(), "concerns": change in self.concerning} for change in self.changes],
        }


def upgrade(old: Profile, new: Profile, before: Sequence[Entry], after: Sequence[Entry]) -> Upgrade:
    """Both sides judged the same sources at the same meshes, in the same order."""
    differences = [found for pair in zip(before, after, strict=True) if (found := difference(*pair)) is not None]
    every = changes(old, new)
    names = named_by(after)
    concerning = tuple(change for change in every if change.name in names)
    return Upgrade(old, new, len(after), tuple(differences), every, concerning)


def difference(before: Entry, after: Entry) -> Difference | None:
    old, new = before.verdict, after.verdict
    sides = [{(f.code, f.where) for f in verdict.findings if f.severity != "info"} for verdict in (old, new)]
    gone = tuple(sorted({code for code, _ in sides[0] - sides[1]}))
    came = tuple(sorted({code for code, _ in sides[1] - sides[0]}))
    if (old.verdict, old.starts) == (new.verdict, new.starts) and not gone and not came:
        return None
    return Difference(after.source, after.mesh, old.verdict, new.verdict, old.starts, new.starts, gone, came)


def named_by(entries: Sequence[Entry]) -> set[str]:
    """Names in a profile that these files have to do with."""
    found: set[str] = set()
    for entry in entries:
        if entry.model is None:
            continue
        found |= {*entry.model.config.architectures, entry.model.config.model_type, entry.model.config.text_type}
        if entry.model.quant is not None:
            found.add(entry.model.quant.method)
        if entry.plan is not None and entry.plan.view.method is not None:
            found.add(str(entry.plan.view.method))
        for choice in entry.verdict.kernels:
            found |= {choice.chosen or "", *(declined.kernel for declined in choice.declined)}
    return found - {""}


def lines(found: Upgrade, width: int) -> Iterator[Line]:
    yield Span(f"from {found.old.label} to {found.new.label}", "bold")
    if not found.differences:
        yield "the answer stays the same" if found.judged == 1 else f"all {found.judged} answers stay the same"
    for entry in found.differences:
        text = f"{entry.mesh.label()}: {entry.before} becomes {entry.after}"
        text += "".join(
            f"; {word} {', '.join(codes)}" for word, codes in (("new", entry.new), ("gone", entry.gone)) if codes
        )
        yield from wrap(text, width, "  ")
    for change in found.concerning[:SHOWN]:
        yield from wrap(f"{change.subject}: {change.what}", width, "    ", first="  ")
    rest = len(found.changes) - len(found.concerning[:SHOWN])
    if rest:
        about = "more changes" if found.concerning else "changes, none about what these files name"
        yield from wrap(f"{rest} {about}; --format json lists them", width, "  ", first="  ")
    yield ""
