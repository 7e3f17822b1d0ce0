"""Which of a checkpoint's files hold the weights that an engine reads, and which lie beside them.

vLLM's choice (model_executor/model_loader/default_loader.py): the files at the top of the folder;
safetensors before .bin before .pt; with an index, the files that it names; without, all of them.
A Mistral repository often holds its weights twice, as `consolidated*` and as `model-*`: the Hugging
Face set is taken here, since config.json describes that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlload.checkpoint.sources.base import SourceFile

HF_INDEX = "model.safetensors.index.json"
MISTRAL_INDEX = "consolidated.safetensors.index.json"
TORCH_INDEX = "pytorch_model.bin.index.json"

# Left behind by trainers; vLLM skips them by these endings (weight_utils.py
# filter_files_not_needed_for_inference).
TRAINING_ENDINGS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")

_RANK = re.compile(r"model-(?:rank-(\d{1,6})|pp-(\d{1,6})-tp-(\d{1,6}))-part-(\d{1,6})\.safetensors")
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(\w+)")


class Choice(NamedTuple):
    """format as in `Checkpoint.format`; used and stray in name order; index_name: of a file, or None;
    passed_over: other complete sets, in words."""

    format: str
    used: tuple[str, ...]
    stray: tuple[str, ...]
    index_name: str | None
    passed_over: str | None = None


class Rank(NamedTuple):
    """Whose state a sharded_state file holds: `key` is "rank0" or "pp0-tp1"."""

    key: str
    part: int


def kind_of_file(name: str) -> str:
    """FileRef.kind from a name: "safetensors", "gguf", "torch", "tensorizer", "json" or "other"."""
    base = name.rpartition("/")[2]
    extension = base.rpartition(".")[2].lower() if "." in base else ""
    if extension in ("safetensors", "gguf", "json"):
        return extension
    if extension in ("bin", "pt", "pth") and not base.endswith(TRAINING_ENDINGS):
        return "torch"
    return "tensorizer" if extension == "tensors" else "other"


def rank_of(name: str) -> Rank | None:
    """The rank that a sharded_state file belongs to, None for any other name."""
    match = _RANK.fullmatch(name)
    if match is None:
        return None
    rank, stage, tensor, part = match.groups()
    return Rank(f"rank{int(rank)}" if rank is not None else f"pp{int(stage)}-tp{int(tensor)}", int(part))


def choose(files: Sequence[SourceFile], single: str | None = None) -> Choice:
    """The weight files of a listing. `single` names the file of a source that is one file."""
    top = [file.name for file in files if "/" not in file.name]
    names = set(top)
    by_kind: dict[str, list[str]] = {}
    for name in top:
        by_kind.setdefault(kind_of_file(name), []).append(name)
    tensors = by_kind.get("safetensors", [])
    torch_files = by_kind.get("torch", [])
    if single is not None:
        return _single(single, by_kind)
    everything = tensors + torch_files + by_kind.get("gguf", []) + by_kind.get("tensorizer", [])

    adapters = [name for name in everything if name.startswith("adapter_model")]
    if adapters and "adapter_config.json" in names and len(adapters) == len(everything):
        return Choice("adapter", tuple(adapters), (), None)
    if tensors or HF_INDEX in names or MISTRAL_INDEX in names:
        return _safetensors(tensors, names, everything)
    if by_kind.get("gguf"):
        used, passed_over = gguf_set(by_kind["gguf"])
        return Choice("gguf", used, _rest(everything, used), None, passed_over)
    if by_kind.get("tensorizer"):
        used = tuple(by_kind["tensorizer"])
        return Choice("tensorizer", used, _rest(everything, used), None)
    if torch_files or TORCH_INDEX in names:
        bins = [name for name in torch_files if name.endswith(".bin")]
        used = tuple(bins or torch_files)
        return Choice("torch", used, _rest(everything, used), TORCH_INDEX if TORCH_INDEX in names else None)
    return Choice("none", (), (), None)


def _single(single: str, by_kind: dict[str, list[str]]) -> Choice:
    kind = kind_of_file(single)
    if kind == "gguf":
        used, passed_over = gguf_set([n for n in by_kind.get("gguf", []) if split_base(n) == split_base(single)])
        return Choice("gguf", used, (), None, passed_over)
    if kind == "safetensors" and single.startswith("adapter_model"):
        return Choice("adapter", (single,), (), None)
    if kind in ("safetensors", "torch", "tensorizer"):
        return Choice(kind, (single,), (), None)
    return Choice("none", (), (), None)


def _safetensors(tensors: list[str], names: set[str], everything: list[str]) -> Choice:
    if HF_INDEX not in names:
        ranks = tuple(name for name in tensors if rank_of(name) is not None)
        if ranks:
            return Choice("sharded_state", ranks, _rest(everything, ranks), None)
    mistral = [name for name in tensors if name.startswith("consolidated")]
    plain = [name for name in tensors if not name.startswith(("consolidated", "adapter_model"))]
    if HF_INDEX in names or plain:
        passed_over = None
        if mistral and plain:
            passed_over = f"consolidated*.safetensors ({len(mistral)} {'file' if len(mistral) == 1 else 'files'})"
        index = HF_INDEX if HF_INDEX in names else None
        return Choice("safetensors", tuple(plain), _rest(everything, plain), index, passed_over)
    if mistral or MISTRAL_INDEX in names:
        index = MISTRAL_INDEX if MISTRAL_INDEX in names else None
        return Choice("safetensors", tuple(mistral), _rest(everything, mistral), index)
    return Choice("safetensors", tuple(tensors), _rest(everything, tensors), None)


def _rest(everything: Iterable[str], used: Iterable[str]) -> tuple[str, ...]:
    taken = set(used)
    return tuple(sorted(name for name in everything if name not in taken))


def split_base(name: str) -> str:
    """What the parts of one set share: "model-Q4_K_M" of "model-Q4_K_M-00001-of-00003.gguf"."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


def gguf_set(names: list[str]) -> tuple[tuple[str, ...], str | None]:
    """The files of one GGUF model out of a folder that may hold several quantizations of it:
    (files, what was passed over). A vision projector (mmproj) is a companion, not a model."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(split_base(name), []).append(name)
    models = [base for base in groups if not base.rpartition("/")[2].lower().startswith("mmproj")] or list(groups)
    if not models:
        return (), None
    taken = models[0]
    passed_over = ", ".join(models[1:4]) + (", ..." if len(models) > 4 else "")
    return tuple(groups[taken]), passed_over or None


class Numbering(NamedTuple):
    """Files called NAME-00001-of-00004: the total in the names and the files that none is."""

    total: int
    missing: tuple[str, ...]


def numbering(names: Iterable[str]) -> Numbering | None:
    """Checks the numbers in file names; None where names carry none, or carry different counts."""
    present: set[int] = set()
    shape: tuple[str, int, str] | None = None
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            continue
        this = (match[1], int(match[3]), match[4])
        if shape is not None and this != shape:
            return None
        shape = this
        present.add(int(match[2]))
    if shape is None:
        return None
    base, count, extension = shape
    # GGUF and safetensors count from 1, some torch files from 0.
    numbers = range(0, count) if 0 in present else range(1, count + 1)
    missing = tuple(f"{base}-{n:05d}-of-{count:05d}.{extension}" for n in numbers if n not in present)
    return Numbering(count, missing)
