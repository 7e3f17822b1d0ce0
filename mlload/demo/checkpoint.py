"""`write_demo`: a llama of 7 MB with grouped-query attention, a tokenizer and a chat template.

Its sizes are chosen so that tensor parallelism has something to say: 6 heads and 3 KV heads run at
tp 1 and 3, but not at 2 (3 KV heads) nor 4 (6 heads), and every linear cuts into groups of 128 at
tp 3. Weights come from a hash of the tensor's name, so that they are the same everywhere and
always; they mean nothing, and what the model says is noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.demo.tokenizer import SPECIAL_TOKENS, tokenizer_json

HIDDEN = 384
LAYERS = 4
HEADS = 6
KV_HEADS = 3
HEAD_DIM = 64
MLP = 384
VOCAB = 576  # 9 x 64: an engine's padding to 64 changes nothing, and 3 divides it
CONTEXT = 1024

# The high byte of a bfloat16 is its sign and the upper exponent bits; these four, so often out of 128,
# give weights of mean square 1 / HIDDEN: 0x3A is 2^-11 to 2^-9, each next one four times as large.
HIGH_BYTES = bytes([0x3A] * 4 + [0x3B] * 15 + [0x3C] * 54 + [0x3D] * 55)
TO_HIGH_BYTE = HIGH_BYTES + bytes(byte | 0x80 for byte in HIGH_BYTES)
ONE = b"\x80\x3f"

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

README = """\
# demo

A llama with random weights, written by `mlload demo`: a complete checkpoint to try commands on. It says nothing.
"""


def write_demo(folder: Path) -> None:
    """Write the checkpoint; the folder appears whole or not at all, and is the same byte for byte every time.

    Raises MlloadError where the folder has something in it already, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MlloadError(f"{folder} is there already and not empty", hint=f"mlload demo {folder}-2")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise MlloadError(f"{folder} cannot be written ({error.strerror})") from error
    try:
        for name, content in files().items():
            with (beside / name).open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
        beside.chmod(0o755)
        if folder.is_dir():
            folder.rmdir()
        beside.rename(folder)
    except OSError as error:
        raise MlloadError(f"{folder} cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def files() -> dict[str, bytes]:
    """File name -> content of the whole checkpoint."""
    tensors = dict(shapes())
    second = {name for name in tensors if name.startswith(("model.layers.2.", "model.layers.3.", "model.norm", "lm_"))}
    shards = [[name for name in tensors if name not in second], [name for name in tensors if name in second]]
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(2 * _count(shape) for shape in tensors.values())
    found = {
        "README.md": README.encode(),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "config.json": _json(config()),
        "generation_config.json": _json({"bos_token_id": 0, "eos_token_id": [0, 2], "pad_token_id": 0}),
        "model.safetensors.index.json": _json({"metadata": {"total_size": total}, "weight_map": weight_map}),
        "special_tokens_map.json": _json({"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[2]}),
        "tokenizer.json": _json(tokenizer_json(VOCAB)),
        "tokenizer_config.json": _json(
            {
                "bos_token": SPECIAL_TOKENS[0],
                "clean_up_tokenization_spaces": False,
                "eos_token": SPECIAL_TOKENS[2],
                "model_max_length": CONTEXT,
                "pad_token": SPECIAL_TOKENS[0],
                "tokenizer_class": "PreTrainedTokenizerFast",
            }
        ),
    }
    for name, shard in zip(names, shards, strict=True):
        found[name] = _safetensors({tensor: tensors[tensor] for tensor in shard})
    return found


def config() -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": MLP,
        "max_position_embeddings": CONTEXT,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    }


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor's name and shape, in the order of the network."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        root = f"model.layers.{layer}"
        yield f"{root}.input_layernorm.weight", (HIDDEN,)
        yield f"{root}.self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield f"{root}.self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{root}.self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{root}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield f"{root}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{root}.mlp.gate_proj.weight", (MLP, HIDDEN)
        yield f"{root}.mlp.up_proj.weight", (MLP, HIDDEN)
        yield f"{root}.mlp.down_proj.weight", (HIDDEN, MLP)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def weights(name: str, shape: tuple[int, ...]) -> bytes:
    """A tensor's bfloat16 bytes: ones for a norm, else noise of mean square about 1 / HIDDEN."""
    count = _count(shape)
    if len(shape) == 1:
        return ONE * count
    data = bytearray(hashlib.shake_128(name.encode()).digest(2 * count))
    data[1::2] = data[1::2].translate(TO_HIGH_BYTE)
    return bytes(data)


def _safetensors(tensors: dict[str, tuple[int, ...]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        data.append(weights(name, tensors[name]))
        end = offset + len(data[-1])
        header[name] = {"dtype": "BF16", "shape": tensors[name], "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, *data))


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
