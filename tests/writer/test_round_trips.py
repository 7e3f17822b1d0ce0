"""Cut per rank, cut again, merged: every byte is there, in every format and at every size that is possible."""

from __future__ import annotations

import filecmp
from pathlib import Path

import pytest

from mlload import profiles
from mlload.checkpoint.finding import MlloadError
from mlload.cli.app import main
from mlload.plan.mesh import Mesh
from mlload.plan.plan import Plan, make_plan
from tests.writer.build import every_format, model_of, read_folder, read_safetensors, without_problems

FORMATS = every_format()
# Each format at two sizes by default; the slow tests take the rest.
SIZES = [pytest.param((2, 4), id="2 4"), pytest.param((1, 3, 8), marks=pytest.mark.slow, id="1 3 8")]


def plan_of(folder: Path, mesh: Mesh) -> Plan:
    return make_plan(model_of(folder), profiles.load("vllm"), mesh)


def possible(plan: Plan) -> bool:
    return all(finding.severity != "error" for finding in plan.violations)


def shard(*words: object) -> None:
    code = main(["shard", *map(str, words)])
    assert code == 0, words


def same_tensors(one: Path, other: Path) -> None:
    left, right = read_folder(one), read_folder(other)
    assert list(left.keys() ^ right.keys()) == []
    for name, content in left.items():
        assert content == right[name], name


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", FORMATS)
def test_merging_the_ranks_gives_the_checkpoint_back(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    source = FORMATS[name](tmp_path / "source")
    without_problems(source)
    tried = []
    for tp in sizes:
        plan = plan_of(source, Mesh(tp))
        ranks = tmp_path / f"tp{tp}"
        if not possible(plan):
            assert main(["shard", str(source), "-o", str(ranks), "--tp", str(tp)]) == 1
            assert not ranks.exists() and not Path(f"{ranks}.partial").exists()
            continue
        tried.append(tp)
        shard(source, "-o", ranks, "--tp", tp)
        for rank in plan.ranks():
            held = read_safetensors(ranks / f"rank-{rank.rank:05d}" / "model.safetensors")
            assert sum(len(raw) for _, _, raw in held.values()) == rank.disk_bytes
        shard(ranks, "-o", tmp_path / f"merged{tp}", "--merge")
        same_tensors(tmp_path / f"merged{tp}", source)
        without_problems(tmp_path / f"merged{tp}")
    assert tried, "a format that cannot be cut tests nothing"


@pytest.mark.parametrize("name", ["llama", "mixtral", "gptq-act-order", "fp8-block", "awq"])
def test_ranks_become_fewer_ranks(name: str, tmp_path: Path) -> None:
    """8 -> 4 -> 2 -> merged, and at each size the same files as straight from the source."""
    source = FORMATS[name](tmp_path / "source")
    before = source
    for tp in (size for size in (8, 4, 2) if possible(plan_of(source, Mesh(size)))):
        again, straight = tmp_path / f"again{tp}", tmp_path / f"straight{tp}"
        shard(before, "-o", again, "--tp", tp)
        shard(source, "-o", straight, "--tp", tp)
        for rank in range(tp):
            file = f"rank-{rank:05d}/model.safetensors"
            assert read_safetensors(again / file) == read_safetensors(straight / file)
        before = again
    assert before != source
    shard(before, "-o", tmp_path / "merged", "--merge")
    same_tensors(tmp_path / "merged", source)


@pytest.mark.parametrize("mesh", [Mesh(2, 2), Mesh(1, 3), Mesh(4, ep=True), Mesh(2, 2, ep=True)], ids=Mesh.label)
def test_stages_and_experts(mesh: Mesh, tmp_path: Path) -> None:
    source = FORMATS["mixtral"](tmp_path / "source")
    words: list[object] = ["--tp", mesh.tp, "--pp", mesh.pp, *(["--ep"] if mesh.ep else [])]
    shard(source, "-o", tmp_path / "ranks", *words)
    for sizes in plan_of(source, mesh).ranks():
        held = read_safetensors(tmp_path / "ranks" / f"rank-{sizes.rank:05d}" / "model.safetensors")
        assert sum(len(raw) for _, _, raw in held.values()) == sizes.disk_bytes
    shard(tmp_path / "ranks", "-o", tmp_path / "merged", "--merge", "--max-shard-size", "100KB")
    same_tensors(tmp_path / "merged", source)


def test_what_a_rank_holds_of_a_column_and_a_row(tmp_path: Path) -> None:
    """Rank 1 of 2: rows 48..96 of gate_proj [96, 64]; columns 48..96 of down_proj [64, 96]."""
    source = FORMATS["llama"](tmp_path / "source")
    shard(source, "-o", tmp_path / "ranks", "--tp", 2)
    whole = read_folder(source)
    held = read_safetensors(tmp_path / "ranks" / "rank-00001" / "model.safetensors")
    gate = "model.layers.1.mlp.gate_proj.weight"
    assert held[gate] == ("BF16", (48, 64), whole[gate][2][48 * 64 * 2 :])
    down = "model.layers.1.mlp.down_proj.weight"
    rows = [whole[down][2][row * 192 + 96 : row * 192 + 192] for row in range(64)]
    assert held[down] == ("BF16", (64, 48), b"".join(rows))


def test_other_files_go_along(tmp_path: Path) -> None:
    source = FORMATS["llama"](tmp_path / "source")
    shard(source, "-o", tmp_path / "ranks", "--tp", 2)
    shard(tmp_path / "ranks", "-o", tmp_path / "merged", "--merge")
    for out in (tmp_path / "ranks", tmp_path / "merged"):
        same, differ, missing = filecmp.cmpfiles(
            source, out, ["config.json", "tokenizer.json", "extra/notes.txt"], shallow=False
        )
        assert (len(same), differ, missing) == (3, [], []), out
    assert not list((tmp_path / "merged").glob("manifest.json"))


def test_replicas_that_differ_are_not_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = FORMATS["llama"](tmp_path / "source")
    shard(source, "-o", tmp_path / "ranks", "--tp", 2)
    file = tmp_path / "ranks" / "rank-00001" / "model.safetensors"
    norm = read_safetensors(file)["model.norm.weight"][2]
    raw = bytearray(file.read_bytes())
    at = raw.index(norm)
    raw[at] ^= 1
    file.write_bytes(raw)
    assert main(["shard", str(tmp_path / "ranks"), "-o", str(tmp_path / "merged"), "--merge"]) == 1
    assert "model.norm.weight differs" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def test_tensors_that_no_rank_reads_come_back(tmp_path: Path) -> None:
    from tests.plan.tiny_models import LLAMA
    from tests.writer.build import write_checkpoint

    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (4,)), "left.over": ("I64", (3,))}
    source = write_checkpoint(tmp_path / "source", LLAMA, extra=extra)
    shard(source, "-o", tmp_path / "ranks", "--tp", 2)
    shard(tmp_path / "ranks", "-o", tmp_path / "merged", "--merge")
    same_tensors(tmp_path / "merged", source)


def test_a_manifest_that_lies_is_one_sentence(tmp_path: Path) -> None:
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.writer.read_state import read_state

    source = FORMATS["llama"](tmp_path / "source")
    shard(source, "-o", tmp_path / "ranks", "--tp", 2)
    manifest = tmp_path / "ranks" / "manifest.json"
    good = manifest.read_text()
    for bad in (
        "[]", "{}", good[:-20],
        good.replace('"layout_version":1', '"layout_version":2'),
        good.replace('"shape":[100,64]', '"shape":[4000000000,64]'),
        good.replace("rank-00001", "rank-00007"),
        good.replace('"cuts":[', '"cuts":[7,'),
    ):  # fmt: skip
        assert bad != good
        manifest.write_text(bad)
        with pytest.raises(MlloadError):
            read_state(Checkpoint.open(str(tmp_path / "ranks")))
