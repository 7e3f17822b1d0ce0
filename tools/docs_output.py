"""Puts the real output of commands into the documentation.

A block of a page that follows `<!-- output: mlload inspect mlload-demo -->` is replaced by what the command
prints, run beside a freshly written demo checkpoint.

    python tools/docs_output.py           rewrite the pages
    python tools/docs_output.py --check   exit 1 when one would change
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Sources that `mlload validate --batch models.txt` is shown with: one that is there, one that is not.
LIST = "# audited every night\nmlload-demo\nmlload-lost\n"
PAGES = ("README.md", "docs/schema-inspect.md", "docs/schema-validate.md", "docs/gate.md")
BLOCK = re.compile(r"(<!-- output: (?P<command>[^\n]+?) -->\n```\w*\n)(?P<body>.*?)(```\n)", re.DOTALL)


def run(command: str, folder: Path) -> str:
    """Standard output of one `mlload ...` line, as in a pipe of width 80."""
    words = shlex.split(command)
    env = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    call = [sys.executable, "-m", "mlload", *words[1:]]
    done = subprocess.run(call, cwd=folder, env=env, capture_output=True, encoding="utf-8")
    if done.returncode not in (0, 1):
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def filled(text: str, folder: Path) -> str:
    def fill(match: re.Match[str]) -> str:
        command = match["command"]
        return f"{match[1]}$ {command}\n{run(command, folder)}{match[4]}"

    return BLOCK.sub(fill, text)


def main(check: bool) -> None:
    stale = []
    with tempfile.TemporaryDirectory() as scratch:
        run("mlload demo mlload-demo", Path(scratch))
        (Path(scratch) / "models.txt").write_text(LIST, encoding="utf-8")
        for page in (ROOT / name for name in PAGES):
            old = page.read_text(encoding="utf-8")
            new = filled(old, Path(scratch))
            if new != old:
                stale.append(str(page.relative_to(ROOT)))
                if not check:
                    page.write_text(new, encoding="utf-8")
    if check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run: python tools/docs_output.py")


if __name__ == "__main__":
    main("--check" in sys.argv)
