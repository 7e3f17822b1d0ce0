"""GGUF files written by ggml's own library from known weights: conversion gives the weights back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlload.cli.app import main
from tests.real_models import RealModel
from tests.writer.build import read_folder

gguf = pytest.importorskip("gguf")

HEADS, KV, HEAD, HIDDEN, WIDE, WORDS, LAYERS = 4, 2, 16, 64, 96, 40, 2
Weights = dict[str, "np.ndarray[Any, Any]"]

# model_type -> (GGUF's architecture, per layer: Hugging Face's name -> GGUF's)
COMMON = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
FOUR = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
QK_NORM = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
FUSED = {
    "input_layernorm": "attn_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
FAMILIES: dict[str, tuple[str, dict[str, str]]] = {
    "llama": ("llama", COMMON),
    "qwen2": ("qwen2", COMMON),
    "qwen3": ("qwen3", COMMON | QK_NORM),
    "gemma": ("gemma", COMMON),
    "gemma2": ("gemma2", COMMON | FOUR),
    "gemma3_text": ("gemma3", COMMON | FOUR | QK_NORM),
    "phi3": ("phi3", FUSED),
}


def shapes() -> dict[str, tuple[int, ...]]:
    return {
        "q_proj": (HEADS * HEAD, HIDDEN),
        "k_proj": (KV * HEAD, HIDDEN),
        "v_proj": (KV * HEAD, HIDDEN),
        "qkv_proj": ((HEADS + 2 * KV) * HEAD, HIDDEN),
        "o_proj": (HIDDEN, HEADS * HEAD),
        "gate_proj": (WIDE, HIDDEN),
        "up_proj": (WIDE, HIDDEN),
        "gate_up_proj": (2 * WIDE, HIDDEN),
        "down_proj": (HIDDEN, WIDE),
        "q_norm": (HEAD,),
        "k_norm": (HEAD,),
    }


def paired(weight: Any, heads: int) -> Any:
    """Rows as llama.cpp's converter orders them: the halves of each head in turn."""
    rows = weight.reshape(heads, 2, HEAD // 2, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def as_stored(kind: str, name: str, value: Any) -> Any:
    if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        return paired(value, HEADS if "q_proj" in name else KV)
    if kind.startswith("gemma") and "norm" in name:
        return value + 1
    return value


def write(path: Path, kind: str, *, tied: bool = False, types: dict[str, str] | None = None) -> Weights:
    """A tiny model as GGUF; returns its weights as Hugging Face names and orders them. Values are quarters, so that
    every dtype holds them, and 1 can be added and taken away.

    types: part of a name -> GGUF type of the matrices of that name, which then are no longer the returned weights"""
    architecture, names = FAMILIES[kind]
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if kind in ("gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(32)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(30)), "▁", "a", "b", "ab", "▁ab", "▁a", "c"]
    assert len(pieces) == WORDS
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 33 + [-9.0, -7.0, -8.0, -1.0, -2.0, -3.0, -10.0])
    writer.add_token_types([2, 3, 3, *[6] * 30, *[1] * 7])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    weights: Weights = {}

    def add(ours: str, theirs: str, shape: tuple[int, ...]) -> None:
        value = (rng.integers(-8, 8, shape) / 4).astype(np.float32)
        weights[ours] = value
        stored = as_stored(kind, ours, value)
        block = next((block for part, block in (types or {}).items() if part in ours), None)
        if block is None or value.ndim == 1:
            writer.add_tensor(theirs, stored)
        else:
            chosen = gguf.GGMLQuantizationType[block]
            writer.add_tensor(theirs, gguf.quants.quantize(stored, chosen), raw_dtype=chosen)

    add("model.embed_tokens.weight", "token_embd.weight", (WORDS, HIDDEN))
    for layer in range(LAYERS):
        for ours, theirs in names.items():
            shape = shapes().get(ours.rpartition(".")[2], (HIDDEN,))
            add(f"model.layers.{layer}.{ours}.weight", f"blk.{layer}.{theirs}.weight", shape)
            if kind == "qwen2" and ours[-6:] in ("q_proj", "k_proj", "v_proj"):
                add(f"model.layers.{layer}.{ours}.bias", f"blk.{layer}.{theirs}.bias", shape[:1])
    add("model.norm.weight", "output_norm.weight", (HIDDEN,))
    if not (tied or kind.startswith("gemma")):
        add("lm_head.weight", "output.weight", (WORDS, HIDDEN))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def floats(content: tuple[str, tuple[int, ...], bytes]) -> Any:
    dtype, shape, raw = content
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(raw, {"F16": "<f2", "F32": "<f4"}[dtype]).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_weights_come_back(kind: str, dtype: str, tmp_path: Path) -> None:
    weights = write(tmp_path / "model.gguf", kind)
    assert main(["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out"), "--dtype", dtype]) == 0
    found = read_folder(tmp_path / "out")
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        assert found[name][0] == dtype.upper()
        assert np.array_equal(floats(found[name]), value), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_folder_is_one_that_transformers_loads(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    weights = write(tmp_path / "model.gguf", kind)
    assert main(["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out"), "--dtype", "f32"]) == 0
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=torch.float32
    )
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    state = model.state_dict()
    for name, value in weights.items():
        assert torch.equal(state[name], torch.from_numpy(value)), name
    assert model(torch.tensor([[1, 34, 35]])).logits.shape == (1, 3, WORDS)


