"""Chat templates rendered as an engine would, within limits of time and memory.

A template is a program of a stranger's. It runs in jinja2's immutable sandbox, in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

CPU_SECONDS = 3
WALL_SECONDS = 60.0  # only where the system has no limit of CPU time, or is stopped
MEMORY_BYTES = 1 << 30

# Texts that no template writes by itself, found again in the rendering.
USER, ANSWER, AGAIN, SYSTEM, TOOL = "kwq-question", "kwq-answer", "kwq-more", "kwq-rules", "kwq_weather"


WEATHER = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Name"}},
            "required": ["place"],
        },
    },
}


class Rendered(NamedTuple):
    """text: what came out, None where it failed; kind: "refused" (the template itself raised), "syntax", "time",
    "memory", or the exception's name; line: of the template."""

    text: str | None
    kind: str = ""
    error: str = ""
    line: int | None = None


def available() -> bool:
    """Whether jinja2 is installed; it is not imported here."""
    from importlib.util import find_spec

    return find_spec("jinja2") is not None


def cases(tokens: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What a chat template is asked for, by case; each a second time ("... parts") with contents as lists of parts,
    the way templates of vision models want them. tokens: "eos_token" -> text, as the template's variables."""
    found: dict[str, dict[str, Any]] = {}
    for parts in (False, True):

        def said(role: str, text: str, parts: bool = parts) -> dict[str, Any]:
            return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}

        user, answer = said("user", USER), said("assistant", ANSWER)
        plain: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True, **tokens}
        own: dict[str, dict[str, Any]] = {
            "plain": {**plain, "messages": [user], "add_generation_prompt": False},
            "prompt": {**plain, "messages": [user]},
            "system": {**plain, "messages": [said("system", SYSTEM), user]},
            "tools": {**plain, "messages": [user], "tools": [WEATHER]},
            "answered": {**plain, "messages": [user, answer], "add_generation_prompt": False},
            "going on": {**plain, "messages": [user, answer, said("user", AGAIN)]},
        }
        found |= {case + (" parts" if parts else ""): variables for case, variables in own.items()}
    return found


def render(templates: Sequence[str], asked: Mapping[str, dict[str, Any]]) -> list[dict[str, Rendered]]:
    """Every case of every template, in one process; a template that ends the process has "time" in each case, and
    those after it are rendered in another one."""
    found: list[dict[str, Rendered]] = []
    while len(found) < len(templates):
        lines, why = _run(templates[len(found) :], asked)
        for line in lines:
            found.append({case: Rendered(**{"text": None, **entry}) for case, entry in json.loads(line).items()})
        if len(found) < len(templates):
            found.append(dict.fromkeys(asked, Rendered(None, *why)))
    return found


def _run(templates: Sequence[str], asked: Mapping[str, dict[str, Any]]) -> tuple[list[str], tuple[str, str]]:
    """(a line of JSON per template that came to its end, (kind, sentence) of what stopped the next one)."""
    question = {
        "path": [entry for entry in sys.path if entry],
        "cpu_seconds": CPU_SECONDS,
        "memory_bytes": MEMORY_BYTES,
        "templates": list(templates),
        "cases": asked,
    }
    return _answer(json.dumps(question).encode())


@lru_cache(maxsize=16)  # quantized twins of one model, judged in one call, have the same template
def _answer(question: bytes) -> tuple[list[str], tuple[str, str]]:
    import subprocess

    program = Path(__file__).with_name("chat_sandbox.py")
    command = [sys.executable, "-I", "-S", str(program)]
    try:
        ended = subprocess.run(command, input=question, capture_output=True, timeout=WALL_SECONDS, check=False)
        output, code = ended.stdout, ended.returncode
    except subprocess.TimeoutExpired as error:
        output, code = error.stdout or b"", -9
    except OSError as error:
        return [], ("stopped", f"rendering could not be started: {error.strerror}")
    lines = [line for line in output.decode("utf-8", "replace").split("\n") if line.endswith("}")]
    if code < 0:
        return lines, ("time", f"it does not end within {CPU_SECONDS} seconds")
    last = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] if code else ""
    return lines, ("stopped", f"rendering stopped: {last[:200]}")
