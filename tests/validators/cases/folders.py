"""The smallest input of a reported fault as a folder, and what the command line says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from mlload.cli.app import main
from mlload.cli.output import Output
from tests.validators.build import Tensors
from tests.validators.served import tokenizer_json
from tools.sparse_safetensors import Entry, write_sparse


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors | None = None,
    quantization: Mapping[str, Any] | None = None,
) -> Path:
    """A config alone, or with headers over a hole for data and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**config, "quantization_config": dict(quantization)} if quantization else dict(config)
    (folder / "config.json").write_text(json.dumps(whole))
    if tensors:
        write_sparse(folder / "model.safetensors", [Entry(name, *entry) for name, entry in tensors.items()])
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return folder


def validate(folder: Path, *words: str, engine: str = "vllm@0.33", gpu: str = "cc:9.0") -> dict[str, Any]:
    """The result of `mlload validate FOLDER WORDS --format json`."""
    return validate_words(str(folder), *words, "--engine", engine, "--gpu", gpu, "--format", "json")


def validate_words(*words: str) -> dict[str, Any]:
    """The only result of a command line that asks for JSON."""
    said = StringIO()
    main(["validate", *words], Output(said, StringIO()))
    results = json.loads(said.getvalue())["results"]
    assert len(results) == 1
    result: dict[str, Any] = results[0]
    return result


def starts(folder: Path, *sizes: int, **asked: str) -> dict[int, bool]:
    """tp -> whether it starts."""
    return {tp: validate(folder, "--tp", str(tp), **asked)["starts"] for tp in sizes}


def found(result: Mapping[str, Any], code: str) -> list[dict[str, Any]]:
    return [finding for finding in result["findings"] if finding["code"] == code]


def errors(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in result["findings"] if finding["severity"] == "error"]


def hints(finding: Mapping[str, Any]) -> str:
    """All ways out of one finding as one text."""
    return " / ".join(f"{hint['what']} {hint['command'] or ''}" for hint in finding["hints"])


def tensor_parallel_sizes(result: Mapping[str, Any]) -> set[int]:
    """The tensor-parallel sizes on offer for a single stage."""
    return {size["tp"] for size in result["sizes_that_work"] if size["pp"] == 1 and not size["ep"]}
