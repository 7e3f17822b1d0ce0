"""Other quantization tools, each in an environment of its own, for benchmarks and for tests that compare with them.

    python -m tools.peers [autoawq] [llmcompressor] [gptqmodel]      makes those (default: all), prints their pythons

They lie in the folder that MLLOAD_PEERS names (default: .venv-peers in the repository, which git ignores); each takes
1 to 2 GB and a few minutes. GPTQModel is installed without its own requirements, which name a newer torch than it
needs; they follow by hand. Its first save compiles a C++ extension for minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
TRANSFORMERS = "transformers==5.24.0"
# Each step is one call of pip.
STEPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "autoawq": ((TORCH, TRANSFORMERS, "autoawq==0.2.9"),),
    "llmcompressor": ((TORCH, "llmcompressor==0.14.0.1"),),
    "gptqmodel": (
        (TORCH, TRANSFORMERS, "setuptools", "accelerate", "datasets", "device-smi", "threadpoolctl", "protobuf",
         "pypcre", "tokenicer", "logbar", "ninja", "dill", "defuser", "pillow", "requests", "optimum"),
        ("--no-deps", "torchao"),
        ("--no-deps", "gptqmodel==7.7.0"),
    ),
}  # fmt: skip
VERSIONS = {"autoawq": "0.2.9", "llmcompressor": "0.14.0.1", "gptqmodel": "7.7.0"}


def root() -> Path:
    named = os.environ.get("MLLOAD_PEERS")
    return Path(named).resolve() if named else Path(__file__).resolve().parent.parent / ".venv-peers"


def python(name: str) -> Path:
    return root() / name / "bin" / "python"


def ready(name: str) -> bool:
    """Whether the environment was finished; one that an interrupted run left is made again."""
    mark = root() / name / ".ready"
    return mark.is_file() and mark.read_text() == repr(STEPS[name])


def make(name: str) -> None:
    folder = root() / name
    venv.EnvBuilder(with_pip=True, clear=True).create(folder)
    for words in STEPS[name]:
        print(f"{name}: installing {' '.join(words)}", file=sys.stderr, flush=True)
        subprocess.run([python(name), "-m", "pip", "install", "--quiet", *words], check=True, stdout=sys.stderr)
    (folder / ".ready").write_text(repr(STEPS[name]))


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(STEPS)
    if unknown := [name for name in chosen if name not in STEPS]:
        raise SystemExit(f"{unknown[0]} is none of {', '.join(STEPS)}")
    for name in chosen:
        if not ready(name):
            make(name)
        print(python(name))