def test_the_vocabulary_is_sentencepieces(tmp_path: Path) -> None:
    """Merges: "ab" (-1) before "▁ab" (-2) before "▁a" (-3); "▁ab" is "▁a" + "b" or "▁" + "ab"."""
    tokenizers = pytest.importorskip("tokenizers")
    write(tmp_path / "model.gguf", "llama")
    assert main(["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out")]) == 0
    document = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert document["model"]["merges"] == [["a", "b"], ["▁", "ab"], ["▁a", "b"], ["▁", "a"]]
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("ab abc").tokens == ["<s>", "▁ab", "▁ab", "c"]
    assert tokenizer.encode("\x05").tokens == ["<s>", "▁", "<0x05>"]
    assert tokenizer.decode(tokenizer.encode("ab abc").ids) == "ab abc"
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages[0].content }}" and config["eos_token"] == "</s>"


def test_blocks_are_dequantized_as_ggml_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(WORDS, HIDDEN)).astype(np.float32)
    write(tmp_path / "plain.gguf", "qwen3", tied=True)
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen3")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(rows, kind)
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            writer.add_tensor(tensor.name, packed, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert main(["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out"), "--dtype", "f32"]) == 0
    found = floats(read_folder(tmp_path / "out")["model.embed_tokens.weight"])
    assert np.array_equal(found, gguf.quants.dequantize(packed, kind))


