"""torch.save files, listed without being executed: against torch itself, and hostile ones."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.pickle_listing import BadPickle, Call, Name, list_pickle
from mlload.checkpoint.pickle_names import ALLOWED
from tests.checkpoint import build


def judge(folder: Path) -> Checkpoint:
    build.write_config(folder)
    return Checkpoint.open(str(folder))


def errors(checkpoint: Checkpoint) -> set[str]:
    return {problem.code for problem in checkpoint.problems if problem.severity == "error"}


def write_zip(path: Path, data_pkl: bytes, storages: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data_pkl)
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)


def state_dict_pickle(shape: tuple[int, ...] = (2, 3), numel: int = 6, offset: int = 0) -> bytes:
    """The pickle of {"w": a float tensor on storage "0"}, by hand."""
    sizes = b"".join(b"K" + bytes([size]) for size in shape)
    strides = b"".join(b"K" + bytes([1]) for _ in shape)
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK" + bytes([numel]) + b"tQ"
    return (
        b"\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((" + storage[1:] + b"K" + bytes([offset])
        + b"(" + sizes + b"t(" + strides + b"t\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def test_file_made_by_hand(tmp_path: Path) -> None:
    write_zip(tmp_path / "pytorch_model.bin", state_dict_pickle(), {"0": bytes(range(24))})
    checkpoint = judge(tmp_path)
    assert checkpoint.problems == ()
    assert checkpoint.format == "torch"
    ref = checkpoint.tensors["w"]
    assert (ref.dtype, ref.shape, ref.nbytes) == ("F32", (2, 3), 24)
    assert checkpoint.source.read("pytorch_model.bin", ref.offset, ref.nbytes) == bytes(range(24))


@pytest.mark.parametrize("legacy", [False, True])
def test_file_written_by_torch(tmp_path: Path, legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(64, dtype=torch.float32)
    state = {
        "f32": torch.randn(3, 5),
        "bf16": torch.randn(7).bfloat16(),
        "i8": torch.arange(5, dtype=torch.int8),
        "bool": torch.tensor([True, False]),
        "i64": torch.tensor(7),
        "empty": torch.zeros(0, 4),
        "view": base[16:32].reshape(4, 4),
        "whole": base,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    if not legacy:
        state["fp8"] = torch.randn(4).to(torch.float8_e4m3fn)
        state["u16"] = torch.tensor([1, 2, 3], dtype=torch.uint16)
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    checkpoint = judge(tmp_path)
    assert checkpoint.problems == ()
    assert checkpoint.tensors.keys() == state.keys()
    raw = path.read_bytes()
    for name, tensor in state.items():
        ref = checkpoint.tensors[name]
        assert ref.shape == tuple(tensor.shape)
        flat = tensor.detach().contiguous().reshape(-1)
        assert raw[ref.offset : ref.offset + ref.nbytes] == flat.view(torch.uint8).numpy().tobytes()
    dtypes = {name: checkpoint.tensors[name].dtype for name in ("f32", "bf16", "i8", "bool", "i64")}
    assert dtypes == {"f32": "F32", "bf16": "BF16", "i8": "I8", "bool": "BOOL", "i64": "I64"}


def test_a_module_state_dict_with_metadata(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)).state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin")
    checkpoint = judge(tmp_path)
    assert checkpoint.problems == ()
    assert set(checkpoint.tensors) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_sharded_with_an_index(tmp_path: Path) -> None:
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for name in names:
        pickled = state_dict_pickle().replace(b"X\1\0\0\0w", b"X\1\0\0\0" + name[18:19].encode(), 1)
        write_zip(tmp_path / name, pickled, {"0": bytes(24)})
    index = {"1": names[0], "2": names[1], "3": "pytorch_model-00003-of-00003.bin"}
    build.write_index(tmp_path, index, name="pytorch_model.bin.index.json")
    checkpoint = judge(tmp_path)
    assert set(checkpoint.tensors) == {"1", "2"}
    assert errors(checkpoint) == {"FI031"}


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, (f'{sys.executable} -c \'open("executed", "w")\'',))


def test_code_is_named_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_zip(tmp_path / "pytorch_model.bin", pickle.dumps({"w": Evil()}, 2), {})
    checkpoint = judge(tmp_path)
    assert errors(checkpoint) == {"FI050"}
    (finding,) = checkpoint.problems
    assert "posix.system" in finding.message or "nt.system" in finding.message
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cbuiltins\neval\n(X\1\0\0\x001tR.",
        b"(X\1\0\0\x001ibuiltins\neval\n.",
        b"(cbuiltins\neval\nX\1\0\0\x001o.",
        b"\x80\4\x8c\x08builtins\x8c\4eval\x93\x8c\x011\x85R.",
        b"\x80\2cbuiltins\neval\n)\x81.",
        b"\x80\4cbuiltins\neval\n)}\x92.",
        b"\x80\2\x82\x07.",
        b"\x80\2}X\1\0\0\0acbuiltins\neval\ns.",
    ],
)
def test_every_way_to_name_something(payload: bytes) -> None:
    pickletools.dis(payload, io.StringIO())
    listing = list_pickle(payload)
    assert listing.refused in (["builtins.eval"], ["copyreg.extension 7"])


def test_names_are_those_that_torch_takes() -> None:
    unpickler = pytest.importorskip("torch._weights_only_unpickler")
    theirs = set(unpickler._get_allowed_globals())
    assert theirs - ALLOWED == set()
    # In the list for Python 2's files, or registered by torch when their module is imported.
    rest = {name for name in ALLOWED - theirs if not name.startswith(("__builtin__.", "torch.nested._internal."))}
    assert rest <= {"torch.distributed._mesh_layout._MeshLayout", "torch.distributed._mesh_layout._FlatLayout"}


def test_what_torch_refuses_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for number, value in enumerate([Path("x"), {1, 2}, torch.nn.Linear(1, 1), complex(1, 2), bytearray(b"x")]):
        path = tmp_path / f"{number}.pt"
        torch.save({"w": torch.zeros(1), "other": value}, path)
        try:
            torch.load(path, weights_only=True)
            accepted = True
        except pickle.UnpicklingError:
            accepted = False
        checkpoint = Checkpoint.open(str(path))
        assert ("FI050" not in errors(checkpoint)) == accepted
        assert "w" in checkpoint.tensors


def test_training_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"epoch": 3, "model": {"w": torch.zeros(2)}, "lr": [0.1]}, tmp_path / "pytorch_model.bin")
    checkpoint = judge(tmp_path)
    assert [(problem.code, problem.severity) for problem in checkpoint.problems] == [("FI052", "warning")]
    assert set(checkpoint.tensors) == {"model.w"}


def test_training_leftovers_are_no_weights(tmp_path: Path) -> None:
    write_zip(tmp_path / "pytorch_model.bin", state_dict_pickle(), {"0": bytes(24)})
    (tmp_path / "training_args.bin").write_bytes(b"whatever")
    (tmp_path / "optimizer.pt").write_bytes(b"whatever")
    assert judge(tmp_path).problems == ()


GOOD = state_dict_pickle()

DAMAGED: dict[str, tuple[bytes, set[str]]] = {
    "empty": (b"", {"FI004"}),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", {"FI001"}),
    "html": (b"<!doctype html><p>no", {"FI002"}),
    "gzip": (b"\x1f\x8b" + bytes(30), {"FI021"}),
    "text": (b"just words, and no archive", {"FI051"}),
    "plain pickle": (pickle.dumps({"a": 1}, 2), {"FI051"}),
    "plain pickle with code": (pickle.dumps(Evil(), 2), {"FI050", "FI051"}),
    "pickle cut off": (pickle.dumps(list(range(100)), 2)[:-20], {"FI051"}),
    "zip cut off": (b"PK\3\4" + bytes(100), {"FI051"}),
    "legacy cut off": (
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2),
        {"FI051"},
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(tmp_path: Path, name: str) -> None:
    content, codes = DAMAGED[name]
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    checkpoint = judge(tmp_path)
    assert errors(checkpoint) == codes, [problem.message for problem in checkpoint.problems]
    assert all(problem.message.isprintable() for problem in checkpoint.problems)


ARCHIVES: dict[str, tuple[bytes, dict[str, bytes], set[str]]] = {
    "no storage": (GOOD, {}, {"FI013"}),
    "short storage": (GOOD, {"0": bytes(20)}, {"FI013"}),
    "offset past the storage": (state_dict_pickle(offset=1), {"0": bytes(24)}, {"FI013"}),
    "not a dictionary": (b"\x80\2K\7.", {}, {"FI051"}),
    "an object": (b"\x80\2ccollections\nCounter\n)R.", {}, {"FI051"}),
    "does not end": (b"\x80\2}", {}, {"FI051"}),
    "stack too short": (b"\x80\2s.", {}, {"FI051"}),
    "takes a mark": (b"\x80\2(0)(u.", {}, {"FI051"}),
    "memo without an entry": (b"\x80\2h\7.", {}, {"FI051"}),
    "unknown instruction": (b"\x80\2\xff.", {}, {"FI051"}),
    "lying length": (b"\x80\4\x8e" + struct.pack("<Q", 2**60) + b"x.", {}, {"FI051"}),
    "long number": (b"I" + b"9" * 5000 + b"\n.", {}, {"FI051"}),
    "odd dictionary": (b"\x80\2(K\1d.", {}, {"FI051"}),
    "tensor without a storage": (
        b"\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(K\1K\1K\1tRs.",
        {},
        {"FI051"},
    ),
    "negative size": (GOOD.replace(b"K\2K\3t", b"J\xff\xff\xff\xffK\3t"), {"0": bytes(24)}, {"FI051"}),
    "unknown storage": (GOOD.replace(b"FloatStorage", b"QuadStorage"), {"0": bytes(24)}, {"FI050", "FI051"}),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_damaged_archive(tmp_path: Path, name: str) -> None:
    data_pkl, storages, codes = ARCHIVES[name]
    write_zip(tmp_path / "pytorch_model.bin", data_pkl, storages)
    checkpoint = judge(tmp_path)
    assert errors(checkpoint) == codes, [problem.message for problem in checkpoint.problems]


def test_zip_without_a_pickle(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "it holds 'readme.txt'" in judge(tmp_path).problems[0].message


def test_torchscript(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("m/data.pkl", GOOD)
        archive.writestr("m/constants.pkl", b"\x80\2).")
        archive.writestr("m/code/__torch__.py", "pass")
        archive.writestr("m/data/0", bytes(24))
    checkpoint = judge(tmp_path)
    assert errors(checkpoint) == {"FI050"} and "TorchScript" in checkpoint.problems[0].message


def test_compressed_archive(tmp_path: Path) -> None:
    write_zip(tmp_path / "pytorch_model.bin", GOOD, {"0": bytes(24)}, zipfile.ZIP_DEFLATED)
    assert errors(judge(tmp_path)) == {"FI051"}


@pytest.mark.parametrize("cut", [1, 30, 60, 120])
def test_archive_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    write_zip(path, GOOD, {"0": bytes(24)})
    path.write_bytes(path.read_bytes()[:-cut])
    assert errors(judge(tmp_path)) == {"FI051"}


def test_directory_of_the_64_bit_kind(tmp_path: Path) -> None:
    """As torch writes for large files: places in a zip64 record, -1 in the old one."""
    path = tmp_path / "pytorch_model.bin"
    write_zip(path, GOOD, {"0": bytes(24)})
    raw = path.read_bytes()
    at = raw.rfind(b"PK\5\6")
    count, length, start = struct.unpack("<8xHHII", raw[at : at + 20])[1:]
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, start)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(raw[:at] + end64 + locator + end)
    assert zipfile.is_zipfile(path)
    checkpoint = judge(tmp_path)
    assert checkpoint.problems == () and set(checkpoint.tensors) == {"w"}
    path.write_bytes(raw[:at] + end64 + locator.replace(struct.pack("<Q", at), struct.pack("<Q", 2**50)) + end)
    assert errors(judge(tmp_path)) == {"FI051"}
    path.write_bytes(raw[:at] + end)
    assert errors(judge(tmp_path)) == {"FI051"}


# Structures that take more room than their description


def test_doubling_tuples_are_not_unfolded() -> None:
    listing = list_pickle(b"\x80\2K\1" + b"2\x86" * 4000 + b".")
    assert isinstance(listing.root, tuple)
    named = list_pickle(b"\x80\4K\1" + b"2\x86" * 4000 + b"2\x93.")
    assert named.names == [Name("<tuple>", "<tuple>")]


def test_copies_of_a_dictionary_are_counted() -> None:
    items = b"".join(b"M" + struct.pack("<H", i) + b"N" for i in range(20_000))
    copy = b"ccollections\nOrderedDict\nh\0\x85R0"
    with pytest.raises(BadPickle, match="copies more than"):
        list_pickle(b"\x80\2}q\0(" + items + b"u" + copy * 400 + b".")


def test_imports_are_counted() -> None:
    with pytest.raises(BadPickle, match="imports more than"):
        list_pickle(b"\x80\2" + b"ca\nb\n0" * 20_000 + b"N.")


def test_instructions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlload.checkpoint.pickle_listing.MAX_INSTRUCTIONS", 1000)
    with pytest.raises(BadPickle, match="instructions"):
        list_pickle(b"\x80\2" + b"N0" * 600 + b".")


def test_a_dictionary_inside_itself(tmp_path: Path) -> None:
    write_zip(tmp_path / "pytorch_model.bin", b"\x80\2}q\0X\1\0\0\0ah\0s.", {})
    assert judge(tmp_path).tensors == {}


def test_state_of_an_object_is_kept() -> None:
    listing = list_pickle(b"\x80\2ccollections\nCounter\n)R}X\1\0\0\0aK\1sb.")
    assert isinstance(listing.root, Call) and listing.root.state == {"a": 1}


def test_containers_and_memo() -> None:
    value = {"a": [1, 2.5, None, True], "b": (1, 2, 3, 4), 3: {"x": b"y"}, "s": "t", "big": 2**80}
    for protocol in range(5):
        root = list_pickle(pickle.dumps(value, protocol)).root
        assert {key: root[key] for key in ("a", "s", "big", "b")} == {key: value[key] for key in ("a", "s", "big", "b")}


def test_members_of_the_64_bit_kind(tmp_path: Path) -> None:
    """Sizes and places of members in their extra fields, as for storages above 4 GiB."""
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("m/data.pkl", GOOD), ("m/data/0", bytes(range(24)))):
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(content)
    raw = bytearray(path.read_bytes())
    at = raw.find(b"PK\1\2", raw.find(b"PK\1\2") + 1)
    fields = struct.unpack("<4s6H3I5H2I", raw[at : at + 46])
    extra = struct.pack("<HH", 9, 0) + struct.pack("<HH3Q", 1, 24, fields[9], fields[8], fields[16])
    wide = raw[at : at + 20] + struct.pack("<2I2H", 0xFFFFFFFF, 0xFFFFFFFF, fields[10], len(extra))
    wide += raw[at + 32 : at + 42] + struct.pack("<I", 0xFFFFFFFF) + raw[at + 46 : at + 46 + fields[10]] + extra
    end = raw.rfind(b"PK\5\6")
    directory = raw[raw.find(b"PK\1\2") : at] + wide
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(directory), raw.find(b"PK\1\2"), 0)
    assert end > at
    path.write_bytes(raw[: raw.find(b"PK\1\2")] + directory + tail)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("m/data/0") == bytes(range(24))
    checkpoint = judge(tmp_path)
    assert checkpoint.problems == ()
    ref = checkpoint.tensors["w"]
    assert checkpoint.source.read("pytorch_model.bin", ref.offset, ref.nbytes) == bytes(range(24))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"PK\3\4", b"PK\3\5"),  # local headers are not where the directory says
        (b"PK\1\2", b"PK\1\3"),  # the directory is damaged
    ],
)
def test_archive_that_contradicts_itself(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "pytorch_model.bin"
    write_zip(path, GOOD, {"0": bytes(24)})
    raw = path.read_bytes()
    first = raw.find(old, 4)
    path.write_bytes(raw[:first] + new + raw[first + 4 :])
    assert errors(judge(tmp_path)) == {"FI051"}


def test_legacy_file_cut_off_in_its_data(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.zeros(100)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-40])
    assert errors(judge(tmp_path)) == {"FI013"}


def test_legacy_file_with_a_long_list_of_tensors(tmp_path: Path) -> None:
    """Its objects do not fit the first read."""
    torch = pytest.importorskip("torch")
    names = [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(1500)]
    path = tmp_path / "pytorch_model.bin"
    torch.save(
        {name: torch.full((2,), float(i)) for i, name in enumerate(names)}, path, _use_new_zipfile_serialization=False
    )
    checkpoint = judge(tmp_path)
    assert (checkpoint.problems == () and list(checkpoint.tensors) == names) or set(checkpoint.tensors) == set(names)
    ref = checkpoint.tensors[names[1234]]
    assert checkpoint.source.read("pytorch_model.bin", ref.offset, 8) == struct.pack("<2f", 1234.0, 1234.0)


def test_instructions_that_few_pickles_use() -> None:
    assert list_pickle(b"\x80\2(K\1K\x021K\3.").root == 3
    assert list_pickle(b"\x80\4(K\1K\2\x91.").root == [1, 2]
    assert list_pickle(b"Pkey\n.").root == ("key",)
    assert list_pickle(b"\x80\2ccollections\nOrderedDict\n](K\1K\2\x86K\3K\4\x86e\x85R.").root == {1: 2, 3: 4}
    with pytest.raises(BadPickle, match="empty group"):
        list_pickle(b"(.")
    with pytest.raises(BadPickle, match="do not fit together"):
        list_pickle(b"\x80\2K\1h\x05.")


def tensor_pickle(function: bytes, arguments: bytes) -> bytes:
    """The pickle of {"w": function(*arguments)}; b"<S>" in the arguments stands for a storage of 6 floats."""
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\6tQ"
    return b"\x80\2}X\1\0\0\0w" + function + b"(" + arguments.replace(b"<S>", storage) + b"tRs."


V2 = b"ctorch._utils\n_rebuild_tensor_v2\n"
SIZE = b"ctorch\nSize\n(K\2K\3t\x85R"


@pytest.mark.parametrize(
    ("function", "arguments", "dtype"),
    [
        (V2, b"<S>K\0" + SIZE + b"(K\3K\1t\x89N", "F32"),
        (b"ctorch._utils\n_rebuild_parameter\n", V2 + b"(<S>K\0(K\2K\3t(K\3K\1t\x89NtR\x88N", "F32"),
        (
            b"ctorch._tensor\n_rebuild_from_type_v2\n",
            V2 + b"ctorch.nn.parameter\nParameter\n(<S>K\0(K\2K\3t(K\3K\1t\x89Nt}",
            "F32",
        ),
        (b"ctorch._utils\n_rebuild_tensor_v3\n", b"<S>K\0(K\2K\3t(K\3K\1t\x89Nctorch\nuint32\n", "U32"),
    ],
)
def test_ways_to_describe_a_tensor(tmp_path: Path, function: bytes, arguments: bytes, dtype: str) -> None:
    write_zip(tmp_path / "pytorch_model.bin", tensor_pickle(function, arguments), {"0": bytes(24)})
    checkpoint = judge(tmp_path)
    assert checkpoint.problems == ()
    assert (checkpoint.tensors["w"].dtype, checkpoint.tensors["w"].shape) == (dtype, (2, 3))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (V2, b"<S>K\0K\7"),  # a shape that is a number
        (V2, b"<S>J\xff\xff\xff\xff(K\2t"),  # a negative offset
        (V2, b"<S>"),  # no shape
        (V2, b"X\1\0\0\0xQK\0(K\2t"),  # a storage of another kind
        (V2, b"(K\1K\1K\1K\1K\1tQK\0(K\2t"),
        (V2, b"<S>K\0(" + b"K\1" * 70 + b"t"),  # seventy dimensions
        (b"ctorch._utils\n_rebuild_parameter\n", b"N"),
        (b"ctorch._utils\n_rebuild_tensor_v3\n", b"<S>K\0(K\2K\3t(K\3K\1t\x89Nctorch\nint3\n"),
    ],
)
def test_tensors_that_are_not_understood(tmp_path: Path, function: bytes, arguments: bytes) -> None:
    write_zip(tmp_path / "pytorch_model.bin", tensor_pickle(function, arguments), {"0": bytes(24)})
    checkpoint = judge(tmp_path)
    assert errors(checkpoint) == {"FI051"} and "'w'" in checkpoint.problems[0].message


def test_pickle_of_the_archive_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlload.checkpoint.torch_file.MAX_PICKLE", 50)
    write_zip(tmp_path / "pytorch_model.bin", GOOD, {"0": bytes(24)})
    assert "has a data.pkl of" in judge(tmp_path).problems[0].message


def test_damaged_compressed_pickle(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    write_zip(path, GOOD * 5, {}, zipfile.ZIP_DEFLATED)
    raw = path.read_bytes()
    start = 30 + len("archive/data.pkl")
    path.write_bytes(raw[:start] + b"\xff" * 8 + raw[start + 8 :])
    assert "damaged data.pkl" in judge(tmp_path).problems[0].message


@pytest.mark.parametrize(
    ("count", "length", "start", "words"),
    [(9, 46, 10, "9 members in a directory of 46 bytes"), (1, 2**31, 10, "past its end"), (1, 46, 10, "damaged")],
)
def test_directory_that_lies(tmp_path: Path, count: int, length: int, start: int, words: str) -> None:
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, length, start, 0)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4" + bytes(200) + end)
    (finding,) = judge(tmp_path).problems
    assert finding.code == "FI051" and words in finding.message
