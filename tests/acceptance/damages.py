"""What is done to the real model before two judges are asked about it: one entry a damage.

`names` is what an error of ours must hold where the engine does not start: the file, tensor or number at fault.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.acceptance.extent import everything
from tests.acceptance.folders import (
    INDEX,
    WHOLE,
    constant,
    cut_file,
    edit_json,
    file_of,
    forget,
    replace_file,
    rewrite,
)

Damage = Callable[[Path], Any]
MODULE_7 = "model.layers.7.mlp.down_proj"
DOWN_7 = f"{MODULE_7}.weight"
SHARD_3 = "model-00003-of-00006.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 44844904\n"


@dataclass(frozen=True)
class Case:
    """One folder and what is known of it beforehand.

    base:      "plain", "sharded" or a twin's format
    arguments: of `vllm.LLM`; flags: the same for `mlload validate`
    healthy:   nothing is wrong and nothing may be said
    wrong:     the engine starts and then answers nonsense
    apart:     why the two judges are meant to differ about it
    """

    name: str
    damage: Damage
    base: str = "plain"
    tp: int = 1
    names: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    healthy: bool = False
    wrong: bool = False
    apart: str = ""


def nothing(folder: Path) -> None:
    """Left as it is."""


def config(**fields: Any) -> Damage:
    """Fields of config.json set, or dropped where the value is None."""

    def change(content: dict[str, Any]) -> None:
        content.update(fields)
        for name in [name for name, value in content.items() if value is None and name in fields]:
            del content[name]

    return lambda folder: edit_json(folder, "config.json", change)


def quantization(**fields: Any) -> Damage:
    return lambda folder: edit_json(
        folder, "config.json", lambda content: content["quantization_config"].update(fields)
    )


def weights(**fields: Any) -> Damage:
    """The scheme that a compressed-tensors config declares."""
    return lambda folder: edit_json(
        folder,
        "config.json",
        lambda content: content["quantization_config"]["config_groups"]["group_0"]["weights"].update(fields),
    )


def without_tensor(name: str) -> Damage:
    return lambda folder: forget(folder, name)


def without_files(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def written(name: str, content: bytes) -> Damage:
    return lambda folder: replace_file(folder, name, content)


def indexed(tensor: str, file: str) -> Damage:
    """The index places a tensor in another file."""
    return lambda folder: edit_json(folder, INDEX, lambda index: index["weight_map"].update({tensor: file}))


def with_tensor(beside: str, name: str, shape: tuple[int, ...], value: float = 1.0) -> Damage:
    """One more tensor in the file of another, or another shape in place of the one that is there."""
    return lambda folder: rewrite(folder, beside, lambda tensors: tensors.update({name: constant(shape, value)}))


def renamed(folder: Path) -> None:
    """Every tensor of one block under another prefix."""

    def change(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.7.")]:
            tensors[f"language_model.{name}"] = tensors.pop(name)

    rewrite(folder, DOWN_7, change)


def adapter_only(folder: Path) -> None:
    without_files("config.json", WHOLE)(folder)
    rank = b'{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "base", "target_modules": ["q_proj"]}'
    replace_file(folder, "adapter_config.json", rank)


CONFIG_ALONE = "a folder of a config alone is judged as if its weights were fine"
HEADER_LIES = struct.pack("<Q", 1 << 40) + b"{}"

CASES: tuple[Case, ...] = (
    # Healthy.
    Case("healthy", nothing, healthy=True),
    Case("healthy, three ranks of three heads", nothing, tp=3, healthy=True),
    Case("healthy, in shards", nothing, base="sharded", healthy=True),
    Case("healthy W4A16", nothing, base="w4a16", healthy=True),
    Case("healthy INT8", nothing, base="int8", healthy=True),
    Case("healthy AWQ", nothing, base="awq", healthy=True),
    Case("healthy GPTQ", nothing, base="gptq", healthy=True),
    # Parallel sizes.
    Case("nine heads on two ranks", nothing, tp=2, names="9"),
    Case("nine heads on four ranks", nothing, tp=4, names="9"),
    Case("nine heads of nine ranks, three KV heads", nothing, tp=6, names="9"),
    # Files.
    Case("a shard is missing", without_files(SHARD_3), base="sharded", names=SHARD_3),
    Case(
        "the index names a file that never was",
        indexed(DOWN_7, "model-00009.safetensors"),
        "sharded",
        names="model-00009.safetensors",
    ),
    Case(
        "the index places a tensor in a shard that lacks it",
        indexed(DOWN_7, "model-00001-of-00006.safetensors"),
        "sharded",
    ),
    Case("cut off at nine tenths", lambda folder: cut_file(folder, WHOLE, 0.9), names=WHOLE),
    Case(
        "cut off inside the header",
        lambda folder: replace_file(folder, WHOLE, b"\x10\x27" + b"\0" * 6 + b'{"a'),
        names=WHOLE,
    ),
    Case("a shard cut in half", lambda folder: cut_file(folder, SHARD_3, 0.5), "sharded", names=SHARD_3),
    Case("a shard is a Git LFS pointer", written(SHARD_3, POINTER), "sharded", names=SHARD_3),
    Case("a shard of no bytes", written(SHARD_3, b""), "sharded", names=SHARD_3),
    Case("a header length of a terabyte", written(SHARD_3, HEADER_LIES), "sharded", names=SHARD_3),
    Case("a pickle under a safetensors name", written(SHARD_3, b"PK\x03\x04" + b"\0" * 100), "sharded", names=SHARD_3),
    Case(
        "no weights at all",
        without_files(WHOLE),
        apart="a folder of a config alone is judged as if its weights were fine",
    ),
    Case("an adapter alone", adapter_only),
    Case("garbage in config.json", written("config.json", b'{"model_type": "llama", '), names="config.json"),
    Case("config.json is a list", written("config.json", b"[]"), names="config.json"),
    Case("no config.json", without_files("config.json"), names="config.json"),
    Case("no tokenizer", without_files("tokenizer.json", "tokenizer_config.json"), names="tokenizer"),
    Case("garbage in tokenizer.json", written("tokenizer.json", b"{"), names="tokenizer.json"),
    Case("garbage in generation_config.json", written("generation_config.json", b"{")),
    Case("no chat template", without_files("chat_template.jinja")),
    Case("a stray file beside the weights", written("notes.txt", b"hello"), healthy=True),
    # Config against tensors.
    Case("intermediate_size too small", config(intermediate_size=1408), names="1408", wrong=True),
    Case("intermediate_size too large", config(intermediate_size=1664), names="1664"),
    Case("vocab_size too small", config(vocab_size=49000), names="49000"),
    Case("vocab_size too large", config(vocab_size=50000), names="50000"),
    Case("hidden_size halved", config(hidden_size=288), names="288"),
    Case("head_dim halved", config(head_dim=32), names="32", wrong=True),
    Case("head_dim dropped, as it is the default", config(head_dim=None), healthy=True),
    Case("heads doubled, head_dim dropped", config(num_attention_heads=18, head_dim=None), wrong=True),
    Case("KV heads as many as heads", config(num_key_value_heads=9), names="9"),
    Case("one layer too few", config(num_hidden_layers=29), names="29"),
    Case("one layer too many", config(num_hidden_layers=31), names="layers.30"),
    Case("the head is not tied and not there", config(tie_word_embeddings=False), names="lm_head", wrong=True),
    Case("an activation that nobody knows", config(hidden_act="swoosh"), names="swoosh"),
    Case("an activation of another kind", config(hidden_act="gelu"), names="gelu"),
    Case("an architecture that nobody knows", config(architectures=["NoSuchForCausalLM"])),
    Case(
        "a model_type that nobody knows",
        config(model_type="no_such", architectures=["NoSuchForCausalLM"]),
        names="no_such",
    ),
    Case("no architectures", config(architectures=None)),
    Case(
        "a rope type that nobody knows",
        config(rope_parameters={"rope_theta": 1e5, "rope_type": "spiral"}),
        names="spiral",
    ),
    Case("a rope type without its numbers", config(rope_parameters={"rope_theta": 1e5, "rope_type": "yarn"})),
    Case("an end of text outside the vocabulary", config(eos_token_id=60000)),
    Case(
        "longer than the model reaches",
        nothing,
        arguments={"max_model_len": 16384},
        flags=("--max-model-len", "16384"),
        names="16384",
    ),
    Case("float16 asked for", nothing, arguments={"dtype": "float16"}, flags=("--dtype", "float16")),
    # Tensors.
    Case("a weight is missing", without_tensor(DOWN_7), "sharded", names=MODULE_7, wrong=True),
    Case("a norm is missing", without_tensor("model.norm.weight"), "sharded", names="model.norm"),
    Case(
        "a third of a fused layer is missing",
        without_tensor("model.layers.3.self_attn.k_proj.weight"),
        "sharded",
        names="k_proj",
        wrong=True,
    ),
    Case(
        "a tensor of no layer",
        with_tensor(DOWN_7, "model.layers.7.mlp.extra_proj.weight", (576, 576)),
        "sharded",
        names="extra_proj",
    ),
    Case("one weight of another shape", with_tensor(DOWN_7, DOWN_7, (576, 1024)), "sharded", names="down_proj"),
    Case("a block under another prefix", renamed, "sharded", names="model.layers.7"),
    Case(
        "one weight of NaN",
        with_tensor(DOWN_7, DOWN_7, (576, 1536), float("nan")),
        "sharded",
        flags=("--deep",),
        wrong=True,
    ),
    Case("one weight of NaN, unread", with_tensor(DOWN_7, DOWN_7, (576, 1536), float("nan")), "sharded"),
    Case("one weight in float32", lambda folder: cast(folder, DOWN_7, torch.float32), "sharded"),
    Case("one tensor in two shards", lambda folder: copy_tensor(folder, "model.norm.weight", DOWN_7), "sharded"),
    Case("every weight twice, once outside the index", lambda folder: beside(folder), "sharded"),
    Case("an epsilon in quotes", config(rms_norm_eps="1e-5"), names="rms_norm_eps"),
    Case("a whole number with a point", config(max_position_embeddings=8192.0), names="max_position_embeddings"),
    Case("layers that are no number", config(num_hidden_layers="thirty"), names="num_hidden_layers"),
    Case("a hidden size of nought", config(hidden_size=0), names="hidden_size"),
    Case("no vocabulary size", config(vocab_size=None), names="embed_tokens"),
    Case("no number of heads", config(num_attention_heads=None), names="q_proj"),
    # Quantized: little is checked while loading.
    Case("an unknown quant_method", config(quantization_config={"quant_method": "squash", "bits": 4}), names="squash"),
    Case("INT8, a weight is missing", without_tensor(DOWN_7), "int8", wrong=True),
    Case("INT8, a scale is missing", without_tensor(f"{MODULE_7}.weight_scale"), "int8", wrong=True),
    Case(
        "INT8, a scale of another shape",
        with_tensor(DOWN_7, f"{MODULE_7}.weight_scale", (512, 1)),
        "int8",
        names="weight_scale",
    ),
    Case("W4A16, a weight is missing", without_tensor(f"{MODULE_7}.weight_packed"), "w4a16", wrong=True),
    Case("W4A16, the config says groups of 32", weights(group_size=32), "w4a16", names="32"),
    Case("W4A16, the config says groups of 128", weights(group_size=128), "w4a16", names="128"),
    Case("W4A16, the config says 8 bits", weights(num_bits=8), "w4a16", names="8"),
    Case("W4A16, activation order by group", weights(actorder="group"), "w4a16", names="act"),
    Case("W4A16, no config of it left", config(quantization_config=None), "w4a16", names="weight_packed"),
    Case("INT8 declared, bf16 stored", lambda folder: declare(folder, "int8"), wrong=True),
    Case("W4A16 declared, bf16 stored", lambda folder: declare(folder, "w4a16")),
    Case("AWQ declared, bf16 stored", lambda folder: declare(folder, "awq")),
    Case("AWQ of 8 bits", quantization(bits=8), "awq", names="8"),
    Case("AWQ, the config says groups of 32", quantization(group_size=32), "awq", names="32"),
    Case("GPTQ read as AWQ", lambda folder: declare(folder, "awq"), "gptq"),
    Case("AWQ read as GPTQ", lambda folder: declare(folder, "gptq"), "awq"),
    Case("GPTQ of 3 bits", quantization(bits=3), "gptq", names="3"),
    Case("GPTQ, asymmetric", quantization(sym=False), "gptq", names="sym"),
    Case("GPTQ in activation order", quantization(desc_act=True), "gptq", names="desc_act"),
    Case("GPTQ, the config says groups of 128", quantization(group_size=128), "gptq"),
)


def cast(folder: Path, name: str, dtype: torch.dtype) -> None:
    rewrite(folder, name, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))


def copy_tensor(folder: Path, name: str, beside: str) -> None:
    """A tensor once more, in the file of another one."""
    value = load_file(folder / file_of(folder, name))[name]
    rewrite(folder, beside, lambda tensors: tensors.update({name: value}))


def beside(folder: Path) -> None:
    """A single file with all weights lies next to the shards that the index names."""
    every = {name: value for path in folder.glob("model-*.safetensors") for name, value in load_file(path).items()}
    save_file(every, folder / WHOLE, metadata={"format": "pt"})


def declare(folder: Path, name: str) -> None:
    """A twin's quantization_config over weights of another format."""
    from tests.acceptance.twins import CONFIGS

    config(quantization_config=CONFIGS[name])(folder)


# CI starts a real vLLM eight times at most: these, three of tests/engine_vllm, and two of the writer's.
IN_CI = (
    "healthy, three ranks of three heads",
    "cut off at nine tenths",
    "W4A16, the config says groups of 128",
)


def asked() -> tuple[Case, ...]:
    """The cases that a test run asks the engine about."""
    return tuple(CASES) if everything() else tuple(case for case in CASES if case.name in IN_CI)
