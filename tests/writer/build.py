"""Small whole checkpoints of every format, with bytes that no two tensors share, and readers of what was written.

Shapes are those that the formats define; bytes are random, because cutting must not depend on values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.tensor import DTYPE_BITS
from mlload.plan.model import Model, read_model
from mlload.quant.formats import spec as format_spec
from mlload.quant.formats.tensors import shape as stored_shape
from mlload.quant.formats.tensors import tensor_name
from mlload.quant.spec import Scheme
from tests.plan.tiny_models import FALCON, GPT2, LLAMA, MIXTRAL, PHI3, TIED

Tensors = dict[str, tuple[str, tuple[int, ...]]]
Bytes = dict[str, tuple[str, tuple[int, ...], bytes]]

WIDE: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 320,
}
PLAIN: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "tied": TIED,
    "phi3": PHI3,
    "falcon": FALCON,
    "gpt2": GPT2,
    "mixtral": MIXTRAL,
}


def group(bits: int, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, **more}
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
CT = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
# name -> what the config declares, and how each linear is stored.
QUANTIZED: dict[str, tuple[dict[str, Any], Scheme]] = {
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
        Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False),
    ),
    "gptq": (GPTQ, Scheme("gptq", "gptq", 4, "int", "group", 128)),
    "gptq-8": ({**GPTQ, "bits": 8}, Scheme("gptq", "gptq", 8, "int", "group", 128)),
    "gptq-3": ({**GPTQ, "bits": 3}, Scheme("gptq", "gptq", 3, "int", "group", 128)),
    "gptq-act-order": (
        {**GPTQ, "desc_act": True},
        Scheme("gptq", "gptq", 4, "int", "group", 128, act_order=True),
    ),
    "w4a16": (
        {**CT, "format": "pack-quantized", "config_groups": group(4)},
        Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128),
    ),
    "w4a16-zeros": (
        {**CT, "format": "pack-quantized", "config_groups": group(4, symmetric=False)},
        Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128, symmetric=False),
    ),
    "w8a8": (
        {
            **CT,
            "format": "int-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
                }
            },
        },
        Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", -1, activation="dynamic", activation_bits=8),
    ),
    "fp8-block": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        Scheme("fp8", "block", 8, "float", "block", 128, (128, 128)),
    ),
    "fp8": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        Scheme("fp8", "tensor", 8, "float", "tensor", activation="static", activation_bits=8),
    ),
    "nvfp4": (
        {"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]},
        Scheme("modelopt", "NVFP4", 4, "float", "tensor_group", 16, activation="static", activation_bits=4),
    ),
}


def contents(folder: Path, config: dict[str, Any], scheme: Scheme | None = None) -> Tensors:
    """Tensors of a checkpoint of that config, its linears stored as `scheme` says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    plain = read_model(Checkpoint.open(str(folder)))
    found: Tensors = {}
    for param in plain.params:
        if param.spec.draft:
            continue
        quantized = scheme is not None and param.spec.quantized and param.component != "head" and param.stored
        for path in param.modules():
            if quantized:
                assert scheme is not None
                for tensor in format_spec(scheme, param.spec.n, param.spec.k):
                    dims = stored_shape(tensor, param.spec.n, param.spec.k)
                    found[tensor_name(path, tensor.suffix)] = (tensor.dtype or "F16", dims)
            else:
                found |= {path + tensor.suffix: (tensor.dtype, tensor.shape) for tensor in param.stored}
    return found


def write_checkpoint(
    folder: Path,
    config: dict[str, Any],
    scheme: Scheme | None = None,
    *,
    files: int = 2,
    act_order: bool = False,
    extra: Tensors | None = None,
) -> Path:
    """A folder that opens without a problem: config, an index, `files` files, a tokenizer's file beside."""
    tensors = contents(folder, config, scheme)
    tensors |= extra or {}
    rng = np.random.default_rng(7)
    data: Bytes = {}
    for name, (dtype, dims) in tensors.items():
        size = int(np.prod(dims, dtype=np.int64)) * DTYPE_BITS[dtype] // 8
        raw = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
        if name.endswith(".g_idx"):
            order = np.arange(dims[0]) // 128
            raw = (rng.permutation(order) if act_order else order).astype("<i4").tobytes()
        data[name] = (dtype, dims, raw)
    names = list(data)
    weight_map: dict[str, str] = {}
    for number in range(files):
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors" if files > 1 else "model.safetensors"
        mine = names[number * len(names) // files : (number + 1) * len(names) // files]
        write_safetensors(folder / file, {name: data[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    if files > 1:
        index = {"metadata": {"total_size": sum(len(raw) for _, _, raw in data.values())}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "extra").mkdir(exist_ok=True)
    (folder / "extra" / "notes.txt").write_text("beside")
    return folder


def write_quantized(folder: Path, name: str, config: dict[str, Any] = WIDE) -> Path:
    """One of QUANTIZED."""
    declared, scheme = QUANTIZED[name]
    write_checkpoint(folder, config, scheme, act_order=scheme.act_order)
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": declared}))
    return folder


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """By hand, so that the writer under test is not what it is tested with."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, dims, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(raw for _, _, raw in tensors.values()))


def read_safetensors(path: Path) -> Bytes:
    """Every tensor of one file, read by hand and checked against the format's rules."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert (8 + length) % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    # Files of vLLM's names say that their values were not repacked.
    assert header.pop("__metadata__") in ({"format": "pt"}, {"format": "pt", "mlload.layout": "vllm 1"})
    data = raw[8 + length :]
    found: Bytes = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        assert start == end, "holes between tensors"
        end = stop
        found[name] = (entry["dtype"], tuple(entry["shape"]), data[start:stop])
    assert end == len(data)
    return found


def read_folder(folder: Path) -> Bytes:
    """Every tensor of the safetensors files at the top of a folder, each once."""
    found: Bytes = {}
    for path in sorted(folder.glob("*.safetensors")):
        mine = read_safetensors(path)
        assert not set(found) & set(mine)
        found |= mine
    return found


def model_of(folder: Path) -> Model:
    return read_model(Checkpoint.open(str(folder)))


def without_problems(folder: Path) -> Checkpoint:
    """The folder opened; it must be sound."""
    checkpoint = Checkpoint.open(str(folder))
    assert [finding.code for finding in checkpoint.problems if finding.severity == "error"] == []
    return checkpoint


Build = Callable[[Path], Path]


def every_format() -> dict[str, Build]:
    """Name -> what writes it into a folder."""
    found: dict[str, Build] = {
        name: (lambda folder, config=config: write_checkpoint(folder, config)) for name, config in PLAIN.items()
    }
    for name in QUANTIZED:
        found[name] = lambda folder, name=name: write_quantized(folder, name)
    return found
