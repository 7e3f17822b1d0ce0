#!/usr/bin/env python3
"""Compare the kernels that mlload chooses with those that vLLM chose, row by row.

    tools/kernels_report.py FOLDER      a folder with truth.jsonl and configs/ (and public/)

Prints how often each method and kernel agrees, every disagreement, and the modules that no plan names.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.kernels.choice import Choice, choose
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import make_plan
from mlload.profiles import Profile, load
from mlload.profiles.quantization import resolve_quantization

Row = dict[str, Any]
TORCH = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def capability(row: Row) -> tuple[int, int]:
    major, minor = row["capability"].split(".")
    return int(major), int(minor)


@cache
def model(path: Path) -> Model | None:
    """None where the architecture is not in the tables: nothing can be compared then."""
    try:
        return read_model(Checkpoint.open(str(path)))
    except MlloadError:
        return None


def choices(row: Row, folder: Path, profile: Profile) -> list[Choice] | None:
    """The choice for every layer of a row's model; None where its architecture is not in the tables."""
    built = model(folder)
    if built is None:
        return None
    quant = resolve_quantization(built.checkpoint.config, built.checkpoint.json_files, profile).method
    plan = make_plan(built, profile, Mesh(tp=row["tp"], pp=row["pp"], ep=row["ep"]), capability=capability(row))
    return [
        choose(
            layer.shape,
            layer.scheme,
            quant,
            TORCH.get(row["dtype"], "BF16"),
            capability(row),
            profile,
            model_type=built.config.text_type,
            where=layer.where,
        )
        for layer in plan.layers()
    ]


def compare(rows: Iterable[Row], folder: Callable[[Row], Path]) -> tuple[Counter[str], list[str], Counter[str]]:
    """(agreeing entries by the row's label, disagreements in words, entries without a planned layer).

    A model that vLLM builds must not be refused; one that it refuses for want of a backend must be.
    """
    profile = load("vllm", "0.33.0")
    agree: Counter[str] = Counter()
    differ: list[str] = []
    absent: Counter[str] = Counter()
    for row in rows:
        no_backend = str(row["message"]).startswith("No FP8 MoE backend")
        if row["verdict"] != "ok" and not no_backend:
            continue
        at = f"{row['config']} tp {row['tp']} pp {row['pp']} ep {row['ep']} cc {row['capability']}"
        found = choices(row, folder(row), profile)
        if found is None:
            absent[f"{row['config']}: architecture"] += 1
            continue
        refusals = [f for choice in found for f in choice.refusals if f.question == "starts"]
        if bool(refusals) != no_backend:
            differ.append(f"{at}: vLLM {'refuses' if no_backend else 'builds'} it, ours {refusals[:1]}")
        elif no_backend:
            agree["refused: no FP8 MoE backend"] += 1
        ours: dict[str, set[str]] = {}
        for choice in found:
            ours.setdefault(choice.layers, set()).add(choice.label)
        for name, label in row["kernels"].items():
            if "Attention[" in name or no_backend:
                continue
            if name not in ours:
                absent[f"{row['config']}: {name}"] += 1
            elif label in ours[name]:
                agree[label] += 1
            else:
                differ.append(f"{at}: {name} is {label}, ours {sorted(ours[name])}")
    return agree, differ, absent


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(sys.argv[1])
    rows = [json.loads(line) for line in (root / "truth.jsonl").read_text().splitlines()]

    def folder(row: Row) -> Path:
        own = root / "configs" / row["config"]
        return own if own.is_dir() else root / "public" / row["config"]

    agree, differ, absent = compare(rows, folder)
    for label, count in sorted(agree.items()):
        print(f"{count:6}  {label}")
    print(f"{sum(agree.values()):6}  agree, {len(differ)} differ, {sum(absent.values())} not compared")
    for line in differ:
        print("  differs:", line)
    for name, count in absent.most_common():
        print(f"  not compared ({count}): {name}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
