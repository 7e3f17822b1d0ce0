"""Calibration text: read, tokenised with the model's own tokenizer, cut into samples of one length."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from torch import Tensor

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.checkpoint.finding import MlloadError
from mlload.engine.calibrate_rows import row_text

# Prose that every Python installation carries: docstrings of these modules' public names.
BUILTIN_MODULES = (
    "argparse", "ast", "asyncio", "collections", "concurrent.futures", "configparser", "contextlib", "csv", "ctypes",
    "dataclasses", "datetime", "decimal", "difflib", "doctest", "email", "enum", "fractions", "functools", "gettext",
    "heapq", "http.client", "http.cookiejar", "imaplib", "importlib", "inspect", "ipaddress", "itertools", "json",
    "locale", "logging", "mailbox", "mimetypes", "multiprocessing", "numbers", "operator", "optparse", "os", "pathlib",
    "pickle", "pickletools", "platform", "poplib", "pprint", "random", "re", "sched", "shutil", "smtplib", "socket",
    "sqlite3", "ssl", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading", "timeit",
    "tokenize", "traceback", "turtle", "typing", "unittest", "urllib.parse", "urllib.request", "uuid", "warnings",
    "weakref", "xml.dom.minidom", "xml.etree.ElementTree", "zipfile",
)  # fmt: skip
MOST = 64 * 2**20  # bytes read of a file


@dataclass(frozen=True)
class Calibration:
    """samples: int64 [S, L], to calibrate with; held_out: int64 [T, L], disjoint from them, for perplexity
    source: what the text is; digest: of the text; seed: of the draw; device: where layers run on it"""

    samples: Tensor
    held_out: Tensor
    source: str
    digest: str
    seed: int
    act_order: bool = True
    device: str = "cpu"

    @property
    def tokens(self) -> int:
        return self.samples.numel()

    @property
    def identity(self) -> str:
        """Equal for equal samples."""
        return blake2b(self.samples.numpy().tobytes(), digest_size=16).hexdigest() + f"/{self.act_order}"

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "sha": self.digest,
            "samples": self.samples.shape[0],
            "seq_len": self.samples.shape[1],
            "tokens": self.tokens,
            "seed": self.seed,
            "act_order": self.act_order,
        }


def read_calibration(
    checkpoint: Checkpoint, text: str, samples: int, length: int, seed: int, act_order: bool = True, device: str = "cpu"
) -> Calibration:
    """Samples drawn without overlap from the first nine tenths of the text; the last tenth is held out.

    Raises MlloadError where there is no text, too little of it, or no tokenizer.
    """
    import torch

    config = ConfigView(checkpoint.config)
    limit = config.given("max_position_embeddings")
    if isinstance(limit, int) and 0 < limit < length:
        raise MlloadError(f"--seq-len {length} is longer than the model's {limit} positions", hint=f"--seq-len {limit}")
    # What is needed of a dataset that has more: some characters a token, and the tenth that is held out.
    whole, source = _text(text, min(MOST, max(1 << 20, samples * length * 8)))
    if not whole.strip():
        raise MlloadError(f"{text} holds no text to calibrate with")
    ids = tokenised(checkpoint, whole)
    if ids and 0 < config.vocab <= max(ids):
        raise MlloadError(
            f"the tokenizer gives token {max(ids):,} and the model knows {config.vocab:,}: they do not belong together",
            hint="the tokenizer of this model, or a method that needs no data: --method rtn",
            exit_code=1,
        )
    edge = len(ids) * 9 // 10
    places = edge // length
    if places < 1:
        raise MlloadError(
            f"{source} has {len(ids):,} tokens, and one sample takes {length}", hint="a shorter --seq-len, or more text"
        )
    chosen = torch.randperm(places, generator=torch.Generator().manual_seed(seed))[:samples].sort().values
    kept = torch.stack([torch.tensor(ids[at * length : (at + 1) * length]) for at in chosen.tolist()])
    rest = ids[edge:]
    count = max(1, len(rest) // length)
    held = torch.tensor((rest * 2)[: count * min(length, len(rest))]).reshape(count, -1)
    digest = blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Calibration(kept, held, source, digest, seed, act_order, device)


def _text(text: str, wanted: int) -> tuple[str, str]:
    """The text and what it is; wanted: characters, of what is fetched."""
    if text == "builtin":
        return builtin_text(), "docstrings of Python's standard library"
    if text.startswith("hf:"):
        from mlload.engine.calibrate_hub import hub_text

        return hub_text(text.removeprefix("hf:"), wanted)
    try:
        with open(text, encoding="utf-8", errors="replace") as handle:
            whole = handle.read(MOST)
    except OSError as error:
        raise MlloadError(f"{text} cannot be read: {error.strerror}") from error
    if text.endswith(".jsonl"):
        whole = "\n\n".join(_line_text(line, number, text) for number, line in enumerate(whole.splitlines(), 1) if line)
    return whole, os.path.basename(text)


def _line_text(line: str, number: int, name: str) -> str:
    """ "text" of a line, or the contents of its "messages"."""
    try:
        value = json.loads(line)
    except ValueError:
        raise MlloadError(f"line {number} of {name} is no JSON") from None
    return row_text(value, f"line {number} of {name}")


def builtin_text() -> str:
    """Docstrings of modules, classes and functions, each once, read from their source without importing them."""
    import ast
    import sysconfig

    root = sysconfig.get_paths()["stdlib"]
    found: dict[str, None] = {}
    for name in BUILTIN_MODULES:
        base = os.path.join(root, *name.split("."))
        path = next((p for p in (base + ".py", os.path.join(base, "__init__.py")) if os.path.exists(p)), None)
        if path is None:
            continue
        with open(path, encoding="utf-8", errors="replace") as handle:
            tree = ast.parse(handle.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = ast.get_docstring(node) or ""
                if len(words) > 80:
                    found[words] = None
    return "\n\n".join(found)


def tokenised(checkpoint: Checkpoint, text: str) -> list[int]:
    root = getattr(checkpoint.source, "root", None)
    path = os.path.join(root, "tokenizer.json") if root else None
    if path is not None and os.path.exists(path):
        from tokenizers import Tokenizer

        ids: list[int] = Tokenizer.from_file(path).encode(text, add_special_tokens=False).ids
        return ids
    try:
        from transformers import AutoTokenizer

        loaded: Any = AutoTokenizer.from_pretrained(root or checkpoint.label)
        return list(loaded(text, add_special_tokens=False, verbose=False)["input_ids"])
    except Exception as error:
        raise MlloadError(
            f"{checkpoint.label} has no tokenizer that can be read, and calibration text needs one{_reason(error)}",
            hint="add tokenizer.json, or use a method that needs no data: --method rtn",
            exit_code=1,
        ) from error


def _reason(error: Exception) -> str:
    """Of a library's error what stands in its first line; none where that only announces a list."""
    line = (str(error).strip().splitlines() or [""])[0].strip()
    return "" if not line or line.endswith(":") else f" ({line[:120]})"
