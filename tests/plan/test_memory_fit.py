"""Budgets, defaults and verdicts, by arithmetic."""

from __future__ import annotations

import pytest

from mlload import profiles
from mlload.checkpoint.finding import MlloadError
from mlload.plan.memory import MemoryAnswer, judge_memory
from mlload.plan.memory.settings import GIB, Settings, settings
from mlload.plan.memory.startup import Storage, parse_storage, start_up
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from tests.quant.checkpoints import checkpoint
from tests.validators.build import LLAMA

# 80 layers, 8 KV heads of 128: 327,680 bytes a token; 126 GiB of layers.
LARGE = {
    **LLAMA,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def answer(config: dict[str, object], mesh: Mesh | None = None, gib: float = 80, **asked: object) -> MemoryAnswer:
    model = read_model(checkpoint(config))
    plan = make_plan(model, profiles.load("vllm", "0.33"), mesh or Mesh(), capability=(9, 0))
    limit = int(str(config["max_position_embeddings"]))
    return judge_memory(plan, settings(int(gib * GIB), "", limit, **asked), limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gib", "gpu", "expected"),
    [
        (178, "b200", (1024, 16384)),
        (79, "h100", (1024, 8192)),
        (79, "a100", (256, 2048)),
        (22, "l4", (256, 2048)),
    ],
)
def test_batches_by_the_size_of_the_gpu(gib: int, gpu: str, expected: tuple[int, int]) -> None:
    found = settings(gib * GIB, gpu, 8192)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == expected
    assert found.budget == int(gib * GIB * 0.92)


def test_a_step_is_no_longer_than_all_its_sequences() -> None:
    found = settings(22 * GIB, "", 512, max_num_seqs=2)
    assert found.max_num_batched_tokens == 2 * 512


def test_tokens_in_flight_are_a_batch_a_stage_and_one_more() -> None:
    assert Settings(GIB, 0.9, 1, 1, 2048).in_flight(1) == 4096
    assert Settings(GIB, 0.9, 1, 1, 2048).in_flight(4) == 5 * 2048


def test_weights_that_are_larger_than_the_budget_do_not_fit() -> None:
    """141 GB of weights on 80 GiB."""
    found = answer(LARGE)
    assert found.fits == "no" and found.max_model_len == 0
    assert found.peak.weight_bytes > found.settings.budget


def test_the_cache_of_one_request_decides() -> None:
    """On 4 ranks a token costs 81,920 bytes each. Whatever is left is what the budget leaves after weights, tables
    and the range beside them, and the longest request is its whole blocks but one."""
    found = answer(LARGE, Mesh(4))
    peak = found.peak
    assert peak.block_bytes == 16 * 80 * 2 * 2 * 128 * 2
    left = found.settings.budget - peak.weight_bytes - peak.buffer_bytes
    assert tuple(peak.cache) == (left - peak.beside.high, left - peak.beside.low)
    assert peak.buffer_bytes == 131072 * 128 * 2
    assert found.max_model_len == min((peak.cache.low // peak.block_bytes - 1) * 16, 131072)
    assert found.fits == ("yes" if found.max_model_len == 131072 else "tight")
    assert found.tokens.low == int(peak.cache.low // peak.block_bytes / 8192 * 131072)


def test_yes_and_no_are_the_two_ends_of_the_range() -> None:
    """The same request against a budget that is moved from one end past the other."""
    whole = answer(LARGE, Mesh(4), max_model_len=8192, max_num_seqs=64)
    need = (8192 // 16 + 1) * whole.peak.block_bytes + whole.peak.weight_bytes + whole.peak.buffer_bytes
    sure, maybe = (need + side for side in (whole.peak.beside.high, whole.peak.beside.low))

    def fits(budget: int) -> str:
        asked = {"max_model_len": 8192, "max_num_seqs": 64, "utilization": 0.9, "max_num_batched_tokens": 8192}
        return answer(LARGE, Mesh(4), (budget + 2) / 0.9 / GIB, **asked).fits

    assert [fits(sure + 2**20), fits(sure - 2**20), fits(maybe + 2**20), fits(maybe - 2**20)] == [
        "yes",
        "tight",
        "tight",
        "no",
    ]


def test_case_116_nothing_is_promised_near_the_whole_gpu() -> None:
    assert answer(LLAMA, utilization=0.95).fits == "yes"
    assert answer(LLAMA, utilization=0.98).fits == "tight"


def test_cases_19_and_20_the_peak_stage_decides() -> None:
    """61 layers on 4 stages are 15, 15, 16, 15; the first stage holds the embedding, the last the head. A wide
    vocabulary makes an end the fullest, a narrow one the stage of 16."""
    narrow = {**LARGE, "num_hidden_layers": 61, "vocab_size": 64}
    assert answer(narrow, Mesh(pp=4)).peak.rank == 2
    wide = {**LARGE, "num_hidden_layers": 61, "vocab_size": 256000}
    found = answer(wide, Mesh(pp=4), gib=48)
    assert found.peak.rank in (0, 3)
    each = 256000 * 8192 * 2
    assert found.ranks[0].weight_bytes - found.ranks[1].weight_bytes == each


def test_auto_takes_what_fits() -> None:
    """-1 asks for the longest request that fits, which is then what the cache is counted in."""
    found = answer(LARGE, Mesh(4), max_model_len=-1, gib=48)
    assert found.fits in ("yes", "tight")
    assert found.max_model_len == found.request < 131072


def test_an_encoder_keeps_no_cache() -> None:
    bert = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "torch_dtype": "float32",
    }
    found = answer(bert)
    assert (found.fits, found.max_model_len, found.peak.block_bytes) == ("yes", None, 0)


def test_no_graphs_without_them() -> None:
    eager, captured = answer(LLAMA, enforce_eager=True), answer(LLAMA)
    assert eager.peak.beside.low < captured.peak.beside.low
    # 35 + 16 + ... sizes: 3 small, 31 by eights, 17 by sixteens up to 512; all of them for decoding too.
    assert captured.peak.beside.low - eager.peak.beside.low == int(2 * 51 * 4 * 0.1 * 2**20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nfs:1.2GB/s", Storage("nfs", 1.2e9)),
        ("nvme:3GiB/s", Storage("nvme", 3 * 2**30)),
        ("800MB/s", Storage("disk", 8e8)),
    ],
)
def test_storage_is_read(text: str, expected: Storage) -> None:
    assert parse_storage(text) == expected


@pytest.mark.parametrize("text", ["nfs", "nfs:fast", "nfs:-1GB/s", "nfs:1", "", "nfs:nanGB/s", "nfs:infGB/s"])
def test_storage_that_says_nothing(text: str) -> None:
    with pytest.raises(MlloadError, match=r"nfs:1\.2GB/s"):
        parse_storage(text)


def test_case_130_every_rank_reads_all_of_it() -> None:
    """144 GB for 4 ranks at 200 MB/s without a shared page cache: 576 GB, 2880 s; from a local disk once."""
    assert start_up(Storage("nfs", 2e8), 144 * 10**9, 4)[:2] == (576 * 10**9, 2880.0)
    assert start_up(Storage("nvme", 2e8), 144 * 10**9, 4)[:2] == (144 * 10**9, 720.0)
    assert start_up(Storage("nfs", 2e8), 144 * 10**9, 4, per_rank=36 * 10**9)[:2] == (144 * 10**9, 720.0)
