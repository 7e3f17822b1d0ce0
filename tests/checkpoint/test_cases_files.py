"""Section E of the public cases: faults of files that people reported, and the right answer to each."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding
from tests.checkpoint import build


def errors(checkpoint: Checkpoint) -> list[Finding]:
    return [problem for problem in checkpoint.problems if problem.severity == "error"]


def only(checkpoint: Checkpoint, code: str) -> Finding:
    found = [problem for problem in checkpoint.problems if problem.code == code]
    assert len(found) == 1, [(problem.code, problem.message) for problem in checkpoint.problems]
    return found[0]


def test_healthy_folder_has_no_problem(tmp_path: Path) -> None:
    weight_map = build.write_sharded(tmp_path)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.problems == ()
    assert checkpoint.tensors.keys() == weight_map.keys()
    assert checkpoint.format == "safetensors"


def test_case_82_pickle_under_a_safetensors_name(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    with zipfile.ZipFile(tmp_path / "model.safetensors", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    finding = only(Checkpoint.open(str(tmp_path)), "FI003")
    assert finding.severity == "error"
    assert "pickle" in finding.message and "model.safetensors" in finding.message


def test_case_83_header_over_the_readers_limit_is_a_verdict_of_its_own(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    length = 132_095_296
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", length) + b'{"a":')
        file.truncate(8 + length + 4096)
    finding = only(Checkpoint.open(str(tmp_path)), "FI007")
    assert finding.numbers["header"] == length
    assert finding.numbers["limit"] == 100_000_000
    assert "132,095,296" in finding.message and "100,000,000" in finding.message


def test_case_85_shard_301_megabytes_short(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    shared = "layers.15.ffn.shared_experts.gate_proj.scales"
    # The header promises the tensor at byte 1,027,757,536 of a file that ends at 961,851,392.
    begin = 1_027_757_536 - 8 - 512
    header = {
        "layers.15.attn.weight": {"dtype": "U8", "shape": [begin], "data_offsets": [0, begin]},
        shared: {"dtype": "F16", "shape": [1024, 128], "data_offsets": [begin, begin + 262_144]},
    }
    raw = json.dumps(header).encode().ljust(512)
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(build.raw_safetensors(raw, b""))
        file.truncate(961_851_392)
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI013")
    assert finding.severity == "error"
    assert finding.numbers["tensors"] == 2
    assert finding.numbers["missing"] == 1_027_757_536 + 262_144 - 961_851_392
    assert "961,851,392" in finding.message
    assert set(checkpoint.tensors) == {"layers.15.attn.weight", shared}


def test_case_85_names_the_tensor_that_begins_past_the_end(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    header = build.entries({"a": ("U8", [100]), "layers.15.scales": ("U8", [50])})
    whole = build.safetensors_bytes(header)
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) - 50])
    finding = only(Checkpoint.open(str(tmp_path)), "FI013")
    size = len(whole) - 50
    assert f"'layers.15.scales' begins at byte {size:,} of a {size:,}-byte file" in finding.message
    assert finding.numbers["missing"] == 50


def test_case_85_trailing_bytes(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    whole = build.safetensors_bytes(build.entries({"a": ("F32", [4])}))
    (tmp_path / "model.safetensors").write_bytes(whole + b"123")
    finding = only(Checkpoint.open(str(tmp_path)), "FI016")
    assert finding.severity == "error" and finding.numbers["bytes"] == 3


def test_case_86_missing_file_and_the_layers_it_holds(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    (tmp_path / "model-00003-of-00004.safetensors").unlink()
    finding = only(Checkpoint.open(str(tmp_path)), "FI031")
    assert finding.severity == "error" and finding.question == "starts"
    assert "model-00003-of-00004.safetensors" in finding.message
    assert "model.layers.4-5" in finding.message
    assert finding.numbers["tensors"] == 4


def test_case_88_tensor_mapped_to_a_shard_that_lacks_it(tmp_path: Path) -> None:
    weight_map = build.write_sharded(tmp_path)
    build.write_index(tmp_path, {**weight_map, "mtp.fc.weight": "model-00004-of-00004.safetensors"})
    finding = only(Checkpoint.open(str(tmp_path)), "FI032")
    assert finding.severity == "error"
    assert "mtp.fc.weight" in finding.message and "model-00004-of-00004.safetensors" in finding.message
    assert finding.numbers == {"tensors": 1, "entries": 17, "in_files": 16}


def test_case_88_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    weight_map = build.write_sharded(tmp_path)
    moved = "model.layers.0.mlp.down_proj.weight"
    build.write_index(tmp_path, {**weight_map, moved: "model-00004-of-00004.safetensors"})
    finding = only(Checkpoint.open(str(tmp_path)), "FI032")
    assert finding.severity == "warning"
    assert "it lies in model-00001-of-00004.safetensors" in finding.message


def test_case_89_file_that_the_index_forgot(tmp_path: Path) -> None:
    build.write_sharded(tmp_path)
    mtp = {f"mtp.{i}.weight": ("F32", [2]) for i in range(31)}
    build.write_safetensors(tmp_path / "model-mtp-of-00005.safetensors", mtp)
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI034")
    assert finding.severity == "warning"
    assert "31 tensors" in finding.message and "mtp.0-30" in finding.message
    assert finding.hints[0].command == f"mlload repair {tmp_path} --in-place"
    assert checkpoint.stray.keys() == mtp.keys()
    assert not checkpoint.tensors.keys() & mtp.keys()


def test_case_89_tensors_of_an_indexed_file_that_the_index_forgot(tmp_path: Path) -> None:
    weight_map = build.write_sharded(tmp_path)
    forgotten = "model.layers.7.mlp.down_proj.weight"
    del weight_map[forgotten]
    build.write_index(tmp_path, weight_map)
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI033")
    assert "1 tensor that" in finding.message and "model.layers.7" in finding.message
    assert forgotten in checkpoint.tensors


def test_case_91_stray_file_with_the_same_names_and_another_dtype(tmp_path: Path) -> None:
    build.write_sharded(tmp_path, shards=2)
    stray = build.write_safetensors(
        tmp_path / "model.safetensors", {"model.layers.0.mlp.down_proj.weight": ("I32", [4, 1])}
    )
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI034")
    assert not finding.hints  # an index has nothing to take in from it
    assert finding.numbers["size"] == stray.stat().st_size
    assert f"{stray.stat().st_size:,} bytes" in finding.message and "another dtype or shape" in finding.message
    assert checkpoint.tensors["model.layers.0.mlp.down_proj.weight"].dtype == "F32"


@pytest.mark.parametrize("same", [True, False])
def test_case_92_tensor_in_two_shards(tmp_path: Path, same: bool) -> None:
    build.write_config(tmp_path)
    tensors = {"a.qweight": ("I32", [4]), "b": ("F32", [2])}
    first = build.safetensors_bytes(build.entries(tensors))
    second_header = build.entries({"a.qweight": ("I32", [4]), "c": ("F32", [2])})
    data = bytes(i % 251 for i in range(24)) if same else b"\7" * 24
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(first)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(build.safetensors_bytes(second_header, data))
    weight_map = {
        "a.qweight": "model-00002-of-00002.safetensors",
        "b": "model-00001-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors",
    }
    build.write_index(tmp_path, weight_map)
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI035")
    assert finding.severity == ("warning" if same else "error")
    assert ("equal in every byte" if same else "bytes differ") in finding.message
    assert checkpoint.files[checkpoint.tensors["a.qweight"].file].name == "model-00002-of-00002.safetensors"


def test_case_94_only_the_publishers_index(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"dim": 4}')
    name = "consolidated-00001-of-00001.safetensors"
    build.write_safetensors(tmp_path / name, build.layer(0), {"format": "pt"})
    build.write_index(tmp_path, dict.fromkeys(build.layer(0), name), name="consolidated.safetensors.index.json")
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.problems == ()
    assert checkpoint.index is not None and checkpoint.index.name == "consolidated.safetensors.index.json"
    assert len(checkpoint.tensors) == 2
    assert checkpoint.json_files["params.json"] == {"dim": 4}


@pytest.mark.parametrize("metadata", [None, {}, {"author": "x"}])
def test_case_95_metadata_absent_or_without_format(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    build.write_config(tmp_path)
    build.write_safetensors(tmp_path / "model.safetensors", build.layer(0), metadata)
    checkpoint = Checkpoint.open(str(tmp_path))
    assert [problem.code for problem in checkpoint.problems] == ["FI018"]
    assert checkpoint.problems[0].severity == "info"
    assert len(checkpoint.tensors) == 2


def test_case_95_metadata_with_a_number(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    build.write_safetensors(tmp_path / "model.safetensors", build.layer(0), {"format": "pt", "epoch": 3})
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI017")
    assert finding.severity == "error" and "'epoch': the number 3" in finding.message
    assert len(checkpoint.tensors) == 2


def test_case_97_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 64, "base_model_name_or_path": "org/base"})
    )
    build.write_safetensors(tmp_path / "adapter_model.safetensors", {"base_model.lora_A.weight": ("F32", [64, 4])})
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.format == "adapter"
    finding = only(checkpoint, "FI063")
    assert finding.severity == "error"
    assert "'org/base' (rank 64)" in finding.message
    assert finding.hints[0].command is not None and "--enable-lora" in finding.hints[0].command
    assert "--max-lora-rank 64" in finding.hints[0].command
    assert errors(checkpoint) == [finding]


def test_case_101_parts_of_one_weight_in_two_files(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    build.write_safetensors(tmp_path / one, {"W.qdata": ("I8", [4, 4])}, {"format": "pt"})
    build.write_safetensors(tmp_path / two, {"W.scale": ("F32", [4])}, {"format": "pt"})
    build.write_index(tmp_path, {"W.qdata": one, "W.scale": two}, 32)
    assert Checkpoint.open(str(tmp_path)).problems == ()


def test_case_38_foreign_config_beside_gguf(tmp_path: Path) -> None:
    build.write_config(tmp_path, quantization_config={"quant_method": "fp8"})
    info = build.tensor_info("token_embd.weight", [32, 1], 0, 0)
    keys = [build.string_key("general.architecture", "llama")]
    (tmp_path / "model-F32.gguf").write_bytes(build.gguf_bytes(keys, [info], bytes(128)))
    checkpoint = Checkpoint.open(str(tmp_path))
    assert checkpoint.format == "gguf"
    finding = only(checkpoint, "FI047")
    assert finding.severity == "warning" and "'fp8'" in finding.message
    assert errors(checkpoint) == []


def test_case_139_e8m0_scales_are_known_and_unknown_dtypes_are_a_warning(tmp_path: Path) -> None:
    build.write_config(tmp_path)
    header = build.entries({"w": ("U8", [4, 32]), "w_scale": ("F8_E8M0", [4, 1])})
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(header))
    checkpoint = Checkpoint.open(str(tmp_path))
    assert errors(checkpoint) == [] and checkpoint.tensors["w_scale"].dtype == "F8_E8M0"

    header["w_scale"]["dtype"] = "F8_E9M9"
    (tmp_path / "model.safetensors").write_bytes(build.safetensors_bytes(header))
    checkpoint = Checkpoint.open(str(tmp_path))
    finding = only(checkpoint, "FI011")
    assert finding.severity == "warning"
    assert "8 bits" in finding.message and "4 bytes" in finding.message
    assert checkpoint.tensors["w_scale"].nbytes == 4


def test_case_140_three_distinct_messages(tmp_path: Path) -> None:
    contents = {"zero": b"", "eight": bytes(8), "empty": build.safetensors_bytes({})}
    found = {}
    for name, content in contents.items():
        folder = tmp_path / name
        folder.mkdir()
        build.write_config(folder)
        (folder / "model.safetensors").write_bytes(content)
        found[name] = [problem for problem in Checkpoint.open(str(folder)).problems if problem.code != "FI018"]
    assert [problem.code for problem in found["zero"]] == ["FI004"]
    assert [problem.code for problem in found["eight"]] == ["FI006"]
    assert [(problem.code, problem.severity) for problem in found["empty"]] == [("FI019", "warning")]
    assert len({problems[0].message.replace("model.safetensors", "") for problems in found.values()}) == 3
