"""GGUF and torch.save files become a Hugging Face folder; written beside, in bounded memory, resumable."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.gguf import read_gguf
from mlload.plan.model import Model, read_model
from mlload.writer.carry import carried
from mlload.writer.execute import sync_data
from mlload.writer.folder import OutputFolder, refuse_inside
from mlload.writer.gguf_config import hf_config
from mlload.writer.gguf_kept import kept_tensors, quantization_config
from mlload.writer.gguf_tensors import Converted, contents, converted, factors
from mlload.writer.gguf_tokenizer import tokenizer_files
from mlload.writer.groups import weight_groups
from mlload.writer.holdings import fingerprint, whole_holdings
from mlload.writer.layout import Layout, OutputTensor, index_of
from mlload.writer.progress import Bar
from mlload.writer.ranks import is_cut
from mlload.writer.reshape import INDEX, numbered, reshape
from mlload.writer.sizes import DEFAULT, weight_of
from mlload.writer.write import allow_files, write_folder

DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
SYNC_EVERY = 512 * 1024 * 1024
MANY = 4_000_000  # entries of an array of the metadata
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """files: written, with bytes; carried: files that went along; resumed: an interrupted run was gone on with"""

    files: tuple[tuple[str, int], ...]
    carried: tuple[str, ...]
    resumed: bool


def convert(
    checkpoint: Checkpoint,
    output: str,
    *,
    dtype: str | None = None,
    keep: bool = False,
    limit: int | None = None,
    tokenizer: bool = True,
    verify: bool = False,
    progress: Progress | None = None,
) -> Done:
    """Write `checkpoint` to the folder `output` as safetensors.

    dtype: of the numbers that GGUF blocks stand for (None: bf16, and f16 with `keep`); a .bin's tensors keep their own
    keep:  GGUF blocks that compressed-tensors has a format for stay quantized
    limit: bytes of a file
    """
    if is_cut(checkpoint):
        raise MlloadError(
            f"{checkpoint.label} holds the ranks of a cut; GGUF and torch.save (.bin) files are converted",
            hint=f"mlload shard {shlex.quote(checkpoint.label)} -o FOLDER --merge makes a checkpoint of it",
        )
    refuse_inside(output, checkpoint.source)
    broken = [p for p in checkpoint.problems if p.severity == "error" and p.question == "starts"]
    if broken:
        raise MlloadError(f"{checkpoint.label} is not whole: {broken[0].message}", exit_code=1)
    limit = DEFAULT if limit is None else limit
    if keep and checkpoint.format != "gguf":
        raise MlloadError(f"--keep-quantized is for GGUF files; {checkpoint.label} holds {checkpoint.format} weights")
    if checkpoint.format == "torch":
        return _torch(checkpoint, output, limit, verify, progress)
    if checkpoint.format == "gguf":
        if verify:
            raise MlloadError(
                "--verify compares copies, and a GGUF file's numbers are not copied: it is for .bin files"
            )
        chosen = DTYPES[dtype or ("f16" if keep else "bf16")]
        return _gguf(checkpoint, output, chosen, keep, limit, tokenizer, progress)
    raise MlloadError(
        f"{checkpoint.label} holds {checkpoint.format} weights; GGUF and torch.save (.bin) files are converted",
        hint=f"mlload shard {checkpoint.label} -o OUT --max-shard-size 5GB makes other files of safetensors",
    )


def _torch(checkpoint: Checkpoint, output: str, limit: int, verify: bool, progress: Progress | None) -> Done:
    """Storages are copied from where the pickle says that they lie; nothing is unpickled."""
    holdings = whole_holdings(checkpoint)
    layout = reshape(holdings, limit, weight_groups(checkpoint))
    carry = carried(checkpoint, (os.path.abspath(output), os.path.abspath(output) + ".partial"))
    resumed = write_folder(
        output, layout, holdings, carry_from=checkpoint, carry=carry, verify=verify, progress=progress
    )
    return Done(_named(layout), tuple(file.name for file in carry), resumed)


def _named(layout: Layout) -> tuple[tuple[str, int], ...]:
    return tuple((file.name, file.size) for file in layout.files)


def _gguf(
    checkpoint: Checkpoint,
    output: str,
    dtype: str,
    keep: bool,
    limit: int,
    tokenizer: bool,
    progress: Progress | None,
) -> Done:
    if "://" in output:
        raise MlloadError("a GGUF file is converted to a folder; mlload shard --max-shard-size then copies that away")
    first = next(file for file in checkpoint.files if file.used)
    metadata = read_gguf(checkpoint.source, first.name, first.size, 0, kept=MANY).metadata
    config = hf_config(metadata, checkpoint.tensors, factors(checkpoint, checkpoint.tensors), dtype)
    # The metadata of the first part of a split file is the model's.
    model = read_model(replace(checkpoint, metadata={first.name: metadata}))
    kept = kept_tensors(model, dtype) if keep else {}
    tensors = {tensor.name: tensor for tensor in converted(model, dtype, kept)}
    if kept:
        config["quantization_config"] = _declared(model, tensors.values())
    texts: dict[str, bytes] = {"config.json": _json(config)}
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None}
    if ids:
        texts["generation_config.json"] = _json(ids)
    if tokenizer:
        texts |= {name: _json(value) for name, value in tokenizer_files(metadata, config["model_type"]).items()}
    outputs = [OutputTensor(tensor.name, tensor.dtype, tensor.shape, ()) for tensor in tensors.values()]
    files = numbered(outputs, limit, weight_of)
    if len(files) > 1:
        texts[INDEX] = index_of(files)
    layout = Layout(files, texts)
    request = blake2b(fingerprint(checkpoint).encode(), digest_size=16)
    for file in files:
        request.update(file.name.encode() + file.header)
    for name, text in texts.items():
        request.update(name.encode() + text)
    with OutputFolder(output, request.hexdigest(), layout.nbytes) as folder:
        if not folder.complete:
            _write(checkpoint, layout, tensors, folder, progress)
            for name, text in texts.items():
                folder.write(name, (text,))
        folder.finish()
        return Done(_named(layout), (), folder.resumed)


def _declared(model: Model, tensors: Iterable[Converted]) -> dict[str, Any]:
    """The quantization of the output, by its modules' names."""
    linears = {path + ".weight" for param in model.params if param.spec.quantized for path in param.modules()}
    kept: dict[str, int] = {}
    plain: set[str] = set()
    for tensor in tensors:
        module = tensor.name.rpartition(".")[0]
        if tensor.bits:
            kept[module] = tensor.bits
        elif tensor.source.name in linears:
            plain.add(module)
    return quantization_config(kept, plain | {"lm_head"})


def _write(
    checkpoint: Checkpoint,
    layout: Layout,
    tensors: Mapping[str, Converted],
    folder: OutputFolder,
    progress: Progress | None,
) -> None:
    """All tensors in the order of the output, a piece at a time."""
    allow_files(len(layout.files) + 64)
    bar = Bar(progress, os.path.basename(folder.path), sum(file.size for file in layout.files))
    outputs: list[int] = []
    number = unsynced = 0
    try:
        for file in layout.files:
            outputs.append(folder.create(file.name, file.size, file.header))
        for file, descriptor in zip(layout.files, outputs, strict=True):
            for output, offset in file.places():
                number += 1
                if number <= folder.done:
                    bar.step(output.nbytes)
                    continue
                for raw in contents(checkpoint, tensors[output.name]):
                    os.pwrite(descriptor, raw, offset)
                    offset += len(raw)
                    bar.step(len(raw))
                    unsynced += len(raw)
                if unsynced >= SYNC_EVERY:
                    for other in outputs:
                        sync_data(other)
                    folder.record(number)
                    unsynced = 0
        for descriptor in outputs:
            os.fsync(descriptor)
    finally:
        bar.close()
        for descriptor in outputs:
            os.close(descriptor)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
