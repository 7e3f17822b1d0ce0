#!/usr/bin/env python3
"""How far the plan agrees with what vLLM itself decided, row by row.

    tools/truth_report.py [--truth FOLDER] [--configs NAME,...] [--bytes] [--all]

FOLDER holds truth.jsonl and the config folders (default: MLLOAD_TRUTH, else tests/data/vllm).
Prints agreement per stage and per rule, every false pass and every false alarm, and with --bytes
every row whose bytes per rank differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mlload import profiles  # noqa: E402
from mlload.checkpoint.checkpoint import Checkpoint  # noqa: E402
from mlload.checkpoint.finding import Finding, MlloadError  # noqa: E402
from mlload.plan.mesh import Mesh  # noqa: E402
from mlload.plan.model import Model, read_model  # noqa: E402
from mlload.plan.plan import Plan, make_plan  # noqa: E402

# Stages whose refusals a plan must foresee; the others are rules on configs and GPUs.
PLANNED = ("parallel", "model-build")
Row = dict[str, Any]


def config_folder(truth: Path, name: str) -> Path | None:
    return next((truth / kind / name for kind in ("configs", "public") if (truth / kind / name).is_dir()), None)


def rows(truth: Path) -> Iterator[Row]:
    with (truth / "truth.jsonl").open() as lines:
        yield from map(json.loads, lines)


def capability(row: Row) -> tuple[int, int]:
    major, minor = row["capability"].split(".")
    return int(major), int(minor)


def plan_of(model: Model, profile: profiles.Profile, row: Row) -> Plan:
    return make_plan(model, profile, Mesh(row["tp"], row["pp"], row["ep"]), capability=capability(row))


def refusals(plan: Plan) -> list[Finding]:
    """What would keep vLLM from building the model: the plan's errors and the kernels that nobody has."""
    from mlload.kernels.choice import choose

    found = list(plan.violations)
    view = plan.view
    for layer in plan.layers():
        choice = choose(
            layer.shape,
            layer.scheme,
            view.method,
            plan.dtype,
            plan.capability,
            plan.profile,
            model_type=plan.model.config.text_type,
            where=layer.where,
        )
        found += choice.refusals
    return [f for f in found if f.question == "starts" and f.severity == "error"]


def message_numbers(row: Row) -> set[str]:
    """Numbers of a row's message; a bare assertion's line number is none."""
    message = row["message"] or ""
    return set() if message.startswith("(bare AssertionError") else set(re.findall(r"\d+", message))


def explains(found: list[Finding], row: Row) -> bool:
    wanted = message_numbers(row)
    return any(wanted <= set(re.findall(r"\d+", f"{f.message} {f.where} {json.dumps(f.numbers)}")) for f in found)


class Judged(NamedTuple):
    row: Row
    found: list[Finding]
    differences: dict[str, int]


def judge(model: Model, profile: profiles.Profile, row: Row) -> Judged:
    plan = plan_of(model, profile, row)
    differences: dict[str, int] = {}
    if row["verdict"] == "ok":
        sizes = plan.ranks()
        for rank, expected in row["param_bytes_per_rank"].items():
            if sizes[int(rank)].weight_bytes != expected:
                differences[rank] = sizes[int(rank)].weight_bytes - expected
    return Judged(row, refusals(plan), differences)


def label(row: Row) -> str:
    return f"{row['config']} tp {row['tp']} pp {row['pp']}{' ep' if row['ep'] else ''} at {row['capability']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=Path(os.environ.get("MLLOAD_TRUTH", ROOT / "tests/data/vllm")))
    parser.add_argument("--configs", default="", help="only these configs, with commas")
    parser.add_argument("--bytes", action="store_true", help="list rows whose bytes differ")
    args = parser.parse_args()
    wanted = set(filter(None, args.configs.split(",")))
    profile = profiles.load("vllm", "0.33")
    models: dict[str, Model | MlloadError] = {}
    agree: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    codes: Counter[str] = Counter()
    notes: list[str] = []
    for row in rows(args.truth):
        name = row["config"]
        if wanted and name not in wanted:
            continue
        if name not in models:
            folder = config_folder(args.truth, name)
            if folder is None:
                continue
            try:
                models[name] = read_model(Checkpoint.open(str(folder)))
            except MlloadError as error:
                models[name] = error
                notes.append(f"no table     {name}: {error.message}")
        model = models[name]
        quant = "quantized" if row["quant"] else "plain"
        stage = row["stage"] if row["verdict"] == "error" else "ok"
        if stage not in (*PLANNED, "ok"):
            continue
        key = (quant, stage)
        total[key] += 1
        if isinstance(model, MlloadError):
            continue
        judged = judge(model, profile, row)
        if stage == "ok":
            if judged.found:
                notes.append(f"false alarm  {label(row)}: {judged.found[0].code} {judged.found[0].message}")
            else:
                agree[key] += 1
            total[quant, "bytes"] += 1
            agree[quant, "bytes"] += not judged.differences
            if judged.differences and args.bytes:
                notes.append(f"bytes        {label(row)} {row['quant']}: {judged.differences}")
            continue
        if not judged.found:
            notes.append(f"false pass   {label(row)}: {row['message'][:100]}")
        elif not explains(judged.found, row):
            notes.append(f"unexplained  {label(row)}: {row['message'][:100]} / {judged.found[0].message}")
        else:
            agree[key] += 1
            codes[next(f for f in judged.found if explains([f], row)).code] += 1
    for key in sorted(total):
        print(f"{key[0]:10} {key[1]:12} {agree[key]:5} of {total[key]:5}")
    print("refusals by rule: " + ", ".join(f"{code} {count}" for code, count in sorted(codes.items())))
    print("\n".join(notes))
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
