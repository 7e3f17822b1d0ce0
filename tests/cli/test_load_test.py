"""`mlload load-test` as it is typed: JSON that gates rely on, thresholds, several formats, ranks, what fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.tiny import save

pytestmark = pytest.mark.slow

LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
QUICK = ("--batch", "1,2", "--prompt-len", "8", "--decode", "6")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    save(path, LLAMA)
    return path


def mlload(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlload", "load-test", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **more}, timeout=600)


def test_one_rank_in_json(folder: Path) -> None:
    done = mlload(folder, *QUICK, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for key in ("schema_version", "source", "engine", "tp", "device", "load_format", "timeline", "bytes_read", "ranks",
                "sweep", "kernels", "speaks", "sample"):  # fmt: skip
        assert key in found, key
    (rank,) = found["ranks"]
    size = sum(t.numel() * t.element_size() for t in load_file(folder / "model.safetensors").values())
    assert rank["weight_bytes_predicted"] == rank["weight_bytes_measured"] == size == found["bytes_read"]
    assert rank["peak_host_bytes"] > size and rank["peak_device_bytes"] == 0
    # 2 layers, k and v, 2 KV heads of 16, float32, batch 2, room for 8 + 6 + 1 tokens.
    assert rank["kv_bytes"] == 2 * 2 * 2 * 16 * 4 * 2 * 15
    assert [pace["batch"] for pace in found["sweep"]] == [1, 2]
    for pace in found["sweep"]:
        assert pace["decode_tokens_per_s"] > 0 and pace["prefill_tokens_per_s"] > 0 and pace["first_token_ms"] > 0
        assert pace["inter_token_ms"]["p50"] <= pace["inter_token_ms"]["p99"]
    assert found["speaks"] == {"ok": None, "reasons": [], "loss": None}  # there is no tokenizer to ask with
    assert {"plan", "build", "read", "copy", "repack", "warm_up", "first_token"} <= found["timeline"].keys()


def test_two_ranks_record_and_expect(folder: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    one = mlload(folder, *QUICK, "--record", record, "--format", "json")
    assert one.returncode == 0, one.stderr
    two = mlload(folder, *QUICK, "--tp", "2", "--expect", record, "--max-kl", "1e-6", "--format", "json")
    assert two.returncode == 0, two.stderr + two.stdout
    found = json.loads(two.stdout)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all(rank["weight_bytes_predicted"] == rank["weight_bytes_measured"] for rank in found["ranks"])
    assert found["divergence"]["mean"] < 1e-6 and found["divergence"]["agree"] == 1
    # Another model is not the one that was recorded.
    tensors = load_file(folder / "model.safetensors")
    other = tmp_path / "other"
    other.mkdir()
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].flip(0).contiguous()
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    (other / "config.json").write_text((folder / "config.json").read_text())
    third = mlload(other, *QUICK, "--expect", record, "--max-kl", "1e-4", "--format", "json")
    assert third.returncode == 1
    assert "differs from the record" in json.loads(third.stdout)["failures"][0]


def test_formats_side_by_side_and_weights_only(folder: Path) -> None:
    done = mlload(folder, "--weights-only", "--load-format", "safetensors,dummy", "--repeat", "2", "--cold")
    assert done.returncode == 0, done.stderr
    assert "Side by side" in done.stdout and "2 loads" in done.stdout and "Pace" not in done.stdout


@pytest.mark.parametrize(
    ("threshold", "sentence"),
    [
        (("--max-load-seconds", "0.000001"), "loading took"),
        (("--max-peak-gib", "0.001"), "host memory reached"),
        (("--min-decode-tps", "1e12"), "decode reached"),
    ],
)
def test_thresholds(folder: Path, threshold: tuple[str, str], sentence: str) -> None:
    done = mlload(folder, *QUICK, *threshold, "--format", "github")
    assert done.returncode == 1 and f"::error title=mlload load-test safetensors::{sentence}" in done.stdout


def test_pt_files(folder: Path, tmp_path: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    done = mlload(tmp_path, "--weights-only", "--tp", "2", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["load_format"] == "pt"


def test_what_every_rank_would_refuse_is_told_of_none(folder: Path, tmp_path: Path) -> None:
    """Before a process is started: a tensor that is half of what it should be, and a size that does not divide."""
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name][:32].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    done = mlload(tmp_path, "--weights-only", "--tp", "2")
    assert done.returncode == 1
    assert "rank" not in done.stderr and "q_proj" in done.stderr and "Traceback" not in done.stderr
    done = mlload(folder, "--weights-only", "--tp", "3")
    assert done.returncode == 1 and "rank" not in done.stderr
    assert "4 % 3 = 1" in done.stderr and "try: these files work at tp 1, 2, 4" in done.stderr


def test_nan_weights_do_not_speak(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    done = mlload(tmp_path, *QUICK)
    assert done.returncode == 1 and "NaN or infinite" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--load-format", "tarball"), "no loader for load_format 'tarball'"),
        (("--dtype", "int3"), "--dtype takes auto"),
        (("--kv-cache-dtype", "int3"), "--kv-cache-dtype takes auto"),
        (("--expect", "nothing.json"), "cannot be read as a record: No such file"),
    ],
)
def test_wrong_usage(folder: Path, words: tuple[str, str], sentence: str) -> None:
    done = mlload(folder, *words)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--load-format", ","), "--load-format names at least one loader"),
        (("--record", "nowhere/record.json"), "cannot write nowhere/record.json: there is no folder nowhere"),
        (("--html", "nowhere/page.html"), "cannot write nowhere/page.html: there is no folder nowhere"),
        (("--max-kl", "-1"), "-1"),
        (("--baseline", "nowhere.json"), "nowhere.json cannot be read as a result of load-test: No such file"),
        (("--weights-only", "--min-decode-tps", "5"), "--min-decode-tps judges what the model generates"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_loaded(words: tuple[str, ...], said: str, folder: Path) -> None:
    done = mlload(folder, *words)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_interrupted_ranks_leave_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path, {**LLAMA, "max_position_embeddings": 1_000_000})
    words = [sys.executable, "-m", "mlload", "load-test", str(tmp_path), "--tp", "2", "--decode", "900000"]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ours: list[int] = []
    until = time.monotonic() + 300
    while len(ours) < 2 and time.monotonic() < until:
        time.sleep(0.2)
        ours = children(process.pid)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors.strip() == "mlload: interrupted"
    assert len(ours) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in ours)


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def test_torchrun(folder: Path) -> None:
    words = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "mlload"]
    arguments = ["load-test", str(folder), "--tp", "2", *QUICK, "--format", "json"]
    done = subprocess.run([*words, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(json.loads(done.stdout)["ranks"]) == 2


def on_two_nodes(*words: str) -> list[subprocess.CompletedProcess[str]]:
    """Two torchruns that know of one another by an address only, as on two machines: here both on the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [
        subprocess.Popen(
            [*TORCHRUN, "--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1",
             "--master-port", port, "--nproc-per-node", "1", "-m", "mlload", "load-test", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for node in range(2)
    ]  # fmt: skip
    said = [node.communicate(timeout=600) for node in nodes]
    return [
        subprocess.CompletedProcess(node.args, node.returncode, *spoken)
        for node, spoken in zip(nodes, said, strict=True)
    ]


def test_two_nodes(folder: Path) -> None:
    first, second = on_two_nodes(str(folder), "--tp", "2", *QUICK, "--format", "json")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr[-1500:] + second.stderr[-1500:]
    ranks = json.loads(first.stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1] and second.stdout == ""
    assert all(rank["weight_bytes_measured"] == rank["weight_bytes_predicted"] for rank in ranks)


def test_a_rank_that_fails_on_another_node_ends_both(folder: Path) -> None:
    """Sizes that torchrun and --tp do not agree on fail on every rank, and neither waits for the other."""
    done = on_two_nodes(str(folder), "--tp", "4", *QUICK)
    assert all(node.returncode != 0 for node in done)
    assert "torchrun started 2 processes, and --tp is 4" in done[0].stderr


FAILING = """
import os, sys
sys.path.insert(0, {root!r})
from mlload.loader import registry
from mlload.loader.safetensors import SafetensorsLoader

class Failing(SafetensorsLoader):
    def tensors(self, plan, rank, destinations):
        for number, piece in enumerate(super().tensors(plan, rank, destinations)):
            if rank == 1 and number == 3:
                {how}
            yield piece

registry._registered["failing"] = Failing
"""


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("raise OSError(5, 'Input/output error')", "rank 1: OSError: [Errno 5] Input/output error"),
        ("os.kill(os.getpid(), 9)", "rank 1 was killed by signal 9"),
    ],
)
def test_one_failing_rank_is_named_and_ends_all(folder: Path, tmp_path: Path, how: str, sentence: str) -> None:
    """A loader that fails on rank 1 alone, while rank 0 waits for it."""
    root = str(Path(__file__).parents[2])
    (tmp_path / "sitecustomize.py").write_text(FAILING.format(root=root, how=how))
    before = set(ranks_running())
    done = mlload(folder, "--tp", "2", "--load-format", "failing", *QUICK, PYTHONPATH=str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert done.stderr.strip().startswith(f"mlload: {sentence}") and "Traceback" not in done.stderr
    assert set(ranks_running()) <= before


def ranks_running() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"mlload.engine.rank" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_what_is_no_checkpoint_is_told_by_its_fault(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.safetensors").write_bytes(bytes(range(1, 251)))
    for name, fault in (("empty", "holds neither weights"), ("noise.safetensors", "this is no safetensors file")):
        done = mlload(tmp_path / name)
        assert done.returncode == 3 and fault in done.stderr and "Traceback" not in done.stderr
