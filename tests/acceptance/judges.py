"""Both judges asked about every damage: a real vLLM on this CPU, and `mlload validate` for the same version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.damages import Case
from tests.acceptance.folders import base, link
from tools.vllm_cpu import PROFILE, python

DAMAGED = ".damaged."
STARTS = Path(__file__).with_name("vllm_starts.py")


class Answers(NamedTuple):
    """theirs: what vllm_starts.py says; ours: the JSON of `mlload validate`, its only result."""

    case: Case
    theirs: dict[str, Any]
    ours: dict[str, Any]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [finding for finding in self.ours["findings"] if finding["severity"] == "error"]

    @property
    def agree(self) -> bool:
        return self.theirs["starts"] is self.ours["starts"]

    @property
    def named(self) -> bool:
        """Whether one of our errors names what is at fault; nothing is asked of it where the engine starts."""
        if self.theirs["starts"] or not self.case.names:
            return True
        return any(
            self.case.names in f"{found['where']} {found['message']} {found['numbers']}" for found in self.errors
        )


def ask(cases: Sequence[Case], model: Path) -> list[Answers]:
    """Every case damaged, judged by both, and deleted again. Takes some 2 s a case and 10 s for the imports."""
    forget_old(model.parent)
    with tempfile.TemporaryDirectory(dir=model.parent, prefix=DAMAGED) as scratch:
        folders = {case.name: Path(scratch) / f"{number:03}" for number, case in enumerate(cases)}
        for case in cases:
            link(base(model, case.base), folders[case.name])
            case.damage(folders[case.name])
        ours = [ours_of(case, folders[case.name]) for case in cases]
        theirs = theirs_of(cases, folders, Path(scratch))
    return [Answers(case, theirs[case.name], own) for case, own in zip(cases, ours, strict=True)]


def forget_old(folder: Path) -> None:
    """What a run that was killed more than a day ago left behind."""
    for left in folder.glob(f"{DAMAGED}*"):
        if time.time() - left.stat().st_mtime > 86400:
            shutil.rmtree(left, ignore_errors=True)


def ours_of(case: Case, folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "mlload", "validate", str(folder), "--tp", str(case.tp), "--engine", PROFILE]
    done = subprocess.run([*words, *case.flags, "--format", "json"], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        # A folder that nothing can be said of is refused in one sentence, not judged.
        refusal = {"severity": "error", "where": str(folder), "message": done.stderr.strip(), "numbers": {}, "code": ""}
        return {"starts": False if done.returncode == 1 else None, "verdict": "refused", "findings": [refusal]}
    result: dict[str, Any] = json.loads(done.stdout)["results"][0]
    return result


def theirs_of(cases: Sequence[Case], folders: dict[str, Path], scratch: Path) -> dict[str, dict[str, Any]]:
    questions = [
        {"name": case.name, "folder": str(folders[case.name]), "tp": case.tp, "arguments": case.arguments}
        for case in cases
    ]
    asked, answered, log = scratch / "questions.json", scratch / "answers.jsonl", scratch / "log"
    asked.write_text(json.dumps(questions))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "HF_", "PYTHON"))}
    with log.open("w") as errors:
        done = subprocess.run(
            [str(python()), str(STARTS), str(asked), str(answered)], stderr=errors, env=clean, check=False
        )
    if done.returncode:
        raise RuntimeError(f"vLLM's process ended with {done.returncode}: {log.read_text(errors='replace')[-2000:]}")
    return {answer["name"]: answer for answer in map(json.loads, answered.read_text().splitlines())}