def test_several_files_and_no_tokenizer(tmp_path: Path) -> None:
    weights = write(tmp_path / "model.gguf", "llama")
    words = ["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out"), "--max-shard-size", "30KB"]
    assert main([*words, "--no-tokenizer"]) == 0
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * sum(value.size for value in weights.values())
    assert len(set(index["weight_map"].values())) == len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_other_architectures_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "rwkv6")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert main(["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out")]) == 2
    assert "'rwkv6' are not converted" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def unpacked(found: Any, module: str) -> Any:
    """A kept weight by hand: value i of a row is `bits` bits at bit i * bits, offset by half their range."""
    words = np.frombuffer(found[f"{module}.weight_packed"][2], "<u4")
    n, k = np.frombuffer(found[f"{module}.weight_shape"][2], "<i8")
    scale = np.frombuffer(found[f"{module}.weight_scale"][2], "<f2").astype(np.float32).reshape(n, k // 32)
    bits = words.size * 32 // (n * k)
    codes = (words[:, None] >> np.arange(0, 32, bits, dtype=np.uint32)) & ((1 << bits) - 1)
    values = codes.astype(np.float32).reshape(n, k) - (1 << (bits - 1))
    return values * scale.repeat(32, axis=1)


def dequantized(path: Path) -> dict[str, Any]:
    """ggml's own numbers, by GGUF's names."""
    reader = gguf.GGUFReader(path)
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


KEPT_BITS = {"Q4_0": 4, "Q5_0": 8, "Q8_0": 8}


@pytest.mark.parametrize("block", KEPT_BITS)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3"])
def test_kept_weights_are_ggmls_numbers(kind: str, block: str, tmp_path: Path) -> None:
    """Exactly: nothing is rounded on the way from blocks to packed words, rows of q and k in their new order."""
    path = tmp_path / "model.gguf"
    write(path, kind, types={"proj": block, "embed": block})
    assert main(["convert", str(path), "-o", str(tmp_path / "out"), "--keep-quantized"]) == 0
    found = read_folder(tmp_path / "out")
    theirs = dequantized(path)
    _, names = FAMILIES[kind]
    for ours, stored in names.items():
        if "proj" not in ours:
            continue
        module = f"model.layers.1.{ours}"
        want = theirs[f"blk.1.{stored}.weight"]
        if kind == "llama" and ours[-6:] in ("q_proj", "k_proj"):
            heads = HEADS if "q_proj" in ours else KV
            want = want.reshape(heads, HEAD // 2, 2, HIDDEN).swapaxes(1, 2).reshape(want.shape)
        assert np.array_equal(unpacked(found, module), want), module
        assert f"{module}.weight" not in found
        dtype, shape, _ = found[f"{module}.weight_packed"]
        assert dtype == "I32" and shape == (want.shape[0], want.shape[1] * KEPT_BITS[block] // 32)
    assert found["model.embed_tokens.weight"][0] == "F16" and found["lm_head.weight"][0] == "F16"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "float16"
    declared = config["quantization_config"]
    assert declared["ignore"] == ["lm_head"] and declared["config_groups"].keys() == {"group_0"}
    assert declared["config_groups"]["group_0"]["weights"]["num_bits"] == KEPT_BITS[block]


def test_mixed_types_layer_by_layer(tmp_path: Path) -> None:
    """q, k and v are one layer in an engine: of 4 and 8 bits both become 8; gate goes with up, which nothing keeps."""
    path, out = tmp_path / "model.gguf", tmp_path / "out"
    write(path, "llama", types={"v_proj": "Q8_0", "_proj": "Q4_0", "embed": "Q8_0"})
    assert main(["convert", str(path), "-o", str(out), "--keep-quantized"]) == 0
    found = read_folder(out)
    for name, rows, bits in (("q", 64, 8), ("k", 32, 8), ("v", 32, 8), ("o", 64, 4)):
        module = f"model.layers.0.self_attn.{name}_proj"
        assert found[f"{module}.weight_packed"][1] == (rows, 64 * bits // 32)
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    assert groups["group_0"]["targets"] == ["Linear"] and groups["group_0"]["weights"]["num_bits"] == 4
    assert groups["group_1"]["weights"]["num_bits"] == 8
    assert set(groups["group_1"]["targets"]) == {
        f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(LAYERS) for part in "qkv"
    }
    second, again = tmp_path / "second.gguf", tmp_path / "again"
    write(second, "llama", types={"gate_proj": "Q4_0", "up_proj": "Q4_1", "_proj": "Q8_0"})
    assert main(["convert", str(second), "-o", str(again), "--keep-quantized"]) == 0
    found = read_folder(again)
    for part in ("gate", "up"):
        dtype, _, raw = found[f"model.layers.0.mlp.{part}_proj.weight"]
        theirs = dequantized(second)[f"blk.0.ffn_{part}.weight"]
        assert dtype == "F16" and np.array_equal(np.frombuffer(raw, "<f2"), theirs.astype("<f2").reshape(-1))
    declared = json.loads((again / "config.json").read_text())["quantization_config"]
    plain = {f"model.layers.{layer}.mlp.{part}_proj" for layer in range(LAYERS) for part in ("gate", "up")}
    assert set(declared["ignore"]) == {"lm_head", *plain}


@pytest.mark.parametrize(
    ("kind", "block", "words", "code", "told"),
    [
        ("llama", "Q4_1", [], 1, "linears of Q4_1; of these none can be kept"),
        ("llama", "Q8_0", ["--dtype", "bf16"], 2, "goes with --dtype f16, not bf16"),
        ("gemma2", "Q8_0", [], 1, "is not served in float16"),
    ],
)
def test_what_cannot_be_kept(
    kind: str, block: str, words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "model.gguf", kind, types={"proj": block})
    args = ["convert", str(tmp_path / "model.gguf"), "-o", str(tmp_path / "out"), "--keep-quantized", *words]
    assert main(args) == code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("block", ["F32", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_are_those_of_transformers_own_reading(
    kind: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file read by transformers, its blocks as float32; ours plain and, where it can be, kept packed."""
    if kind == "gemma":
        pytest.skip("transformers does not read this architecture from GGUF")
    # Heads of the size that transformers takes where it does not read it from the file.
    monkeypatch.setattr(f"{__name__}.HEAD", {"qwen3": 128, "gemma2": 256, "gemma3_text": 256}.get(kind, HEAD))
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "model.gguf"
    write(path, kind, types=None if block == "F32" else {"proj": block})
    tokens = torch.tensor([[1, 34, 35, 38, 33, 36]])

    def logits(folder: Path, **words: Any) -> Any:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **words).eval()
        with torch.no_grad():
            return model(tokens).logits

    want = logits(tmp_path, gguf_file=path.name)
    assert float(want.std()) > 0.01
    assert main(["convert", str(path), "-o", str(tmp_path / "plain"), "--dtype", "f32", "--no-tokenizer"]) == 0
    assert torch.equal(logits(tmp_path / "plain"), want)
    if block == "F32" or kind in ("gemma2", "gemma3_text"):
        return
    assert main(["convert", str(path), "-o", str(tmp_path / "kept"), "--keep-quantized", "--no-tokenizer"]) == 0
    assert float((logits(tmp_path / "kept") - want).abs().max()) <= 1e-4 * float(want.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-gguf", "gemma3"])
def test_logits_and_tokens_of_real_models(name: str, real_model: RealModel, tmp_path: Path) -> None:
    """Against transformers' own reading of the same file."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (file,) = real_model(name).glob("*.gguf")
    assert main(["convert", str(file), "-o", str(tmp_path / "out"), "--dtype", "f32"]) == 0
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    for text in ("The capital of France is", "Hello  world 1234\n\n\tit's Ünïcödé 日本 \U0001f642", " lead"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.chat_template == theirs.chat_template
    tokens = torch.tensor([ours("The capital of France is")["input_ids"]])
    logits = []
    for words in ({}, {"gguf_file": file.name}):
        folder = file.parent if words else tmp_path / "out"
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **words)
        with torch.no_grad():
            logits.append(model(tokens).logits)
    assert torch.equal(*logits)
