"""Where vLLM is installed: its python, its version. Nothing of it is imported here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mlload.checkpoint.finding import MlloadError

SECONDS = 60.0
INSTALL = "python3 -m venv vllm-env && vllm-env/bin/pip install vllm, then --vllm-python vllm-env/bin/python"
# The distribution may be called otherwise (a build for CPUs is): the one that brings the module decides.
ASK = """
import importlib.metadata as m, importlib.util as u, json
if u.find_spec("vllm") is None:
    print("null")
else:
    names = m.packages_distributions().get("vllm") or ["vllm"]
    print(json.dumps([names[0], m.version(names[0])]))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """python: that runs vLLM; distribution: that vLLM came in; version: "0.32.0", as installed"""

    python: str
    distribution: str
    version: str


def find(named: str | None) -> Environment:
    """The environment of `--vllm-python`, of the `vllm` on PATH, or this one. Raises MlloadError where none is."""
    if named is not None:
        return _asked(named, f"--vllm-python {named}")
    on_path = shutil.which("vllm")
    for python in filter(None, (_interpreter(on_path) if on_path else None, sys.executable)):
        try:
            return _asked(python, on_path or python)
        except MlloadError:
            continue
    raise MlloadError(
        "no vLLM is installed here, and none is on PATH: --engine vllm drives one in an environment of its own",
        hint=INSTALL,
        exit_code=3,
    )


def _interpreter(script: str) -> str | None:
    """The python in the first line of an installed command."""
    try:
        with open(script, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    words = first.removeprefix(b"#!").decode("utf-8", "replace").split()
    if not first.startswith(b"#!") or not words:
        return None
    if os.path.basename(words[0]) == "env":
        return shutil.which(words[1]) if len(words) > 1 else None
    if os.path.basename(words[0]) == "sh":  # a path too long for such a line is started by a shell
        beside = Path(script).parent / "python"
        return str(beside) if beside.exists() else None
    return words[0]


def _asked(python: str, shown: str) -> Environment:
    try:
        answer = subprocess.run(
            [python, "-c", ASK], capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        found = json.loads(answer.stdout.strip().splitlines()[-1]) if answer.returncode == 0 else ...
    except (OSError, ValueError, IndexError) as error:
        raise MlloadError(f"{shown} is no python that runs: {getattr(error, 'strerror', None) or error}") from error
    except subprocess.TimeoutExpired as error:
        raise MlloadError(f"{shown} did not say within {SECONDS:g} s whether vLLM is there") from error
    if found is ...:
        said = answer.stderr.strip().splitlines()
        # What is no python complains of the question, and quotes it.
        quoted = "find_spec" in answer.stderr and "packages_distributions" in answer.stderr
        why = ", as it is no python" if quoted else f": {said[-1][:200]}" if said else ""
        raise MlloadError(f"{shown} could not be asked for vLLM{why}")
    if found is None:
        raise MlloadError(
            f"{shown} has no vLLM", hint=f"{python} -m pip install vllm, or name another python", exit_code=3
        )
    return Environment(python, found[0], found[1])
