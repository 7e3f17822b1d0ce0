"""SARIF 2.1.0: one run, a rule for each code that occurs, one result per finding and source."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from mlload import __version__
from mlload.checkpoint.finding import Severity
from mlload.cli.report import Report, Reported, way_out
from mlload.cli.rules import Rule, all_rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}


def render(report: Report) -> str:
    codes = sorted({entry.finding.code for entry in report.findings})
    texts = {rule.code: rule for rule in all_rules()}
    driver = {
        "name": "mlload",
        "version": __version__,
        "rules": [rule_json(code, texts.get(code)) for code in codes],
        "properties": {"engine": report.engine},
    }
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if notes := [notification(case.source, case.size, what) for case in report.cases for what in case.unknowns]:
        invocation["toolExecutionNotifications"] = notes
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [result(entry, codes.index(entry.finding.code)) for entry in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def rule_json(code: str, rule: Rule | None) -> dict[str, Any]:
    if rule is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.text},
        "help": {"text": rule.text},
        "properties": {"tags": [rule.family]},
    }


def result(entry: Reported, index: int) -> dict[str, Any]:
    finding = entry.finding
    physical: dict[str, Any] = {"artifactLocation": {"uri": entry.place.uri}}
    if entry.place.text:
        physical["region"] = {"startLine": 1}
    hints = "".join(f"\n- {way_out(hint)}" for hint in finding.hints)
    found: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": entry.text + hints},
        "locations": [
            {"physicalLocation": physical, "logicalLocations": [{"fullyQualifiedName": finding.where or entry.source}]}
        ],
        "partialFingerprints": {"codeAndPlace/v1": fingerprint(entry)},
        "properties": {"source": entry.source, "question": finding.question, "at": list(entry.at)},
    }
    if entry.waiver is not None:
        found["suppressions"] = [{"kind": "external", "status": "accepted", "justification": entry.waiver.reason}]
    return found


def fingerprint(entry: Reported) -> str:
    """The same for the same problem, whatever its numbers are today."""
    text = "\0".join((entry.finding.code, entry.source, entry.place.file, entry.finding.where))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def notification(source: str, size: str, unknown: Any) -> dict[str, Any]:
    text = f"{source} at {size}: {unknown.what} could not be judged: {unknown.why}"
    return {"level": "warning", "message": {"text": text}}
