"""ME: what does not fit, what may, and what is said about it."""

from __future__ import annotations

from typing import Any

from mlload import profiles
from mlload.plan.memory.startup import Storage
from mlload.plan.mesh import Mesh
from mlload.plan.model import read_model
from mlload.plan.plan import make_plan
from mlload.validators.context import Request
from mlload.validators.verdict import Verdict, judge
from tests.quant.checkpoints import checkpoint
from tests.validators.build import LLAMA, llama, of, problems, verdict

GIB = 2**30
# 4 layers of 2 x 2 x 64 values, 2 bytes each: 2048 bytes a token.
SMALL = llama()


def judged(gib: float, config: dict[str, Any] = LLAMA, mesh: Mesh | None = None, **asked: Any) -> Verdict:
    return verdict(config, llama(config), mesh=mesh, memory_gib=gib, capability="9.0", **asked)


def test_without_a_memory_size_nothing_is_said() -> None:
    found = verdict(LLAMA, SMALL, capability="9.0")
    assert found.fits is None and found.memory is None and not of(found, "ME001")


def test_what_fits_is_no_finding() -> None:
    found = judged(80)
    assert (found.fits, found.verdict, problems(found)) == ("yes", "ok", [])


def test_me001_not_fitting_is_a_failure_that_leaves_the_start_alone() -> None:
    found = judged(0.1)
    (finding,) = of(found, "ME001")
    assert (found.fits, found.verdict, found.starts) == ("no", "fail", True)
    assert (finding.severity, finding.question, finding.where) == ("error", "fits", "rank 0")
    assert "0.92 x 0.10 = 0.09 GiB" in finding.message
    assert finding.numbers["weight_bytes"] == sum(
        2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0]) for _, shape in SMALL.values()
    )


def test_me001_names_the_longest_request_that_fits() -> None:
    """A context of a million tokens at 2048 bytes each is 1.95 GiB; a GPU of 2 GiB holds a shorter one."""
    config = {**LLAMA, "max_position_embeddings": 1_000_000}
    found = judged(2, config, max_num_seqs=8, max_num_batched_tokens=64)
    (finding,) = of(found, "ME001")
    assert found.memory is not None and found.memory.max_model_len is not None
    length = found.memory.max_model_len
    assert 0 < length < 1_000_000
    assert finding.hints[0].command == f"--max-model-len {length}"
    again = judged(2, config, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=length)
    assert again.fits == "yes"
    longer = judged(2, config, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=length + 17)
    assert longer.fits != "yes"


def test_me002_between_the_ends_is_a_warning() -> None:
    found = judged(1.0)
    assert (found.fits, found.verdict) == ("tight", "warn")
    (finding,) = of(found, "ME002")
    low, high = finding.numbers["beside_bytes"]
    assert low < high


def test_case_116_me003_too_high_a_share() -> None:
    found = judged(80, gpu_memory_utilization=0.98)
    (finding,) = of(found, "ME003")
    assert (found.fits, found.verdict, finding.severity) == ("tight", "warn", "warning")
    assert finding.hints[0].command == "--gpu-memory-utilization 0.95"
    assert not of(judged(80, gpu_memory_utilization=0.95), "ME003")


def test_case_118_the_checkpoint_says_what_its_cache_is() -> None:
    """modelopt with an fp8 scheme keeps one byte a value, compressed-tensors without one two."""
    from tests.validators.build import FP8_STATIC, W4A16, fp8_static, quantized, w4a16

    modelopt = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "ignore": ["lm_head"],
    }
    tensors = quantized(llama(), fp8_static)
    block = 16 * 4 * 2 * 2 * 64
    eight = verdict(LLAMA, tensors, modelopt, memory_gib=80, capability="9.0").memory
    plain = verdict(LLAMA, tensors, FP8_STATIC, memory_gib=80, capability="9.0").memory
    packed = verdict(LLAMA, quantized(llama(), w4a16), W4A16, memory_gib=80, capability="9.0").memory
    assert eight is not None and plain is not None and packed is not None
    assert (eight.peak.block_bytes, plain.peak.block_bytes, packed.peak.block_bytes) == (block, 2 * block, 2 * block)


def test_an_online_quantization_is_not_guessed() -> None:
    plan = make_plan(read_model(checkpoint(LLAMA, SMALL)), profiles.load("vllm", "0.33"), Mesh(), capability=(9, 0))
    assert judge(plan, Request(memory_gib=80, quantization="fp8")).fits == "unknown"


def test_another_engine_s_memory_is_not_known() -> None:
    found = verdict(LLAMA, SMALL, engine="transformers", version="", memory_gib=80, capability="9.0")
    assert found.fits == "unknown"


def test_case_115_me004_the_block_is_said() -> None:
    """A state of 2 x 128 x 128 values and a conv of 3 x 768, in bfloat16 70,144 bytes, beside attention of
    2 x 2 x 64 x 2 = 512 bytes a token: 137 tokens, in steps of 16 are 144."""
    config = {
        **LLAMA,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    }
    found = verdict(config, {}, memory_gib=80, capability="9.0")
    (finding,) = of(found, "ME004")
    assert finding.numbers == {"block_size": 144, "recurrent_layers": 3}


def test_case_130_me005_start_up() -> None:
    found = judged(80, mesh=Mesh(2), storage=Storage("nfs", 1e6))
    (finding,) = of(found, "ME005")
    whole = finding.numbers["host_bytes"]
    assert finding.severity == "info"
    assert finding.numbers["read_bytes"] == 2 * whole
    assert finding.numbers["seconds"] == round(2 * whole / 1e6, 1)
    assert (finding.hints[0].command or "").startswith("mlload shard")
    (local,) = of(judged(80, mesh=Mesh(2), storage=Storage("nvme", 1e6)), "ME005")
    assert local.numbers["read_bytes"] == whole and not local.hints
