"""Loaders that other projects wrote, and tensorizer's files: every rank holds the checkpoint, bit for bit."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import MlloadError
from mlload.cli.app import main
from mlload.loader import get_model_loader, load_formats
from mlload.loader.whole import whole_checkpoint
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import Plan, make_plan
from tests.loader.files import empty_destinations, raw
from tests.loader.test_ranks import together
from tests.plan.tiny_models import FALCON, GPT2, LLAMA, MIXTRAL, PHI3, TIED
from tests.servers.s3 import S3Server
from tests.writer.build import read_folder, write_checkpoint, write_quantized

PACKAGES = {"runai_streamer": "runai_model_streamer", "fastsafetensors": "fastsafetensors"}
EXTRAS = {"runai_streamer": "runai", "fastsafetensors": "fastsafetensors", "instanttensor": "instanttensor"}


def slowly(*values: Any) -> list[Any]:
    """Parameters for the slow tests alone."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def kind(config: dict[str, Any]) -> str:
    return str(config["model_type"])


def need(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package.replace('_', '-')}")


def planned(source: Path | str, mesh: Mesh) -> Plan:
    model = read_model(whole_checkpoint(Checkpoint.open(str(source))))
    return make_plan(model, profiles.load("native", None), mesh)


def loaded(plan: Plan, load_format: str) -> dict[str, bytes]:
    """Every rank's own tensors, put together."""
    held = []
    for rank in plan.mesh.ranks:
        destinations = empty_destinations(plan, rank)
        result = get_model_loader(load_format).load(plan, rank, destinations)
        assert result.tensors == len(destinations) and result.bytes_read >= plan.ranks()[rank].disk_bytes
        held.append({name: raw(one.param) for name, one in destinations.items()})
    return together(plan, held)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: data for name, (_, _, data) in read_folder(folder).items()}


@pytest.mark.parametrize("mesh", [Mesh(1), Mesh(2), *slowly(Mesh(4), Mesh(2, 2))], ids=Mesh.label)
@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, *slowly(TIED, PHI3, FALCON, GPT2)], ids=kind)
@pytest.mark.parametrize("load_format", PACKAGES)
def test_ranks_hold_the_checkpoint(load_format: str, config: dict[str, Any], mesh: Mesh, tmp_path: Path) -> None:
    need(PACKAGES[load_format])
    source = write_checkpoint(tmp_path, config)
    assert loaded(planned(source, mesh), load_format) == contents(source)


@pytest.mark.parametrize("name", ["awq", "fp8-block", *slowly("gptq-act-order", "fp8", "w8a8", "w4a16-zeros", "nvfp4")])
@pytest.mark.parametrize("load_format", PACKAGES)
def test_quantized_ones(load_format: str, name: str, tmp_path: Path) -> None:
    """At tp 1 each tensor of each format, scalars and 8-bit floats among them."""
    need(PACKAGES[load_format])
    source = write_quantized(tmp_path, name)
    assert loaded(planned(source, Mesh(1)), load_format) == contents(source)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Server, Path]]:
    source = write_checkpoint(tmp_path_factory.mktemp("source"), LLAMA)
    with S3Server() as s3:
        s3.put_folder("models", source, "llama/")
        yield s3, source


