"""English prose to calibrate with and to measure perplexity on, from Debian packages.

    python -m tools.english_text      prints the folder, and each file's digest

Needs `apt-get` and `dpkg`; nothing is installed. The three files share no source file and no paragraph:
calib.txt, and eval-a.txt and eval-b.txt, which nothing but the evaluation reads. They are kept beside the real models
(see tools/real_model.py) and are never part of the project: the packages' licences are several.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.real_model import cache

PACKAGES = ("fortunes", "debian-faq", "debian-policy", "developers-reference")
FORTUNES = "usr/share/games/fortunes"
NAMES = ("calib", "eval-a", "eval-b")
SHORTEST = 120  # characters of a saying that is kept


def folder() -> Path:
    """The folder with the three texts; made once."""
    found = cache() / "english-text"
    if all((found / f"{name}.txt").is_file() for name in NAMES):
        return found
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        unpack(root)
        for name, text in texts(root).items():
            (found / f"{name}.txt").write_text(text)
    return found


def unpack(root: Path) -> None:
    for package in PACKAGES:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=root, check=True, stdout=sys.stderr)
    for archive in root.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True, stdout=sys.stderr)


def texts(root: Path) -> dict[str, str]:
    """Calibration: sayings and a handbook for maintainers. Evaluation a: other sayings, questions and answers, the
    policy. Evaluation b: verse, definitions and sayings of a third kind, the policy's appendix on packages' dialogs."""
    faq = document(root, "usr/share/doc/debian/FAQ/debian-faq.en.txt.gz")
    policy = document(root, "usr/share/doc/debian-policy/policy.txt.gz")
    dialogs = document(root, "usr/share/doc/debian-policy/debconf_specification.txt.gz")
    handbook = document(root, "usr/share/developers-reference/developers-reference.txt.gz")
    made = {
        "calib": [sayings(root, "people", "work", "cookie"), handbook],
        "eval-a": [sayings(root, "science", "men-women")[:60000], faq[8000:68000], policy[20000:80000]],
        "eval-b": [
            *(sayings(root, name)[:40000] for name in ("songs-poems", "definitions", "wisdom")),
            dialogs[:40000],
        ],
    }
    return distinct({name: "\n\n".join(parts) for name, parts in made.items()})


def distinct(whole: dict[str, str]) -> dict[str, str]:
    """Without the paragraphs that stand in an earlier text too: some sayings are in several collections."""
    seen: set[str] = set()
    found = {}
    for name, text in whole.items():
        own = [part for part in text.split("\n\n") if part not in seen]
        found[name] = "\n\n".join(own)
        seen.update(part for part in own if len(part) > 40)
    return found


def sayings(root: Path, *names: str) -> str:
    def all_of() -> Iterable[str]:
        for name in names:
            for saying in (root / FORTUNES / name).read_text(errors="replace").split("\n%\n"):
                if len(saying) > SHORTEST:
                    yield clean(saying)

    return "\n\n".join(all_of())


def document(root: Path, path: str) -> str:
    with gzip.open(root / path, "rt", errors="replace") as handle:
        return clean(handle.read())


def clean(text: str) -> str:
    """Without overstrikes, indents and runs of blank lines."""
    text = re.sub(r".\x08", "", text)
    text = re.sub(r"\n +", "\n", re.sub(r"[ \t]+", " ", text))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


if __name__ == "__main__":
    print(folder())
    for name in NAMES:
        print(f"{name}.txt", hashlib.sha256((folder() / f"{name}.txt").read_bytes()).hexdigest())
