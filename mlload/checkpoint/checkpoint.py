"""`Checkpoint`: everything that can be known of a checkpoint without reading a weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlload.checkpoint.finding import Finding
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import TensorRef


class FileRef(NamedTuple):
    """One file of a checkpoint.

    name:   relative to the source
    size:   bytes
    kind:   "safetensors", "gguf", "torch", "tensorizer", "json", "other"
    used:   its tensors are what an engine would read (indexed, or the only set there is);
            False for stray weight files beside them
    digest: sha256 where the source knows it without reading the file
    """

    name: str
    size: int
    kind: str
    used: bool = False
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """A `*.index.json`: its name, tensor -> file name, and the total_size that it claims (bytes)."""

    name: str
    weight_map: dict[str, str]
    total_size: int | None


class Cut(NamedTuple):
    """What a folder of ranks was cut for.

    layout:  "mlload", "sharded_state" or "tensorizer"
    tp, pp:  sizes
    ep:      whether experts are whole on their rank; None where that cannot be told, or makes no difference
    untold:  why the whole tensors could not be told from the files, "" where they were
    fault:   what of the files is not as config.json or the manifest says, "" where nothing is
    """

    layout: str
    tp: int
    pp: int = 1
    ep: bool | None = None
    untold: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is on disk (or behind a URL), with every problem met while looking.

    label:      the source as typed
    source:     to read bytes from
    format:     of the weights: "safetensors", "gguf", "torch", "tensorizer", "sharded_state",
                "adapter" (LoRA), "none" (a config without weights)
    tensors:    name -> TensorRef, what an engine would read; of "sharded_state", where every rank holds the
                same names, "rank0/name" or "pp0-tp1/name" -> TensorRef
    stray:      tensors of weight files that the index does not name
    config:     config.json as parsed, {} when there is none; for GGUF the metadata keys translated
                to Hugging Face names are `mlload.checkpoint.config`'s business
    json_files: other small JSON files as parsed, by name ("generation_config.json",
                "tokenizer_config.json", "hf_quant_config.json", "params.json", ...)
    metadata:   weight file name -> its own metadata (safetensors `__metadata__`, GGUF key-values)
    index:      the index, or None
    files:      every file
    fingerprint: hex digest over names, sizes and headers: equal for equal headers
    problems:   findings, in order of discovery
    cut:        of a folder of ranks that is looked at as the checkpoint that was cut (`writer.ranks`); else None
    """

    label: str
    source: Source
    format: str
    tensors: dict[str, TensorRef]
    stray: dict[str, TensorRef]
    config: dict[str, Any]
    json_files: dict[str, Any]
    metadata: dict[str, dict[str, Any]]
    index: Index | None
    files: tuple[FileRef, ...]
    fingerprint: str
    problems: tuple[Finding, ...]
    cut: Cut | None = None

    @classmethod
    def open(
        cls, source: str | Source, *, revision: str | None = None, progress: Callable[[str], None] | None = None
    ) -> Checkpoint:
        """Read headers and small files of a folder, a file, "org/name[@revision]" or a URL; never a weight.

        progress: called with a line of text when remote reads take more than a second. Raises MlloadError
        where there is no such source; whatever is wrong inside it becomes `problems`.
        """
        from mlload.checkpoint.reading import open_checkpoint

        return open_checkpoint(source, revision, progress)

    @property
    def revision(self) -> str | None:
        return self.source.revision
