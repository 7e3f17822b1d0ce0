"""What changed since a checkpoint was approved: findings, errors where it matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mlload.checkpoint.finding import Finding, Hint, Severity
from mlload.gate.digests import Digest
from mlload.gate.lock import Judged, engine, question
from mlload.profiles.profile import Profile

# What no engine reads.
IDLE_ENDINGS = (".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".gitattributes", ".gitignore", ".lock", ".log")
IDLE_NAMES = ("license", "licence", "notice", "readme", "changelog", "usage_policy")
ORDER = {"ok": 0, "warn": 1, "unknown": 2, "fail": 3}
AGAIN = (Hint("look at what changed, then approve it again with --lock"),)


def idle(name: str) -> bool:
    """Whether a file plays no part in serving: pictures, licences, texts about the model."""
    base = name.rsplit("/", 1)[-1].lower()
    return base.endswith(IDLE_ENDINGS) or base.split(".")[0] in IDLE_NAMES


def changed_files(model: dict[str, Any], now: Iterable[Digest]) -> Iterator[Finding]:
    """Files against those of the lock, by sha256."""
    before = {str(row["name"]): row for row in model.get("files", ())}
    after = {digest.name: digest for digest in now}
    for name in sorted(before.keys() | after.keys()):
        severity: Severity = "info" if idle(name) else "error"
        if name not in after:
            yield _finding("LK002", severity, name, f"{name} was approved and is not there any more")
        elif name not in before:
            yield _finding("LK002", severity, name, f"{name} ({after[name].size:,} bytes) is not in the lock")
        elif before[name]["sha256"] != after[name].sha256:
            old, new = int(before[name]["size"]), after[name].size
            sizes = f"{old:,} -> {new:,} bytes" if old != new else f"still {new:,} bytes"
            digests = f"sha256 {before[name]['sha256'][:12]}... -> {after[name].sha256[:12]}..."
            yield _finding("LK001", severity, name, f"{name} changed: {sizes}, {digests}")


def changed_origin(model: dict[str, Any], revision: str | None) -> Iterator[Finding]:
    old = model.get("revision")
    if old != revision:
        yield _finding("LK003", "info", "revision", f"approved at revision {old or 'none'}, now {revision or 'none'}")


def changed_engine(lock: dict[str, Any], profile: Profile) -> Iterator[Finding]:
    """The engine, its extras, and the facts known of it."""
    old, new = lock["engine"], engine(profile)
    names = [f"{side.get('name')} {side.get('version')}".strip() for side in (old, new)]
    if names[0] != names[1]:
        yield _finding("LK004", "error", "engine", f"approved for {names[0]}, judged for {names[1]}")
    elif old.get("assumed") != new["assumed"]:
        extras = {**(old.get("assumed") or {}), **new["assumed"]}
        differ = [name for name in extras if (old.get("assumed") or {}).get(name) != new["assumed"].get(name)]
        yield _finding("LK004", "error", "engine", f"other extras count as installed: {', '.join(sorted(differ))}")
    elif old.get("profile") != new["profile"]:
        yield _finding("LK004", "info", "engine", f"what is known of {names[1]} has been read anew since the approval")


def changed_flags(model: dict[str, Any], flags: dict[str, Any]) -> Iterator[Finding]:
    """What else the engine was asked with."""
    before = model.get("flags") or {}
    for name in sorted(before.keys() | flags.keys()):
        if before.get(name) != flags.get(name):
            was, now = (_shown(side.get(name)) for side in (before, flags))
            yield _finding("LK005", "error", f"--{name}", f"approved with --{name} {was}, judged with {now}")


def changed_answer(model: dict[str, Any], judged: Judged) -> Iterator[Finding]:
    """One answer against the lock's answer to the same question."""
    asked = question(judged)
    rows: Sequence[dict[str, Any]] = model.get("judged", ())
    old = next((row for row in rows if all(row.get(key) == value for key, value in asked.items())), None)
    label = judged.mesh.label() + (f" on {judged.gpu}" if judged.gpu else "")
    if old is None:
        approved = ", ".join(_label(row) for row in rows) or "nothing"
        yield _finding("LK005", "error", label, f"{label} was not approved; approved is {approved}")
        return
    if ORDER[judged.verdict] != ORDER.get(str(old.get("verdict")), -1):
        worse = ORDER[judged.verdict] > ORDER.get(str(old.get("verdict")), -1)
        known = {(row["code"], row["where"]) for row in old.get("findings", ())}
        new = dict.fromkeys(f.code for f in judged.findings if (f.code, f.where) not in known and f.severity != "info")
        because = f" ({', '.join(new)})" if new else ""
        text = f"{label}: the verdict was {old.get('verdict')} and is {judged.verdict} now{because}"
        yield _finding("LK006", "error" if worse else "info", label, text)
    waived = {(row["code"], row["where"]) for row in old.get("waived", ())}
    for entry in judged.waived:
        found = entry.finding
        if (found.code, found.where) not in waived:
            text = f"{found.code} is waived now and was not when this was approved: {entry.waiver.reason}"
            yield _finding("LK007", "error", found.where, text)


def _label(row: dict[str, Any]) -> str:
    words = [f"tp {row.get('tp')}"] + [f"{key} {row[key]}" for key in ("pp", "dp") if row.get(key, 1) != 1]
    return " ".join([*words, *(["ep"] if row.get("ep") else []), *([f"on {row['gpu']}"] if row.get("gpu") else [])])


def _shown(value: Any) -> str:
    return "left out" if value is None else str(value)


def _finding(code: str, severity: Severity, where: str, message: str) -> Finding:
    return Finding(code, severity, "content", where, message, {}, AGAIN if severity == "error" else ())
