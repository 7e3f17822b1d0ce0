"""GGUF counts shapes in values and block types in bytes: a file of mixed types binds to the byte."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.plan.model import Model, read_model

HIDDEN, WIDTH, VOCABULARY = 256, 512, 320

# Bytes of one row of 256 values, from ggml's block structs: an F16 scale and 32 codes; two F16, 12 scale bytes and
# 128 bytes of nibbles; 128 + 64 bytes of codes, 16 scales and an F16.
ROW = {"Q8_0": 8 * 34, "Q4_0": 8 * 18, "Q4_K": 144, "Q6_K": 210, "F32": 4 * 256}


def write(path: Path, types: dict[str, str], *, experts: int = 0) -> int:
    """A decoder of one layer, with types by tensor name; returns the bytes of its tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(VOCABULARY)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCABULARY, HIDDEN),
        "output": (VOCABULARY, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
    }
    if experts:
        shapes |= {
            "blk.0.ffn_gate_inp": (experts, HIDDEN),
            "blk.0.ffn_gate_exps": (experts, WIDTH, HIDDEN),
            "blk.0.ffn_up_exps": (experts, WIDTH, HIDDEN),
            "blk.0.ffn_down_exps": (experts, HIDDEN, WIDTH),
        }
    else:
        shapes |= {
            "blk.0.ffn_gate": (WIDTH, HIDDEN),
            "blk.0.ffn_up": (WIDTH, HIDDEN),
            "blk.0.ffn_down": (HIDDEN, WIDTH),
        }
    total = 0
    for name, shape in shapes.items():
        kind = types.get(name.rpartition(".")[2], "F32")
        row = ROW[kind] * shape[-1] // 256
        raw = np.zeros((*shape[:-1], row), np.uint8)
        if kind == "F32":
            writer.add_tensor(f"{name}.weight", raw.view(np.float32))
        else:
            writer.add_tensor(f"{name}.weight", raw, raw_dtype=getattr(gguf.GGMLQuantizationType, kind))
        total += raw.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return total


def bound(path: Path) -> Model:
    return read_model(Checkpoint.open(str(path)))


MIXED = {
    "token_embd": "Q6_K",
    "output": "Q8_0",
    "attn_q": "Q4_K",
    "attn_k": "Q4_K",
    "attn_v": "Q6_K",
    "attn_output": "Q4_0",
    "ffn_gate": "Q4_K",
    "ffn_up": "Q4_K",
    "ffn_down": "Q6_K",
    "ffn_gate_exps": "Q4_K",
    "ffn_up_exps": "Q4_K",
    "ffn_down_exps": "Q6_K",
}


@pytest.mark.parametrize("types", [{}, dict.fromkeys(MIXED, "Q8_0"), MIXED], ids=["plain", "one type", "mixed"])
@pytest.mark.parametrize("experts", [0, 4])
def test_every_byte_is_bound(tmp_path: Path, types: dict[str, str], experts: int) -> None:
    total = write(tmp_path / "model.gguf", types, experts=experts)
    model = bound(tmp_path / "model.gguf")
    assert model.findings == ()
    assert sum(param.disk_bytes for param in model.params) == total


def test_another_width_is_said_in_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata says 768 where the tensors have 512."""
    real = gguf.GGUFWriter.add_feed_forward_length
    monkeypatch.setattr(gguf.GGUFWriter, "add_feed_forward_length", lambda self, width: real(self, 768))
    write(tmp_path / "model.gguf", MIXED)
    (finding,) = bound(tmp_path / "model.gguf").findings
    numbers = {key: finding.numbers[key] for key in ("fields", "expected", "actual", "count")}
    assert numbers == {"fields": ["intermediate_size"], "expected": 768, "actual": WIDTH, "count": 3}
