"""The table of what both judges said, as JSON and as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tests.acceptance.judges import Answers

STARTS = {True: "starts", False: "refuses", None: "cannot say"}


def rows(answers: Sequence[Answers]) -> list[dict[str, Any]]:
    return [
        {
            "damage": answer.case.name,
            "base": answer.case.base,
            "tp": answer.case.tp,
            "vllm": {name: answer.theirs[name] for name in ("starts", "kv_tokens", "seconds")}
            | {"message": said(answer)},
            "mlload": {
                "starts": answer.ours["starts"],
                "verdict": answer.ours["verdict"],
                "errors": [
                    without_folder(f"{found['code']} {found['where']}: {found['message']}") for found in answer.errors
                ],
            },
            "agree": answer.agree,
            "apart": answer.case.apart,
        }
        for answer in answers
    ]


def said(answer: Answers) -> str:
    """What the engine said, in one line."""
    words = " ".join(f"{answer.theirs['error'] or ''}: {answer.theirs['message']}".split())
    words = re.sub(r"\[type=.*", "", without_folder(words))
    return "" if answer.theirs["starts"] else words[:160]


def without_folder(words: str) -> str:
    """A message without the folder that lasted for one run; the folder itself is "."."""
    return re.sub(r"/\S*/\.damaged\.[^/\s]*/\d+(/?)", lambda found: "" if found[1] else ".", words)


def text(answers: Sequence[Answers]) -> str:
    width = max(len(answer.case.name) for answer in answers)
    lines = [f"{'damage':{width}}  {'vLLM':8} {'mlload':11}{'verdict':9}agree"]
    for answer in answers:
        agree = "yes" if answer.agree else "apart" if answer.case.apart else "NO"
        lines.append(
            f"{answer.case.name:{width}}  {STARTS[answer.theirs['starts']]:8} "
            f"{STARTS[answer.ours['starts']]:11}{answer.ours['verdict']:9}{agree}"
        )
    apart = [answer for answer in answers if answer.case.apart]
    lines += ["", f"{sum(answer.agree for answer in answers)} of {len(answers)} agree on whether the engine starts."]
    lines += [f"apart: {answer.case.name}: {answer.case.apart}" for answer in apart]
    return "\n".join(lines) + "\n"
