"""vLLM's sharded_state: the whole model's tensors come out of the fused files, whatever the number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.cli.app import main
from mlload.engine.native import NativeEngine
from mlload.loader import get_model_loader
from mlload.loader.auto import load_format_of
from mlload.loader.whole import whole_checkpoint
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import Plan, make_plan
from tests.engine.ranks import on_ranks
from tests.engine.tiny import save
from tests.loader.files import empty_destinations
from tests.loader.formats import write_packed
from tests.loader.test_ranks import together
from tests.plan.tiny_models import LLAMA, MIXTRAL, PHI3, TIED
from tests.real_models import RealModel
from tests.writer.build import read_folder, write_checkpoint, write_quantized


def planned(folder: Path, mesh: Mesh, dtype: str = "auto") -> Plan:
    model = read_model(whole_checkpoint(Checkpoint.open(str(folder))))
    return make_plan(model, profiles.load("native", None), mesh, dtype=dtype)


def shard(source: Path, out: Path, *words: str) -> Path:
    assert main(["shard", str(source), "-o", str(out), "--layout", "vllm", *words]) == 0
    return out


def check(source: Path, cut: Path, mesh: Mesh) -> None:
    """Every rank's own tensors, put together, are the source's bytes."""
    plan = planned(cut, mesh)
    assert load_format_of(plan) == "sharded_state"
    held = []
    for rank in mesh.ranks:
        destinations = empty_destinations(plan, rank)
        get_model_loader("auto").load(plan, rank, destinations)
        held.append({n: d.param.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                     for n, d in destinations.items()})  # fmt: skip
    want = {name: raw for name, (_, _, raw) in read_folder(source).items()}
    assert together(plan, held) == want


@pytest.mark.parametrize("config", [LLAMA, TIED, PHI3, MIXTRAL], ids=["llama", "tied", "phi3", "mixtral"])
@pytest.mark.parametrize("words", [("--tp", "2"), ("--tp", "2", "--pp", "2"), ("--tp", "1")], ids=" ".join)
def test_every_byte_comes_back(config: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    """At the size of the files, whole, and at twice as many ranks (KV heads are then shared)."""
    source = write_checkpoint(tmp_path / "source", config)
    cut = shard(source, tmp_path / "cut", *words)
    for mesh in (Mesh(2), Mesh(1), Mesh(4)):
        check(source, cut, mesh)


def test_experts_dealt_out(tmp_path: Path) -> None:
    """Names are the same as without expert parallelism; the shapes of the stacks tell."""
    source = write_checkpoint(tmp_path / "source", MIXTRAL)
    cut = shard(source, tmp_path / "cut", "--tp", "2", "--ep")
    for mesh in (Mesh(2), Mesh(2, ep=True), Mesh(1)):
        check(source, cut, mesh)


def test_a_rank_reads_its_own_files_only(tmp_path: Path) -> None:
    cut = shard(write_checkpoint(tmp_path / "source", LLAMA), tmp_path / "cut", "--tp", "2")
    plan = planned(cut, Mesh(2))
    destinations = empty_destinations(plan, 1)
    other = cut / "model-rank-0-part-0.safetensors"
    size = other.stat().st_size
    header = int.from_bytes(other.read_bytes()[:8], "little") + 8
    with open(other, "r+b") as file:
        file.seek(header)
        file.write(b"\xff" * (size - header))
    loaded = get_model_loader("sharded_state").load(plan, 1, destinations)
    assert loaded.bytes_read == plan.ranks()[1].disk_bytes
    mine = load_file(cut / "model-rank-1-part-0.safetensors")
    q = destinations["model.layers.0.self_attn.q_proj.weight"].param
    assert torch.equal(q.view(torch.int16), mine["model.layers.0.self_attn.qkv_proj.weight"][:32].view(torch.int16))


LOGITS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}
IDS = torch.randint(3, 96, (2, 9), generator=torch.Generator().manual_seed(1))


def logits(plan: Plan, ids: Tensor) -> list[Tensor]:
    """On every rank."""
    return on_ranks(plan.mesh.tp, lambda rank, group: NativeEngine(plan, rank, group).start().logits(ids))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_the_whole_models(name: str, tmp_path: Path) -> None:
    config = {
        "vocab_size": 150, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 3, "head_dim": 8, "architectures": [], "dtype": "float32", **LOGITS[name],
    }  # fmt: skip
    model = save(tmp_path / "whole", config)
    want = model(input_ids=IDS).logits.detach()
    cut = shard(tmp_path / "whole", tmp_path / "cut", "--tp", "3")
    for tp in (1, 3):
        plan = planned(cut, Mesh(tp), "float32")
        for have in logits(plan, IDS):
            assert float((have - want).abs().max()) <= 2e-5 * float(want.abs().max())


@pytest.mark.slow
def test_the_real_model(real_model: RealModel, tmp_path: Path) -> None:
    source = real_model("smollm2")
    ids = torch.arange(20)[None] + 500
    want = NativeEngine(planned(source, Mesh(1), "float32")).start().logits(ids)
    cut = shard(source, tmp_path / "cut", "--tp", "3")
    for tp in (1, 3):
        plan = planned(cut, Mesh(tp), "float32")
        for have in logits(plan, ids):
            assert float((have - want).abs().max()) < 2e-3


QUANTIZED = ["awq", "ct w8a8", "ct fp8 channel", "ct fp8 tensor", "fp8 static", "fp8 tensor"]


def packed_and_cut(name: str, tp: int, folder: Path) -> tuple[Path, Path]:
    source = folder / "source"
    source.mkdir()
    write_packed(source, name)
    return source, shard(source, folder / "cut", "--tp", str(tp))


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_ones_come_back(name: str, tp: int, tmp_path: Path) -> None:
    """Fused and not repacked, as our files say of themselves: whole again at their own size and at another."""
    source, cut = packed_and_cut(name, tp, tmp_path)
    for mesh in (Mesh(tp), Mesh(3 - tp)):
        check(source, cut, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", QUANTIZED)
def test_logits_of_quantized_ones(name: str, tp: int, tmp_path: Path) -> None:
    """The very kernels on the very bytes: equal to the last bit."""
    source, cut = packed_and_cut(name, tp, tmp_path)
    want, have = logits(planned(source, Mesh(tp)), IDS), logits(planned(cut, Mesh(tp)), IDS)
    assert len(want) == tp and all(torch.equal(one, other) for one, other in zip(want, have, strict=True))


@pytest.mark.parametrize("load_format", ["auto", "sharded_state"])
def test_load_test_of_a_quantized_one(load_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, cut = packed_and_cut("awq", 1, tmp_path)
    capsys.readouterr()
    words = ["--load-format", load_format, "--weights-only", "--format", "json"]
    assert main(["load-test", str(cut), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranks"][0]["weight_bytes_measured"] == told["ranks"][0]["weight_bytes_predicted"] > 0


def test_quantized_ones_of_another_writer_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the tensors are: vLLM's own files of this config would be weights that were repacked."""
    cut = shard(write_quantized(tmp_path / "source", "awq"), tmp_path / "cut", "--tp", "2")
    for path in cut.glob("*.safetensors"):
        rewritten(path, lambda held: None)
    with pytest.raises(MlloadError, match=r"is quantized \(awq\).*repacked for a kernel"):
        planned(cut, Mesh(2))
    capsys.readouterr()
    assert main(["load-test", str(cut), "--load-format", "sharded_state", "--tp", "2"]) == 1
    assert "cannot be told" in capsys.readouterr().err


