"""Header-only checkpoints of full size: true names, shapes and file splits over holes that cost no disk.

    python -m tools.skeleton deepseek-v3 OUT          one of tools/skeletons.json
    python -m tools.skeleton path/to/config.json OUT  any config, with its quantization_config

A 688 GB model takes a second and the megabytes of its headers. Names and shapes come from the
architecture tables and format specs of mlload itself, so that they prove speed, scale and the
remote path; that the tables are right is proved elsewhere, against transformers and vLLM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.config import ConfigView
from mlload.demo.checkpoint import CHAT_TEMPLATE
from mlload.demo.tokenizer import SPECIAL_TOKENS, tokenizer_json
from mlload.plan import architectures
from mlload.plan.dtype import model_dtype
from mlload.plan.params import ParamSpec
from mlload.plan.stored import expected_tensors, stored_shape
from mlload.quant import formats
from mlload.quant.formats.tensors import tensor_name
from mlload.quant.spec import QuantSpec
from tools.sparse_safetensors import Entry, split, split_into, write_sharded

LIST = Path(__file__).with_name("skeletons.json")
MAX_SHARD_BYTES = 5_000_000_000  # what save_pretrained splits at


def listed() -> dict[str, dict[str, Any]]:
    """The skeletons of the list: config, count of files, spelling of their names."""
    found: dict[str, dict[str, Any]] = json.loads(LIST.read_text())
    return found


def write_listed(name: str, folder: Path) -> None:
    """One of the list."""
    entry = listed()[name]
    write_skeleton(
        entry["config"],
        folder,
        files=entry["files"],
        digits=entry.get("digits", 5),
        first=entry.get("first", 1),
        scale_dtype=entry.get("scale_dtype"),
    )


def write_skeleton(
    config: dict[str, Any],
    folder: Path,
    *,
    files: int | None = None,
    digits: int = 5,
    first: int = 1,
    scale_dtype: str | None = None,
) -> None:
    """Any config. files: how many weight files, None splits at 5 GB; digits, first: see `write_sharded`;
    scale_dtype: of scales that a format leaves open, None is the model's own."""
    write_side_files(config, folder)
    found = entries(folder, scale_dtype)
    shards = split(found, MAX_SHARD_BYTES) if files is None else split_into(found, files)
    write_sharded(folder, shards, digits=digits, first=first)


def write_side_files(config: dict[str, Any], folder: Path) -> None:
    """Everything but weights; the tokenizer knows bytes and no merges."""
    folder.mkdir(parents=True)
    tokenizer_config = {
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "model_max_length": config.get("max_position_embeddings", 2048),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    contents = {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer.json": tokenizer_json(len(SPECIAL_TOKENS) + 256),
        "tokenizer_config.json": tokenizer_config,
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def entries(folder: Path, scale_dtype: str | None = None) -> list[Entry]:
    """Every tensor that a folder without weights should have, draft layers too, in the order of the network."""
    checkpoint = Checkpoint.open(str(folder))
    config = ConfigView(checkpoint.config)
    architecture = architectures.find(config)
    if architecture is None:
        raise SystemExit(f"no table for the model type {config.model_type!r}")
    quant, _ = formats.detect(checkpoint)
    dtype = model_dtype(config, checkpoint)
    scale_dtype = scale_dtype or dtype
    before: list[Entry] = []
    layers: dict[int, list[Entry]] = {}
    after: list[Entry] = []
    for spec in architecture.params(config):
        if spec.engine_only or spec.alias_of is not None or (spec.optional and not spec.draft):
            continue
        if spec.layers is None:
            (after if layers else before).extend(_of_module(spec, spec.module, quant, dtype, scale_dtype))
            continue
        for layer in spec.layers:
            root = spec.module.replace("{layer}", str(layer))
            layers.setdefault(layer, []).extend(_of_module(spec, root, quant, dtype, scale_dtype))
    return [*before, *(entry for layer in sorted(layers) for entry in layers[layer]), *after]


def _of_module(spec: ParamSpec, path: str, quant: QuantSpec | None, dtype: str, scale_dtype: str) -> Iterator[Entry]:
    paths = [path.replace("{expert}", str(expert)) for expert in range(spec.experts or 1)]
    scheme = quant.scheme_for(paths[0]) if quant is not None and spec.quantized else None
    # What an engine can do without, GPTQ's writers store all the same.
    stored = ("zero", "g_idx") if scheme is not None and scheme.format == "gptq" else ()
    for tensor in expected_tensors(spec, scheme):
        if tensor.optional and tensor.role not in stored:
            continue
        shape = stored_shape(spec, tensor.dims)
        stored_dtype = tensor.dtype or (scale_dtype if tensor.role == "scale" else dtype)
        for module in paths:
            yield Entry(tensor_name(module, tensor.suffix), stored_dtype, shape)


def main() -> None:
    what, out = sys.argv[1], Path(sys.argv[2])
    if what in listed():
        write_listed(what, out)
    else:
        write_skeleton(json.loads(Path(what).read_text()), out)
    weights = list(out.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in weights)
    disk = sum(path.stat().st_blocks * 512 for path in out.iterdir())
    print(f"{out}: {len(weights)} files, {size / 1e9:.1f} GB that take {disk / 1e6:.1f} MB of disk")


if __name__ == "__main__":
    main()
