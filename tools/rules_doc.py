"""Writes docs/rules.md from the texts that `mlload rules` shows.

python tools/rules_doc.py           rewrite the page
python tools/rules_doc.py --check   exit 1 when it would change
"""

from __future__ import annotations

import sys
from pathlib import Path

from mlload.cli.rules import all_rules

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rules.md"


def page() -> str:
    lines = [
        "# Rules",
        "",
        "What the codes of findings mean. Made by `tools/rules_doc.py` from the texts that `mlload rules CODE`",
        "shows; codes are never renamed or reused.",
    ]
    family = ""
    for rule in all_rules():
        if rule.family != family:
            family = rule.family
            lines += ["", f"## {family}"]
        lines += ["", f"### {rule.code} {rule.title}", "", rule.text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page() else f"{PAGE} is out of date")
    PAGE.write_text(page(), encoding="utf-8")
