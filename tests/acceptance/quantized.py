"""A real vLLM reads what `mlload quantize` writes, and its loss on a text is what an independent reader computes.

    python -m tests.acceptance.quantized [WORDS]     all recipes, or those whose name holds one of the words

For each recipe the real model is quantized, started with no flags, and given a text; its mean -log p per token is
compared with that of a plain transformers model whose weights this repository's benchmarks unpack by arithmetic of
their own. `shim: true` where this CPU's vLLM lacks an operator (some builds have none for 4 bits) and vllm_operator.py
supplied it: such a folder loads and has the right numbers, and no more is claimed. A full run is kept in
benchmarks/results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.judges import STARTS
from tools.real_model import smollm2
from tools.vllm_cpu import VLLM_CPU, python, ready

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
# The engine computes in bf16, and activations of W8A8 and FP8 are rounded as they come: nats per token.
CLOSE = {"int8": 0.06, "fp8": 0.06}
CLOSE_16 = 0.03
# Prose of this repository's own, which every tokenizer knows.
TEXT = Path(__file__).resolve().parents[2] / "docs" / "structure.md"
LENGTH, PROMPTS = 128, 4


class Recipe(NamedTuple):
    """words: of `mlload quantize`; four_bits: this CPU's vLLM may lack the operator, which is then supplied"""

    name: str
    words: tuple[str, ...]
    four_bits: bool = True


RECIPES = (
    Recipe("awq", ("--method", "rtn", "--asym", "--save-as", "awq", "--group-size", "64")),
    Recipe("gptq", ("--method", "rtn", "--save-as", "gptq", "--group-size", "64")),
    Recipe("w4a16", ("--method", "rtn", "--group-size", "64")),
    Recipe("int8", ("--method", "int8"), four_bits=False),
    Recipe("fp8", ("--method", "fp8"), four_bits=False),
)


def ask(recipes: tuple[Recipe, ...]) -> list[dict[str, Any]]:
    """One row a recipe: {"recipe", "starts", "shim", "loss", "expected", "difference", "float", "message"}."""
    model = smollm2()
    prompts = token_ids(model)
    with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
        folders = {recipe.name: Path(scratch) / recipe.name for recipe in recipes}
        for recipe in recipes:
            command = [sys.executable, "-m", "mlload", "quantize", str(model), "-o", str(folders[recipe.name])]
            subprocess.run([*command, *recipe.words], check=True, stdout=subprocess.DEVNULL)
        theirs = answers(folders, prompts, Path(scratch))
        whole = loss_of(model, None, prompts)
        rows = []
        for recipe in recipes:
            answer = theirs[recipe.name]
            expected = loss_of(model, folders[recipe.name], prompts)
            found = answer.get("loss")
            rows.append(
                {
                    "recipe": recipe.name,
                    "words": list(recipe.words),
                    "starts": answer["starts"],
                    "shim": answer["shim"],
                    "loss": found,
                    "expected": expected,
                    "difference": None if found is None else found - expected,
                    "float": whole,
                    "message": answer["message"],
                }
            )
    return rows


def answers(folders: dict[str, Path], prompts: list[list[int]], scratch: Path) -> dict[str, dict[str, Any]]:
    questions = [
        {"name": name, "folder": str(folder), "tp": 1, "arguments": {}, "prompts": prompts}
        for name, folder in folders.items()
    ]
    asked, answered, log = scratch / "questions.json", scratch / "answers.jsonl", scratch / "log"
    asked.write_text(json.dumps(questions))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "HF_", "PYTHON"))}
    with log.open("w") as errors:
        done = subprocess.run([python(), STARTS, asked, answered], stderr=errors, env=clean, check=False)
    if done.returncode:
        raise RuntimeError(f"vLLM's process ended with {done.returncode}: {log.read_text(errors='replace')[-2000:]}")
    return {answer["name"]: answer for answer in map(json.loads, answered.read_text().splitlines())}


def token_ids(model: Path) -> list[list[int]]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT.read_text(), add_special_tokens=False).ids
    return [ids[at * LENGTH : (at + 1) * LENGTH] for at in range(PROMPTS)]


def loss_of(model: Path, folder: Path | None, prompts: list[list[int]]) -> float:
    """By transformers, of the folder's weights as benchmarks/quantize_peers_read.py unpacks them, in fp32."""
    import torch

    from benchmarks.quantize_peers_read import dequantized, model_of

    net = model_of(model, None if folder is None else dequantized(folder))
    tokens = torch.tensor(prompts)
    with torch.inference_mode():
        found = torch.log_softmax(net(input_ids=tokens).logits[:, :-1].float(), -1)
    return -float(found.gather(2, tokens[:, 1:, None]).mean())


def fits(row: dict[str, Any], recipe: Recipe) -> bool:
    close = CLOSE.get(recipe.name, CLOSE_16)
    return bool(row["starts"]) and row["shim"] <= recipe.four_bits and abs(row["difference"]) < close


def text(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'recipe':8} {'starts':7} {'shim':6} {'loss':>8} {'expected':>9}   (float {rows[0]['float']:.4f})"]
    for row in rows:
        loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
        starts, shim = (str(row[key]).lower() for key in ("starts", "shim"))
        lines.append(f"{row['recipe']:8} {starts:7} {shim:6} {loss:>8} {row['expected']:9.4f}   {row['message'][:120]}")
    plain = [row["recipe"] for row in rows if row["starts"] and not row["shim"]]
    lines += ["", f"loads in vLLM with no flags and runs, nothing supplied: {', '.join(plain) or 'none'}"]
    return "\n".join(lines) + "\n"


def main() -> int:
    if not ready():
        raise SystemExit("no vLLM here: python -m tools.vllm_cpu makes it")
    words = sys.argv[1:]
    recipes = tuple(recipe for recipe in RECIPES if not words or any(word in recipe.name for word in words))
    rows = ask(recipes)
    report = f"{VLLM_CPU} on this CPU, mean -log p of a token\n\n{text(rows)}"
    print(report, end="")
    if not words:
        (RESULTS / "acceptance_quantized.txt").write_text(report)
        (RESULTS / "acceptance_quantized.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(fits(row, recipe) for row, recipe in zip(rows, recipes, strict=True)) else 1


if __name__ == "__main__":
    sys.exit(main())