@pytest.mark.network_servers
def test_runai_streams_from_a_bucket(bucket: tuple[S3Server, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a host name for each bucket: the bucket is in the path."""
    need("runai_model_streamer_s3")
    s3, source = bucket
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setenv(name, "")  # put back afterwards, whatever the loader sets
        monkeypatch.delenv(name)
    plan = planned("s3://models/llama", Mesh(2))
    s3.bytes_sent.clear()
    assert loaded(plan, "runai_streamer") == contents(source)
    sent = sum(count for name, count in s3.bytes_sent.items() if name.endswith(".safetensors"))
    assert sent >= sum(rank.disk_bytes for rank in plan.ranks())


@pytest.mark.network_servers
def test_a_bucket_that_is_not_there_is_a_sentence(
    bucket: tuple[S3Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("runai_model_streamer_s3")
    s3, _ = bucket
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    monkeypatch.setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    plan = planned("s3://models/llama", Mesh(1))
    client = s3.client()
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        client.copy_object(Bucket="models", Key=f"kept/{name}", CopySource=f"models/llama/{name}")
        client.delete_object(Bucket="models", Key=f"llama/{name}")
    try:
        with pytest.raises(MlloadError, match="runai_streamer cannot read s3://models/llama"):
            get_model_loader("runai_streamer").load(plan, 0, empty_destinations(plan, 0))
    finally:
        for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            client.copy_object(Bucket="models", Key=f"llama/{name}", CopySource=f"models/kept/{name}")


@pytest.mark.parametrize("load_format", EXTRAS)
def test_without_the_package_the_line_that_installs_it(
    load_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path, LLAMA)
    plan = planned(source, Mesh(1))
    absent = PACKAGES.get(load_format, load_format)
    real = importlib.import_module

    def refuse(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] == absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, package)

    monkeypatch.setattr("mlload.loader.streamed.import_module", refuse)
    loader: Any = get_model_loader(load_format)
    files = {"model-00001-of-00002.safetensors": ["model.embed_tokens.weight"]}
    with pytest.raises(MlloadError, match=absent.replace("_", "-")) as told:
        next(loader.whole_tensors(plan.model.checkpoint.source, files, torch.device("cuda")))
    assert told.value.hint == f"pip install 'mlload[{EXTRAS[load_format]}]'" and told.value.exit_code == 3


def test_instanttensor_reads_on_gpus_only(tmp_path: Path) -> None:
    plan = planned(write_checkpoint(tmp_path, LLAMA), Mesh(1))
    with pytest.raises(MlloadError, match="NVIDIA GPUs, and this load is for the cpu"):
        get_model_loader("instanttensor").load(plan, 0, empty_destinations(plan, 0))


def test_instanttensor_is_asked_for_the_ranks_own_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the GPU: which files and names, and that what comes goes where it belongs."""
    source = write_checkpoint(tmp_path, LLAMA)
    plan = planned(source, Mesh(2, 2))
    from safetensors.torch import load_file

    asked: dict[str, Any] = {}

    class Opened:
        def __init__(self, files: list[str], **more: Any) -> None:
            asked.update(more, files=files)
            self.held = {name: tensor for file in files for name, tensor in load_file(file).items()}

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *exc: object) -> None:
            pass

        def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
            return ((name, self.held[name]) for name in asked["tensor_filter"])

    class Library:
        safe_open = Opened

    loader: Any = get_model_loader("instanttensor")
    monkeypatch.setattr(type(loader), "imported", lambda self, module="": Library)
    files: dict[str, list[str]] = {}
    for segment in plan.segments(0):
        ref = plan.model.checkpoint.tensors[segment.tensor]
        files.setdefault(plan.model.checkpoint.files[ref.file].name, []).append(segment.tensor)
    found = dict(loader.whole_tensors(plan.model.checkpoint.source, files, torch.device("cuda", 0)))
    assert asked["device"] == torch.device("cuda", 0) and asked["tensor_name_match_mode"] == "exact"
    assert found.keys() == {segment.tensor for segment in plan.segments(0)}
    assert all(path.startswith(str(source)) for path in asked["files"])


@pytest.mark.parametrize("load_format", ["fastsafetensors", "instanttensor"])
@pytest.mark.network_servers
def test_local_files_only(load_format: str, bucket: tuple[S3Server, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    if load_format in PACKAGES:
        need(PACKAGES[load_format])
    s3, _ = bucket
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    plan = planned("s3://models/llama", Mesh(1))
    with pytest.raises(MlloadError, match="reads local files"):
        get_model_loader(load_format).load(plan, 0, empty_destinations(plan, 0))


@pytest.mark.parametrize("load_format", [*PACKAGES, "instanttensor"])
def test_other_containers_are_refused(load_format: str, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    assert main(["shard", str(source), "-o", str(tmp_path / "ranks"), "--tp", "2"]) == 0
    plan = planned(tmp_path / "ranks", Mesh(2))
    with pytest.raises(MlloadError, match="holds mlload_state"):
        get_model_loader(load_format).load(plan, 0, empty_destinations(plan, 0))


@pytest.mark.parametrize("words", [("--tp", "4"), ("--tp", "1"), *slowly(("--tp", "2"))], ids=" ".join)
@pytest.mark.parametrize("config", [LLAMA, TIED, *slowly(PHI3)], ids=["llama", "tied", "phi3"])
def test_tensorizer_files_of_any_size_at_any_other(
    config: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    source = write_checkpoint(tmp_path / "source", config)
    assert main(["shard", str(source), "-o", str(tmp_path / "cut"), "--layout", "tensorizer", *words]) == 0
    for mesh in (Mesh(1), Mesh(2), Mesh(4)):
        for load_format in ("auto", "tensorizer"):
            assert loaded(planned(tmp_path / "cut", mesh), load_format) == contents(source)


def test_a_rank_reads_its_own_tensorizer_file(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    assert main(["shard", str(source), "-o", str(tmp_path / "cut"), "--layout", "tensorizer", "--tp", "2"]) == 0
    plan = planned(tmp_path / "cut", Mesh(2))
    for rank in range(2):
        result = get_model_loader("tensorizer").load(plan, rank, empty_destinations(plan, rank))
        assert result.bytes_read == plan.ranks()[rank].disk_bytes


def test_a_file_that_the_package_wrote(tmp_path: Path) -> None:
    """Of checkpoint names, not cut; and vLLM's own of fused names, with its buffers, cut for two ranks."""
    need("tensorizer")
    from tensorizer import TensorSerializer

    source = write_checkpoint(tmp_path / "source", LLAMA)
    whole = {name: tensor for path in sorted(source.glob("*.safetensors")) for name, tensor in _held(path).items()}
    plain = tmp_path / "plain"
    plain.mkdir()
    serializer = TensorSerializer(str(plain / "model.tensors"))
    serializer.write_state_dict(whole)
    serializer.close()
    (plain / "config.json").write_bytes((source / "config.json").read_bytes())
    assert loaded(planned(plain, Mesh(2)), "auto") == contents(source)

    assert main(["shard", str(source), "-o", str(tmp_path / "state"), "--layout", "vllm", "--tp", "2"]) == 0
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for rank in range(2):
        serializer = TensorSerializer(str(ranks / f"model-{rank:03d}.tensors"))
        serializer.write_module(_module(_held(tmp_path / "state" / f"model-rank-{rank}-part-0.safetensors")))
        serializer.close()
    (ranks / "config.json").write_bytes((source / "config.json").read_bytes())
    for mesh in (Mesh(2), Mesh(1)):
        assert loaded(planned(ranks, mesh), "tensorizer") == contents(source)


def _held(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _module(state: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Modules that hold the tensors as vLLM's classes do, its marker and a computed table among them."""
    root = torch.nn.Module()
    for name, tensor in state.items():
        at = root
        *path, last = name.split(".")
        for word in path:
            if word not in dict(at.named_children()):
                at.add_module(word, torch.nn.Module())
            at = at.get_submodule(word)
        if last.startswith("_"):
            at.register_buffer(last, tensor)
        else:
            at.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
    rotary = root.get_submodule("model.layers.0.self_attn")
    rotary.register_buffer("cos_sin_cache", torch.ones(4, 4), persistent=False)
    marker = torch.nn.Parameter(torch.tensor((1,), device="meta"), requires_grad=False)
    root.register_parameter("vllm_tensorized_marker", marker)
    return root


def test_files_that_are_not_the_configs(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    assert main(["shard", str(source), "-o", str(tmp_path / "cut"), "--layout", "tensorizer", "--tp", "2"]) == 0
    config = json.loads((tmp_path / "cut" / "config.json").read_text())
    (tmp_path / "cut" / "config.json").write_text(json.dumps({**config, "intermediate_size": 192}))
    with pytest.raises(MlloadError, match=r"by config\.json it is"):
        planned(tmp_path / "cut", Mesh(2))


def test_all_of_them_are_known_by_name() -> None:
    assert {"tensorizer", "runai_streamer", "fastsafetensors", "instanttensor"} <= set(load_formats())


@pytest.mark.slow
@pytest.mark.network_servers
def test_one_table_of_several_from_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, on a model with logits: each loader's bytes and times, and what the model says is alike."""
    need("runai_model_streamer_s3")
    from tests.engine.tiny import save

    config = {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    save(tmp_path / "model", config)
    with S3Server() as s3:
        s3.put_folder("models", tmp_path / "model", "tiny/")
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_ENDPOINT_URL", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "AWS_EC2_METADATA_DISABLED"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        words = ["load-test", "s3://models/tiny", "--load-format", "safetensors,runai_streamer,dummy"]
        words += ["--batch", "1", "--prompt-len", "8", "--decode", "2"]
        record = tmp_path / "record.json"
        assert main([*words[:2], "--load-format", "safetensors", *words[4:], "--record", str(record)]) in (0, 1)
        capsys.readouterr()
        compared = [*words[:2], "--load-format", "runai_streamer", *words[4:], "--expect", str(record)]
        main([*compared, "--max-kl", "1e-6", "--format", "json"])
        said = json.loads(capsys.readouterr().out)
        assert said["divergence"]["highest"] == 0.0 and said["load_format"] == "runai_streamer"
        main([*words, "--weights-only"])
        shown = capsys.readouterr().out
    table = shown[shown.index("Side by side") :].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["safetensors", "runai_streamer", "dummy"]
