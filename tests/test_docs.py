"""Pages say what the commands say, and point at what is there."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def test_shown_output_is_what_the_commands_print() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "tools" / "docs_output.py", "--check"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stderr


def test_the_page_of_rules_is_made_from_their_texts() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "rules_doc.py"))["page"]()
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == page, "run: python tools/rules_doc.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    """`plan/cutting.py` may be written from the root or from the package."""
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md|txt|json))`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "mlload" / name).exists()] == []
