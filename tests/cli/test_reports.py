"""The formats for machines and reviewers, each read by somebody else's reader of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from mlload.checkpoint.finding import Finding, Hint
from mlload.cli import report_github, report_junit, report_markdown, report_sarif
from mlload.cli.places import Place
from mlload.cli.report import Case, Report, Reported, way_out, write_atomically
from mlload.gate.waivers import Waiver
from mlload.plan.unknowns import Unknown
from tests.cli.conftest import Run, write_llama

SUBSET = json.loads((Path(__file__).parent / "sarif-subset.schema.json").read_text())
NASTY = 'a|b\n<x>&"quoted"% ::error::, \x1b[31m `code` \ud800'
BAD = Finding("TP001", "error", "starts", f"layer {NASTY}", f"said {NASTY}", {}, (Hint("do this", "x | y"),))
MILD = Finding("CF001", "warning", "right", "config.json", "hm")
PLACE = Place("config.json", "m/config.json", "m/config.json", True)


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "command": "validate",
        "engine": "vLLM 0.33.0",
        "cases": (
            Case(NASTY, "tp 1", True, "warn", (MILD,), ()),
            Case(NASTY, "tp 2", False, "fail", (BAD, MILD), ()),
            Case("other", "tp 1", None, "unknown", (), (Unknown("a thing", NASTY, "ask"),)),
        ),
        "findings": (
            Reported(BAD, NASTY, ("tp 2",), PLACE),
            Reported(MILD, NASTY, (), PLACE, Waiver("CF", "*", f"because {NASTY}", None)),
        ),
        "notes": ("would start: vllm serve x",),
    }
    return Report(**{**fields, **changes})


def test_sarif() -> None:
    document = json.loads(report_sarif.render(report()))
    jsonschema.validate(document, SUBSET)
    run = document["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    bad, mild = run["results"]
    assert rules[bad["ruleIndex"]]["id"] == bad["ruleId"] == "TP001"
    assert "multiple of the tensor-parallel size" in rules[bad["ruleIndex"]]["help"]["text"]
    assert (bad["level"], mild["level"]) == ("error", "warning")
    assert "suppressions" not in bad and mild["suppressions"][0]["justification"].startswith("because")
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == 1


def test_the_fingerprint_outlives_the_numbers() -> None:
    first = Reported(BAD, "m", (), PLACE)
    again = Reported(Finding("TP001", "error", "starts", BAD.where, "other numbers"), "m", ("tp 8",), PLACE)
    elsewhere = Reported(Finding("TP001", "error", "starts", "another layer", BAD.message), "m", (), PLACE)
    assert report_sarif.fingerprint(first) == report_sarif.fingerprint(again) != report_sarif.fingerprint(elsewhere)


def test_junit() -> None:
    found = JUnitXml.fromstring(report_junit.render(report()).encode())
    assert (found.tests, found.failures, found.errors, found.skipped) == (3, 1, 1, 0)
    kinds = [[type(entry) for entry in case.result] for suite in found for case in suite]
    assert kinds == [[], [Failure], [Error]]
    failure = [case for suite in found for case in suite][1].result[0]
    assert failure.type == "TP001" and '<x>&"quoted"%' in failure.message and "\\x1b" in failure.message


def test_junit_follows_the_exit_code() -> None:
    lenient = JUnitXml.fromstring(report_junit.render(report(allow_unknown=True)).encode())
    assert (lenient.failures, lenient.errors, lenient.skipped) == (1, 0, 1)
    assert type([case for suite in lenient for case in suite][2].result[0]) is Skipped
    strict = JUnitXml.fromstring(report_junit.render(report(strict=True)).encode())
    assert strict.failures == 2


COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def test_github(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    lines = report_github.render(report()).splitlines()
    commands = [found for line in lines if (found := COMMAND.fullmatch(line))]
    assert [found[1] for found in commands] == ["error", "warning"]  # the waived one is not annotated
    assert commands[0][2] == "file=m/config.json,title=TP001 at tp 2"
    data = commands[0][3].replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert data == f"{BAD.where}: {BAD.message}\ndo this: x | y"
    # No other line is taken for a command by the runner.
    assert not [line for line in lines if line.lstrip().startswith("::") and not COMMAND.fullmatch(line)]
    text = summary.read_text()
    assert text.startswith("before\n### mlload validate: fail")


def test_an_annotation_needs_a_file_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    far = Place("config.json", "/models/config.json", "file:///models/config.json", True)
    assert "file=" not in report_github.command(Reported(BAD, "m", (), far))
    remote = Place("config.json", None, "https://example.org/config.json", True)
    assert "file=" not in report_github.command(Reported(BAD, "m", (), remote))


def test_markdown_cells_stay_cells() -> None:
    lines = report_markdown.render(report()).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows if "TP001 at tp 2" in row} == {5}
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows if row.endswith("fail | TP001 |")} == {6}
    assert not any("<x>" in re.sub(r"(`+).*?\1(?!`)", "", line) for line in lines)
    assert any(line.startswith("- waived: CF001") for line in lines)
    assert "    vllm serve x" in lines


def test_no_full_stop_before_a_command() -> None:
    assert way_out(Hint("Install it.", "pip install x")) == "Install it: pip install x"
    assert way_out(Hint("Install it.")) == "Install it."


def test_a_report_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    path.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(path)
    write_atomically(str(link), "new \ud800")
    assert link.is_symlink() and path.read_text() == "new \\ud800"
    assert {entry.name for entry in tmp_path.iterdir()} == {"report.txt", "link.txt"}
    with pytest.raises(OSError):
        write_atomically(str(tmp_path / "nowhere" / "x"), "text")
    write_atomically("/dev/null", "text")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("form", ["sarif", "junit", "github", "markdown"])
def test_validate_writes_each(mlload: Run, tmp_path: Path, form: str) -> None:
    write_llama(tmp_path / "models" / "six heads")
    words = ("validate", "models/six heads", "--tp", "1,4,8", "--format", form)
    done = mlload(*words)
    assert done.returncode == 1, done.stderr
    if form == "sarif":
        document = json.loads(done.stdout)
        jsonschema.validate(document, SUBSET)
        (result,) = [r for r in document["runs"][0]["results"] if r["ruleId"] == "TP001"]
        # One entry for both sizes; the file that the heads are counted in, as a relative URI.
        assert result["properties"]["at"] == ["tp 4", "tp 8"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "models/six%20heads/config.json"
    elif form == "junit":
        found = JUnitXml.fromstring(done.stdout.encode())
        assert (found.tests, found.failures, found.errors) == (3, 2, 0)
    elif form == "github":
        assert "::error file=models/six heads/config.json,title=TP001 at tp 4%2C tp 8::" in done.stdout
    else:
        assert "| `models/six heads` | tp 4 | no | fail | TP001" in done.stdout
    again = mlload(*words, "--output", tmp_path / "report")
    assert (again.returncode, again.stdout) == (1, "")
    assert (tmp_path / "report").read_text() == done.stdout