def test_one_file_of_another_writer_is_enough(tmp_path: Path) -> None:
    cut = shard(write_quantized(tmp_path / "source", "fp8"), tmp_path / "cut", "--tp", "2")
    rewritten(cut / "model-rank-1-part-0.safetensors", lambda held: None)
    with pytest.raises(MlloadError, match="repacked for a kernel"):
        planned(cut, Mesh(2))


def test_formats_that_are_not_written_so_are_not_read(tmp_path: Path) -> None:
    """A config that was changed behind the files' back: its state is none that mlload knows."""
    cut = shard(write_quantized(tmp_path / "source", "awq"), tmp_path / "cut", "--tp", "2")
    gptq = json.loads((write_quantized(tmp_path / "gptq", "gptq") / "config.json").read_text())
    (cut / "config.json").write_text(json.dumps(gptq))
    with pytest.raises(MlloadError, match="was not compared with the engine's own layers"):
        planned(cut, Mesh(2))


def rewritten(path: Path, change: Any) -> None:
    """By another writer: without metadata, as vLLM's own saver writes them."""
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


MORE = "model.layers.1.more"
QKV = "model.layers.1.self_attn.qkv_proj.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held.pop(QKV), rf"rank1 lacks {QKV}"),
        (
            lambda held: held.update({MORE: torch.ones(2)}),
            rf"the config has not, {MORE}",
        ),
        (
            lambda held: held.update({QKV: held[QKV].T.contiguous()}),
            r"is \[64, 48\], and by config.json it is \[48, 64\]",
        ),
    ],
    ids=["missing", "unexpected", "repacked"],
)
def test_files_that_are_not_the_configs(change: Any, said: str, tmp_path: Path) -> None:
    cut = shard(write_checkpoint(tmp_path / "source", LLAMA), tmp_path / "cut", "--tp", "2")
    rewritten(cut / "model-rank-1-part-0.safetensors", change)
    with pytest.raises(MlloadError, match=said):
        planned(cut, Mesh(2))


def test_a_rank_whose_file_is_gone(tmp_path: Path) -> None:
    cut = shard(write_checkpoint(tmp_path / "source", LLAMA), tmp_path / "cut", "--tp", "2")
    (cut / "model-rank-0-part-0.safetensors").unlink()
    with pytest.raises(MlloadError, match="1 of 2 ranks have files"):
        planned(cut, Mesh(2))


def test_per_rank_folders_are_not_read_as_plain_files(tmp_path: Path) -> None:
    """Whole tensors have no place in one file there."""
    source = write_checkpoint(tmp_path / "source", LLAMA)
    cut = shard(source, tmp_path / "cut", "--tp", "2")
    assert main(["shard", str(source), "-o", str(tmp_path / "state"), "--tp", "2"]) == 0
    for folder, layout in ((cut, "sharded_state"), (tmp_path / "state", "mlload_state")):
        plan = planned(folder, Mesh(1))
        with pytest.raises(MlloadError, match=f"holds {layout}"):
            get_model_loader("safetensors").load(plan, 0, empty_destinations(plan, 0))
    with pytest.raises(MlloadError, match="holds no model-rank-N-part-M"):
        plan = planned(source, Mesh(1))
        get_model_loader("sharded_state").load(plan, 0, empty_destinations(plan, 0))
