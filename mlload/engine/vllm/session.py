"""One life of a real vLLM: started under a guard, followed by its events and its log, and surely ended."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.engine.vllm.asked import INSIDE, Asked, environment
from mlload.engine.vllm.environment import Environment
from mlload.engine.vllm.errors import Fault, reduce
from mlload.engine.vllm.log import WORDS, Log

POLL_SECONDS = 0.1
GRACE_SECONDS = 8.0  # from asking the engine to end to ending it
END_SECONDS = 30.0  # from the last word of an engine that is done to ending it
QUIET_SECONDS = 900.0  # without an event and without a word in the log
GUARD = Path(__file__).with_name("guard.py")
Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a run brought.

    events:   by their names, the last of each; paces: one for each batch
    steps:    seconds of each step of the start, by the log
    fault:    why it did not start or did not go on; None where it did
    timed_out: it was ended because it took too long
    """

    log: Log = field(default_factory=Log)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    paces: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None
    timed_out: bool = False

    @property
    def started(self) -> bool:
        return "up" in self.events

    @property
    def doing(self) -> str:
        """What it is at, or was at last."""
        if "pacing" in self.events:
            tick = self.events.get("tick", {})
            done = (
                f", {tick['tokens']} of {tick['of']} tokens" if tick.get("at", 0) > self.events["pacing"]["at"] else ""
            )
            return f"decoding batch {self.events['pacing']['batch']}{done}"
        if self.started:
            return "asking whether it speaks" if "speaks" not in self.events else "answering fixed prompts"
        if "imported" not in self.events:
            return WORDS["import"]
        return WORDS["config"] if self.log.step == "import" else self.log.doing


def run(
    found: Environment,
    asked: Asked,
    say: Say | None = None,
    imported: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Starts it, waits, and ends it. say: told what it is at; imported: told its platform once that is known, before
    it has loaded anything. Raises MlloadError where the process itself cannot be started."""
    with tempfile.TemporaryDirectory(prefix="mlload-vllm-") as folder:
        question, events = Path(folder) / "asked.json", Path(folder) / "events.jsonl"
        question.write_text(json.dumps(asked.as_json()))
        events.touch()
        asked.log.write_bytes(b"")
        # Unbuffered: what it said last must be in the file when it is killed.
        command = [found.python, "-u", str(INSIDE / "start.py"), str(question), str(events)]
        try:
            guard = subprocess.Popen(
                [sys.executable, "-S", str(GUARD), str(GRACE_SECONDS), str(asked.log), folder, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise MlloadError(f"vLLM cannot be started: {error.strerror}") from error
        follow = Follow(events, asked, say or (lambda _: None), imported)
        try:
            follow.until_ended(guard)
        finally:
            end(guard)
        follow.read()
        return follow.result(guard.returncode)


def end(guard: subprocess.Popen[bytes]) -> None:
    """Closing its pipe tells the guard to end everything; it is waited for, and interrupting again does not help."""
    assert guard.stdin is not None
    guard.stdin.close()
    deadline = time.monotonic() + GRACE_SECONDS * 2 + 10
    while guard.poll() is None and time.monotonic() < deadline:
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:
            continue
    if guard.poll() is None:
        guard.kill()
        guard.wait()


class Follow:
    """Reads what the engine leaves, as it comes."""

    def __init__(self, events: Path, asked: Asked, say: Say, imported: Callable[[dict[str, Any]], None] | None) -> None:
        self.outcome = Outcome()
        self.asked, self.say, self.imported = asked, say, imported
        self.events, self.log = Tail(events), Tail(asked.log)
        self.began = self.heard = self.step_began = time.monotonic()
        self.step = "import"

    def until_ended(self, guard: subprocess.Popen[bytes]) -> None:
        while guard.poll() is None:
            self.read()
            outcome, now = self.outcome, time.monotonic()
            self.say(f"vLLM: {outcome.doing} ({now - self.began:.0f} s)")
            if not outcome.started and now - self.began > self.asked.start_seconds:
                outcome.fault = Fault("", f"vLLM was not up after {now - self.began:.0f} s: {self.was_doing}", "")
                outcome.timed_out = True
                return
            if "done" in outcome.events and now - self.heard > END_SECONDS:
                return  # all is known: it is ended from here
            if now - self.heard > QUIET_SECONDS:
                message = f"vLLM said nothing for {QUIET_SECONDS:.0f} s: {self.was_doing}"
                outcome.fault, outcome.timed_out = Fault("", message, ""), True
                return
            time.sleep(POLL_SECONDS)

    @property
    def was_doing(self) -> str:
        last = self.outcome.log.last
        return f"it was {self.outcome.doing}" + (f"; its log ends with {last[:200]!r}" if last else "")

    def read(self) -> None:
        for line in self.events.lines():
            self.heard = time.monotonic()
            event = json.loads(line)
            name = event.pop("event")
            if name == "pace":
                self.outcome.paces.append(event)
            self.outcome.events[name] = event
            if name == "imported":
                self.at("config")
                if self.imported is not None:
                    self.imported(event["platform"])
            elif name == "up":
                self.at("up")
        lines = self.log.lines()
        if lines:
            self.heard = time.monotonic()
            self.outcome.log.take(lines)
            if not self.outcome.started and self.outcome.log.step != "import":
                self.at(self.outcome.log.step)

    def at(self, step: str) -> None:
        """The step before ends here. A step that comes again (ranks are not at the same place) is added up."""
        if step != self.step:
            now = time.monotonic()
            self.outcome.steps[self.step] = self.outcome.steps.get(self.step, 0.0) + now - self.step_began
            self.step, self.step_began = step, now

    def result(self, code: int) -> Outcome:
        outcome = self.outcome
        if "done" in outcome.events or outcome.fault is not None:
            return outcome
        outcome.fault = reduce(
            self.asked.log.read_text(errors="replace").splitlines(), outcome.events.get("failed")
        ) or Fault("", f"vLLM ended with code {code} without a word: {self.was_doing}", "")
        return outcome


class Tail:
    """The whole lines that a file has grown by."""

    def __init__(self, path: Path) -> None:
        self.path, self.position, self.part = path, 0, b""

    def lines(self) -> list[str]:
        with self.path.open("rb") as file:
            file.seek(self.position)
            grown = file.read()
        self.position += len(grown)
        whole, newline, self.part = (self.part + grown).rpartition(b"\n")
        return whole.decode("utf-8", "replace").split("\n") if newline else []
