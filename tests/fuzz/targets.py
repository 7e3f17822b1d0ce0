"""What is fuzzed: for each kind of input how to make one, and what must hold of the answer.

Always: no exception, an end within seconds, memory that follows the input's true size, findings that are
data (known codes, one printable sentence). And nothing is called sound that the format's own reader rejects.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from random import Random

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.codes import CODES
from mlload.checkpoint.config import ConfigView
from tests.checkpoint import build
from tests.checkpoint.test_torch_file import state_dict_pickle, write_zip
from tests.fuzz.memory_source import MemorySource
from tests.fuzz.mutations import INTEGERS, dumps, mutate_bytes, mutate_json

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "text_config": {"hidden_size": 32, "num_experts": 8},
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["lm_head"]},
}
CONFIG_BYTES = json.dumps({"model_type": "llama"}).encode()


class Broken(AssertionError):
    """An input for which something that must hold does not."""


def judge(contents: dict[str, bytes]) -> Checkpoint:
    """Open, and hold what must hold of every answer."""
    checkpoint = Checkpoint.open(MemorySource(contents))
    for problem in checkpoint.problems:
        if problem.code not in CODES:
            raise Broken(f"{problem.code} has no text")
        if not problem.message.isprintable() or not problem.message.endswith(".") or len(problem.message) > 1000:
            raise Broken(f"not one printable sentence: {problem.message!r}")
        if not problem.where.isprintable():
            raise Broken(f"no printable place: {problem.where!r}")
        json.dumps(problem.as_json())
    for name, ref in checkpoint.tensors.items():
        size = checkpoint.files[ref.file].size
        if ref.offset + ref.nbytes > size and sound(checkpoint):
            raise Broken(f"{name!r} ends past its file")
    return checkpoint


def sound(checkpoint: Checkpoint) -> bool:
    """No error, and no dtype that the reader at hand does not know."""
    return not any(problem.severity == "error" or problem.code == "FI011" for problem in checkpoint.problems)


SAFETENSORS = (
    build.entries({"a": ("F32", [2]), "b": ("BF16", [3, 5]), "c": ("U8", [7])}),
    {"__metadata__": {"format": "pt"}, **build.entries({f"model.layers.{i}.w": ("F16", [2, i + 1]) for i in range(6)})},
    build.entries({"z": ("F32", [0, 4]), "s": ("F64", []), "t": ("I8", [1])}),
    {"a": {"dtype": "F4", "shape": [6], "data_offsets": [0, 3]}},
    {},
)


def make_safetensors(random: Random) -> bytes:
    header = random.choice(SAFETENSORS)
    if random.random() < 0.3:
        return mutate_bytes(random, build.safetensors_bytes(header))
    if random.random() < 0.6:
        raw = dumps(random, mutate_json(random, header))
    else:
        raw = mutate_bytes(random, json.dumps(header).encode())
    length = len(raw) if random.random() < 0.95 else random.choice(INTEGERS) & (2**64 - 1)
    size = build.data_length(header) + random.choice((0, 0, 0, 0, 1, -1, 4, 64))
    return length.to_bytes(8, "little") + raw + bytes(max(0, size))


def safetensors(random: Random) -> None:
    content = make_safetensors(random)
    check_safetensors(content)


def check_safetensors(content: bytes) -> None:
    import safetensors as reader

    checkpoint = judge({"config.json": CONFIG_BYTES, "model.safetensors": content})
    if not sound(checkpoint):
        return
    try:
        theirs = dict(reader.deserialize(content))
    except Exception as error:
        raise Broken(f"safetensors: {error}") from None
    if theirs.keys() != checkpoint.tensors.keys():
        raise Broken("other tensors than safetensors finds")
    for name, ref in checkpoint.tensors.items():
        their = theirs[name]
        if list(ref.shape) != their["shape"] or content[ref.offset : ref.offset + ref.nbytes] != bytes(their["data"]):
            raise Broken(f"{name!r} lies elsewhere for safetensors")


def gguf_parts(random: Random) -> tuple[list[bytes], list[bytes], bytes]:
    keys = [
        build.string_key("general.architecture", "llama"),
        build.uint32_key("llama.block_count", 2),
        build.string_array("tokens", ["a", "b", "c"]),
        build.uint32_key("general.alignment", random.choice((8, 32, 64, 64, 0, 24))),
        build.key_value("list", 9, (5).to_bytes(4, "little") + (2).to_bytes(8, "little") + bytes(8)),
    ]
    infos = [
        build.tensor_info("token_embd.weight", [32, 4], 0, 0),
        build.tensor_info("blk.0.attn_q.weight", [256, 2], random.choice((12, 14, 8, 2, 39)), 512),
    ]
    return random.sample(keys, random.randrange(1, 6)), infos, bytes(1600)


def make_gguf(random: Random) -> bytes:
    keys, infos, data = gguf_parts(random)
    if random.random() < 0.4:
        keys = [mutate_bytes(random, key) if random.random() < 0.4 else key for key in keys]
    if random.random() < 0.4:
        infos = [mutate_bytes(random, info) if random.random() < 0.5 else info for info in infos]
    if random.random() < 0.2:
        infos.append(build.tensor_info("x", [random.choice(INTEGERS[:-1])], 0, random.choice(INTEGERS[:-1])))
    counts = None if random.random() < 0.9 else (random.choice(INTEGERS[:-1]), random.choice(INTEGERS[:-1]))
    content = build.gguf_bytes(keys, infos, data, version=random.choice((2, 3, 3, 3, 3, 1)), counts=counts)
    return mutate_bytes(random, content) if random.random() < 0.4 else content


def gguf(random: Random) -> None:
    check_gguf(make_gguf(random))


def check_gguf(content: bytes) -> None:
    checkpoint = judge({"model.gguf": content})
    if not sound(checkpoint) or checkpoint.format != "gguf":
        return
    from gguf import GGUFReader

    with tempfile.NamedTemporaryFile(suffix=".gguf", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        file.write(content)
        file.flush()
        try:
            theirs = {tensor.name: tensor for tensor in GGUFReader(file.name).tensors}
        except Exception as error:
            raise Broken(f"gguf: {type(error).__name__}: {error}") from None
    if theirs.keys() != checkpoint.tensors.keys():
        raise Broken("other tensors than gguf finds")
    for name, ref in checkpoint.tensors.items():
        if (ref.offset, ref.nbytes) != (theirs[name].data_offset, theirs[name].n_bytes):
            raise Broken(f"{name!r} lies elsewhere for gguf")


def index(random: Random) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    contents = {"config.json": CONFIG_BYTES}
    weight_map: dict[str, str] = {}
    for number, name in enumerate(names):
        tensors = build.layer(number)
        contents[name] = build.safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries(tensors)})
        weight_map.update(dict.fromkeys(tensors, name))
    value = {"metadata": {"total_size": 384}, "weight_map": weight_map}
    raw = json.dumps(value).encode()
    raw = dumps(random, mutate_json(random, value)) if random.random() < 0.6 else mutate_bytes(random, raw)
    if random.random() < 0.2:
        name = random.choice(names)
        contents[name] = mutate_bytes(random, contents[name])
    contents[random.choice(("model", "model", "model", "consolidated")) + ".safetensors.index.json"] = raw
    checkpoint = judge(contents)
    for file in checkpoint.index.weight_map.values() if checkpoint.index else ():
        if file.startswith("/") or ".." in file.split("/"):
            raise Broken(f"the index leads to {file!r}")


def config(random: Random) -> None:
    raw = json.dumps(CONFIG).encode()
    raw = dumps(random, mutate_json(random, CONFIG)) if random.random() < 0.7 else mutate_bytes(random, raw)
    header = build.safetensors_bytes({"__metadata__": {"format": "pt"}, **build.entries(build.layer(0))})
    side = random.choice(("generation_config.json", "tokenizer_config.json", "adapter_config.json", "params.json"))
    contents = {"config.json": raw, "model.safetensors": header, side: mutate_bytes(random, raw)}
    if random.random() < 0.2:
        contents = {"adapter_config.json": raw, "adapter_model.safetensors": header}
    view = ConfigView(judge(contents).config)
    for name, member in vars(ConfigView).items():
        if isinstance(member, property):
            getattr(view, name)


def make_torch(random: Random) -> bytes:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = os.path.join(folder, "x.bin")
        pickled = state_dict_pickle()
        if random.random() < 0.6:
            pickled = mutate_bytes(random, pickled)
        write_zip(path, pickled, {"0": bytes(24)})  # type: ignore[arg-type]
        with open(path, "rb") as file:
            content = file.read()
    return mutate_bytes(random, content) if random.random() < 0.4 else content


LEGACY = b"".join(
    pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
) + state_dict_pickle() + pickle.dumps(["0"], 2) + (6).to_bytes(8, "little") + bytes(24)  # fmt: skip


def torch(random: Random) -> None:
    content = make_torch(random) if random.random() < 0.5 else mutate_bytes(random, LEGACY)
    judge({"config.json": CONFIG_BYTES, "pytorch_model.bin": content})


def tensorizer(random: Random) -> None:
    from tests.checkpoint.test_tensorizer import GOOD, file_bytes

    judge({"config.json": CONFIG_BYTES, "model.tensors": mutate_bytes(random, file_bytes(GOOD, table=200))})


TARGETS: dict[str, Callable[[Random], None]] = {
    "safetensors": safetensors,
    "gguf": gguf,
    "index": index,
    "config": config,
    "torch": torch,
    "tensorizer": tensorizer,
}
# Of twenty inputs, how many each target gets.
SHARES = {"safetensors": 8, "gguf": 4, "index": 3, "config": 2, "torch": 2, "tensorizer": 1}
