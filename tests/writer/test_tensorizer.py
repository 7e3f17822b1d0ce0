"""tensorizer files: what the tensorizer package reads of ours, against vLLM's sharded_state of the same model."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.cli.app import main
from tests.plan.tiny_models import LLAMA, MIXTRAL, PHI3, TIED
from tests.servers.s3 import S3Server
from tests.writer.build import Bytes, read_safetensors, write_checkpoint, write_quantized

MARKER = ".vllm_tensorized_marker"
MODELS = {"llama": LLAMA, "tied": TIED, "phi3": PHI3}


def shard(source: Path, out: Path | str, *words: str, layout: str = "tensorizer") -> None:
    assert main(["shard", str(source), "-o", str(out), "--layout", layout, *words]) == 0


def by_the_package(path: Path) -> Bytes:
    """Name -> dtype, shape, bytes, as tensorizer's own reader sees them, hashes compared. The marker is left out."""
    torch = pytest.importorskip("torch")
    tensorizer = pytest.importorskip("tensorizer", reason="tensorizer is not installed: pip install tensorizer")
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}
    with tensorizer.TensorDeserializer(str(path), device="cpu", verify_hash=True) as opened:
        found = {name: tensor.detach().contiguous() for name, tensor in opened.items()}
        marker = found.pop(MARKER)
        assert marker.shape == (1,) and not marker.any()
        return {
            name: (names[t.dtype], tuple(t.shape), t.view(-1).view(torch.uint8).numpy().tobytes())
            for name, t in found.items()
        }


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_package_reads_the_state_of_vllm(name: str, tp: int, tmp_path: Path) -> None:
    """Every entry is one of sharded_state; a parameter of two modules is there under both names."""
    source = write_checkpoint(tmp_path / "source", MODELS[name])
    shard(source, tmp_path / "out", "--tp", str(tp))
    shard(source, tmp_path / "state", "--tp", str(tp), layout="vllm")
    files = ["model.tensors"] if tp == 1 else [f"model-rank-{rank:03d}.tensors" for rank in range(tp)]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tensors")) == files
    for rank, file in enumerate(files):
        want = read_safetensors(tmp_path / "state" / f"model-rank-{rank}-part-0.safetensors")
        if name == "tied":
            want["model.embed_tokens.weight"] = want["lm_head.weight"]
        assert by_the_package(tmp_path / "out" / file) == want
    assert (tmp_path / "out" / "config.json").exists()


def test_it_goes_into_a_module(tmp_path: Path) -> None:
    """As vLLM loads: parameters and buffers are registered by the names and kinds in the file."""
    torch = pytest.importorskip("torch")
    tensorizer = pytest.importorskip("tensorizer", reason="tensorizer is not installed: pip install tensorizer")
    source = write_checkpoint(tmp_path / "source", {**LLAMA, "num_hidden_layers": 1})
    shard(source, tmp_path / "out")

    class Node(torch.nn.Module):  # type: ignore[misc,name-defined]
        pass

    root = Node()
    with tensorizer.TensorDeserializer(str(tmp_path / "out" / "model.tensors"), device="cpu") as opened:
        for name in opened.keys():  # noqa: SIM118 - its own kind of mapping
            at: Any = root
            for word in name.split(".")[:-1]:
                if word and not hasattr(at, word):
                    at.add_module(word, Node())
                at = getattr(at, word) if word else at
        assert opened.load_into_module(root) == len(opened.keys())
    assert dict(root.named_buffers()).keys() == {
        f"model.layers.0.self_attn.attn.{name}_scale" for name in ("_k", "_v", "_q", "_prob")
    }
    assert root.get_parameter("model.layers.0.self_attn.qkv_proj.weight").shape == (96, 64)
    assert root.get_buffer("model.layers.0.self_attn.attn._k_scale").item() == 1.0
    assert root.vllm_tensorized_marker.shape == (1,)


def test_a_flipped_bit_is_found_by_its_hash(tmp_path: Path) -> None:
    tensorizer = pytest.importorskip("tensorizer", reason="tensorizer is not installed: pip install tensorizer")
    source = write_checkpoint(tmp_path / "source", LLAMA)
    shard(source, tmp_path / "out")
    path = tmp_path / "out" / "model.tensors"
    raw = bytearray(path.read_bytes())
    ref = Checkpoint.open(str(path)).tensors["model.norm.weight"]
    raw[ref.offset] ^= 1
    path.write_bytes(raw)
    with pytest.raises(tensorizer.serialization.HashMismatchError, match=r"model\.norm\.weight"):
        tensorizer.TensorDeserializer(str(path), device="cpu", verify_hash=True)


def test_the_file_by_hand(tmp_path: Path) -> None:
    """Header of 73 bytes, the table, and a zero of 8 bytes at the end."""
    source = write_checkpoint(tmp_path / "source", LLAMA)
    shard(source, tmp_path / "out", "--verify")
    raw = (tmp_path / "out" / "model.tensors").read_bytes()
    magic, version, flags, total, count, table = struct.unpack_from("<5sI32sQ8xQQ", raw)
    assert (magic, version, flags) == (b"|TZR|", 4, bytes(32))
    refs = Checkpoint.open(str(tmp_path / "out")).tensors
    assert count == len(refs) and total == sum(ref.nbytes for ref in refs.values())
    at = 73 + table
    for ref in refs.values():
        length = struct.unpack_from("<Q", raw, at)[0]
        assert ref.offset == at + length
        assert struct.unpack_from("<q", raw, ref.offset - 8)[0] == ref.nbytes
        at = ref.offset + ref.nbytes
    assert raw[at:] == bytes(8)


@pytest.mark.network_servers
def test_into_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads go in order, so that nothing can be put before the data afterwards: no hashes, the same tensors."""
    source = write_checkpoint(tmp_path / "source", LLAMA)
    shard(source, tmp_path / "local", "--tp", "2")
    with S3Server() as s3:
        s3.client().create_bucket(Bucket="models")
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        shard(source, "s3://models/out", "--tp", "2", "--verify")
        for rank in range(2):
            file = f"model-rank-{rank:03d}.tensors"
            s3.client().download_file("models", f"out/{file}", str(tmp_path / file))
            assert by_the_package(tmp_path / file) == by_the_package(tmp_path / "local" / file)


@pytest.mark.parametrize(
    ("config", "words", "told"),
    [
        (MIXTRAL, ["--tp", "2"], "routed experts"),
        (LLAMA, ["--pp", "2"], "the stages of --pp 2 would share one"),
        (LLAMA, ["--max-shard-size", "1GB"], "one file for each rank"),
    ],
    ids=["experts", "stages", "sizes"],
)
def test_refusals(
    config: dict[str, Any], words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(tmp_path / "source", config)
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--layout", "tensorizer", *words]) in (1, 2)
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_quantized_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_quantized(tmp_path / "source", "awq")
    assert main(["shard", str(source), "-o", str(tmp_path / "out"), "--layout", "tensorizer"]) == 1
    assert "is quantized (awq)" in capsys.readouterr().err
