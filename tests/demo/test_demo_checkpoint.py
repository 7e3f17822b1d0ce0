"""The demo checkpoint: the same bytes every time, whole, and a model that transformers runs."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.demo import checkpoint as demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "model"
    demo.write_demo(path)
    return path


def test_two_runs_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "deep" / "er"
    demo.write_demo(other)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in other.iterdir())
    for path in folder.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name
    assert [path.name for path in other.parent.iterdir()] == ["er"], "something was left beside it"


def test_weights_do_not_depend_on_the_python_that_made_them() -> None:
    # SHAKE-128 of the name, low bytes as they come, high bytes by the table: worked out with hashlib by hand.
    import hashlib

    digest = hashlib.shake_128(b"lm_head.weight").digest(4)
    low, high = digest[0], digest[1]
    magnitude = 0x3A if high % 128 < 4 else 0x3B if high % 128 < 19 else 0x3C if high % 128 < 73 else 0x3D
    assert demo.weights("lm_head.weight", (2, 1))[:2] == bytes([low, magnitude | (high & 0x80)])


def test_it_never_writes_over_something(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MlloadError, match="is there already and not empty"):
        demo.write_demo(folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MlloadError, match="is there already"):
        demo.write_demo(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    demo.write_demo(tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(MlloadError, match="No space left on device"):
        demo.write_demo(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_work_and_that_do_not() -> None:
    config = demo.config()
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    assert heads % 3 == kv % 3 == config["vocab_size"] % (64 * 3) == 0
    assert kv % 2 != 0 and heads % 4 != 0
    for k in (config["hidden_size"], heads * config["head_dim"], config["intermediate_size"]):
        assert k // 3 % 128 == 0


def test_headers_and_index_agree_with_safetensors(folder: Path) -> None:
    from safetensors import safe_open

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as opened:
            found.update(dict.fromkeys(opened.keys(), path.name))
        with path.open("rb") as handle:
            total += path.stat().st_size - 8 - struct.unpack("<Q", handle.read(8))[0]
    assert found == index["weight_map"]
    assert total == index["metadata"]["total_size"]
    assert len(set(found.values())) == 2


def test_weights_are_of_the_size_that_training_starts_from() -> None:
    raw = demo.weights("model.layers.0.mlp.up_proj.weight", (384, 384))
    values = struct.unpack(f"<{2 * 384 * 384 // 2}H", raw)
    floats = [struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in values[:20_000]]
    mean_square = sum(value * value for value in floats) / len(floats)
    assert mean_square == pytest.approx(1 / demo.HIDDEN, rel=0.1)
    assert abs(sum(floats) / len(floats)) < 3 * math.sqrt(mean_square / len(floats))


@pytest.mark.slow
@pytest.mark.transformers
def test_transformers_loads_it_and_generates(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Which sizes work? naïve 模型 🙂\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == demo.VOCAB
    assert len(tokenizer("the question of the layers")["input_ids"]) < 16, "merges are not used"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    ids = tokenizer("The capital", return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=5, do_sample=False)
    assert out.shape[1] <= ids["input_ids"].shape[1] + 5
    assert torch.isfinite(model(**ids).logits).all()
