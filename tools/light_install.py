"""Prove that `inspect` and `validate` need nothing but the light install.

Makes a new environment, installs the project into it as a user would (a wheel, no extras), checks
that the heavy packages are not there, and asks both commands about the demo checkpoint.

    python tools/light_install.py .venv-light
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HEAVY = ("torch", "transformers", "triton", "numpy", "safetensors", "gguf")
ROOT = Path(__file__).resolve().parent.parent


def run(*words: str | Path, code: int = 0) -> str:
    """Standard output of a command that must end with `code`."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=tempfile.gettempdir())
    if done.returncode != code:
        command = " ".join(str(word) for word in words)
        sys.exit(f"{command}\nended with {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main(folder: Path) -> None:
    venv.EnvBuilder(with_pip=True, clear=True).create(folder)
    python, mlload = folder / "bin" / "python", folder / "bin" / "mlload"
    run(python, "-m", "pip", "install", "--quiet", ROOT)
    for name in HEAVY:
        run(python, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)")
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "demo"
        run(mlload, "demo", checkpoint)
        shown = json.loads(run(mlload, "inspect", checkpoint, "--format", "json"))
        if not shown["architecture"]["parameters"]["total"] or shown["problems"]:
            sys.exit(f"inspect does not find the demo checkpoint sound: {shown['architecture']} {shown['problems']}")
        run(mlload, "validate", checkpoint, "--tp", "1", "--gpu", "cc:9.0")
        refused = json.loads(run(mlload, "validate", checkpoint, "--tp", "7", "--format", "json", code=1))
        if refused["results"][0]["starts"] is not False:
            sys.exit("validate lets the demo checkpoint start at tp 7")
    installed = run(python, "-m", "pip", "list", "--format", "freeze").split()
    print(f"ok: inspect and validate answer with {len(installed)} packages installed, none of {', '.join(HEAVY)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".venv-light").resolve())
