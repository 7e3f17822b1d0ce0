#!/usr/bin/env python3
"""How far `validate` agrees with what vLLM itself decided, row by row and rule by rule.

    tools/truth_report.py [--truth FOLDER] [--configs NAME,...] [--output FILE]

FOLDER holds truth.jsonl and the config folders (default: MLLOAD_TRUTH, else tests/data/vllm). Checking heads alone
explains most refusals, so those that another rule must explain are counted apart. False passes and false alarms are
listed by name, and so are rows whose bytes or numbers differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mlload import profiles  # noqa: E402
from mlload.checkpoint.checkpoint import Checkpoint  # noqa: E402
from mlload.checkpoint.finding import Finding  # noqa: E402
from mlload.cli.rules import all_rules  # noqa: E402
from mlload.plan.mesh import Mesh  # noqa: E402
from mlload.plan.model import Model, read_model  # noqa: E402
from mlload.plan.plan import make_plan  # noqa: E402
from mlload.validators.context import Request  # noqa: E402
from mlload.validators.verdict import Verdict, judge  # noqa: E402

Row = dict[str, Any]
# The check that explains most refusals by itself: attention heads that the tensor-parallel size does not divide.
HEADS = "TP001"


class Judged(NamedTuple):
    row: Row
    verdict: Verdict
    differences: dict[str, int]

    @property
    def refused(self) -> bool:
        return bool(self.row["verdict"] == "error")

    @property
    def agrees(self) -> bool:
        return self.verdict.starts is not self.refused

    @property
    def reasons(self) -> list[Finding]:
        return [f for f in self.verdict.findings if f.severity == "error" and f.question == "starts"]

    @property
    def explanation(self) -> Finding | None:
        """The error that holds every number of the row's message; a bare assertion has none to hold."""
        message = self.row["message"] or ""
        wanted = set() if message.startswith("(bare") else set(re.findall(r"\d+", message))
        for found in self.reasons:
            if wanted <= set(re.findall(r"\d+", f"{found.message} {found.where} {json.dumps(found.numbers)}")):
                return found
        return None

    @property
    def label(self) -> str:
        row = self.row
        return f"{row['config']} tp {row['tp']} pp {row['pp']}{' ep' if row['ep'] else ''} at {row['capability']}"


def read(truth: Path, wanted: set[str]) -> Iterator[tuple[Row, Path]]:
    """Rows whose config is there, with its folder."""
    for line in (truth / "truth.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        folder = next((truth / kind / row["config"] for kind in ("configs", "public")
                       if (truth / kind / row["config"]).is_dir()), None)  # fmt: skip
        if folder is not None and (not wanted or row["config"] in wanted):
            yield row, folder


@cache
def model_of(folder: Path) -> Model:
    return read_model(Checkpoint.open(str(folder)))


def judge_row(row: Row, folder: Path, profile: profiles.Profile) -> Judged:
    major, minor = row["capability"].split(".")
    mesh = Mesh(row["tp"], row["pp"], row["ep"])
    plan = make_plan(model_of(folder), profile, mesh, capability=(int(major), int(minor)))
    verdict = judge(plan, Request(capability=row["capability"], trust_remote_code=row["trust_remote_code"]))
    differences = {}
    sizes = plan.ranks() if row["param_bytes_per_rank"] else []
    for rank, expected in (row["param_bytes_per_rank"] or {}).items():
        if sizes[int(rank)].weight_bytes != expected:
            differences[rank] = sizes[int(rank)].weight_bytes - expected
    return Judged(row, verdict, differences)


def share(part: int, whole: int) -> str:
    return f"{part:5} of {whole:5}" + (f"  {100 * part / whole:6.2f} %" if whole else "")


def report(judged: list[Judged]) -> list[str]:
    """The lines to print."""
    refused = [each for each in judged if each.refused]
    outside = [each for each in refused if all(f.code != HEADS for f in each.reasons)]
    sized = [each for each in judged if each.row["param_bytes_per_rank"]]
    plain = [each for each in judged if not each.refused]
    explained = sum(each.explanation is not None for each in refused)
    lines = [
        f"whether it starts              {share(sum(each.agrees for each in judged), len(judged))}",
        f"  vLLM builds it               {share(sum(each.agrees for each in plain), len(plain))}",
        f"  vLLM refuses it              {share(sum(each.agrees for each in refused), len(refused))}",
        f"  ... outside the head check   {share(sum(each.agrees for each in outside), len(outside))}",
        f"every number of the refusal    {share(explained, len(refused))}",
        f"bytes of every rank            {share(sum(not each.differences for each in sized), len(sized))}",
        "",
        "refusals by the rule that explains them, and by stage in vLLM",
    ]
    by_rule: Counter[tuple[str, str]] = Counter()
    for each in refused:
        found = each.explanation
        by_rule[found.code if found else "none", each.row["stage"]] += 1
    titles = {rule.code: rule.title for rule in all_rules()}
    for (code, stage), count in sorted(by_rule.items()):
        lines.append(f"  {code}  {stage:12} {count:5}  {titles.get(code, '')}".rstrip())
    for heading, chosen in (
        ("false passes", [e for e in refused if e.verdict.starts is True]),
        ("false alarms", [e for e in judged if not e.refused and e.verdict.starts is False]),
        ("not judged", [e for e in judged if e.verdict.starts is None]),
        ("refused for another reason than vLLM's", [e for e in refused if e.reasons and e.explanation is None]),
        ("other bytes", [e for e in judged if e.differences]),
    ):
        lines += ["", f"{heading}: {len(chosen) or 'none'}"]
        for each in chosen:
            why = str(each.differences or each.row["message"] or (each.reasons[0].message if each.reasons else ""))
            lines.append(f"  {each.label}: {' '.join(why.split())[:110]}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=Path(os.environ.get("MLLOAD_TRUTH", ROOT / "tests/data/vllm")))
    parser.add_argument("--configs", default="", help="only these configs, with commas")
    parser.add_argument("--output", type=Path, help="write the report there too")
    args = parser.parse_args()
    profile = profiles.load("vllm", "0.33")
    chosen = read(args.truth, set(filter(None, args.configs.split(","))))
    judged = [judge_row(row, folder, profile) for row, folder in chosen]
    lines = [f"{len(judged)} rows of {profile.label}", "", *report(judged)]
    print("\n".join(lines))
    if args.output:
        args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all(each.agrees and not each.differences for each in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
