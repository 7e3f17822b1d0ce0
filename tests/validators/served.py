"""Whole small folders as people serve them: weights, tokenizer, generation config, template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, judge
from tests.checkpoint.build import data_length, entries, safetensors_bytes
from tests.validators.build import LLAMA, llama

# 512 rows in LLAMA's table: the words have ids 0 to 499, these the next ones.
SPECIAL = {"<|endoftext|>": 500, "<|im_start|>": 501, "<|im_end|>": 502, "<s>": 503, "</s>": 504}
CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def tokenizer_json(special: Mapping[str, int] = SPECIAL, words: int = 500) -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": token, "special": True} for token, number in special.items()],
        "model": {"type": "BPE", "vocab": {f"w{number}": number for number in range(words)}, "merges": []},
    }


def write_model(folder: Path, files: Mapping[str, Any] | None = None, **config: Any) -> Path:
    """A plain decoder with everything that belongs to it. files: name -> content (text, or what JSON is made of) in
    place of, or beside, the usual; None leaves a file out. config: fields of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {**LLAMA, "bos_token_id": 500, "eos_token_id": 502, **config}
    shapes = {name: (dtype, list(shape)) for name, (dtype, shape) in llama(LLAMA).items()}
    header = {"__metadata__": {"format": "pt"}, **entries(shapes)}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(data_length(header))))
    usual: dict[str, Any] = {
        "config.json": fields,
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        },
        "generation_config.json": {"bos_token_id": 500, "eos_token_id": [502, 500]},
        "chat_template.jinja": CHATML,
    }
    for name, content in {**usual, **(files or {})}.items():
        if content is None:
            continue
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def judged(folder: Path, *, engine: str = "vllm", mesh: Mesh | None = None, **asked: Any) -> Verdict:
    model = read_model(Checkpoint.open(str(folder)))
    return judge(make_plan(model, profiles.load(engine), mesh or Mesh()), Request(**asked))


def found(verdict: Verdict, *codes: str) -> list[tuple[str, str]]:
    """(severity, code) of findings with these codes, or with any."""
    return [(f.severity, f.code) for f in verdict.findings if not codes or f.code in codes]


def one(verdict: Verdict, code: str) -> Finding:
    matching = [finding for finding in verdict.findings if finding.code == code]
    assert len(matching) == 1, [(finding.code, finding.message) for finding in verdict.findings]
    return matching[0]


def loud(verdict: Verdict) -> list[str]:
    """Errors and warnings."""
    return [f"{f.code} {f.message}" for f in verdict.findings if f.severity != "info"]
