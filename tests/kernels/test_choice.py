"""Who can run a layer and why not: one divisor, one size, one GPU at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlload.kernels.choice import Choice, choose, provider
from mlload.kernels.choice.codes import CODES
from mlload.profiles import load
from mlload.profiles.layers import EngineLayer
from mlload.profiles.profile import Profile
from mlload.quant.spec import Scheme

VLLM = load("vllm", "0.33.0")
# o_proj of 32 heads of 128 on one of 2 ranks, hidden size 4096.
ROW = EngineLayer("RowParallelLinear", "o_proj", (4096,), 2048, (4096,), 4096, tp=2)
EXPERTS = EngineLayer("RoutedExperts", "experts", (768, 768), 2048, (768, 768), 2048, experts=128, experts_all=128)
W4 = Scheme("compressed_tensors", "pack-quantized", 4, "int", "group", 128)
GPTQ = Scheme("gptq", "gptq", 4, "int", "group", 128)
BLOCK = Scheme("fp8", "", 8, "float", "block", block=(128, 128), activation="dynamic", activation_bits=8)
NVFP4 = Scheme("modelopt", "", 4, "float", "tensor_group", 16, activation="dynamic")


def run(
    layer: EngineLayer,
    scheme: Scheme | None,
    quant: str | None,
    cc: tuple[int, int] = (9, 0),
    dtype: str = "BF16",
    profile: Profile = VLLM,
    model_type: str = "",
) -> Choice:
    return choose(layer, scheme, quant, dtype, cc, profile, model_type=model_type)


def reasons(choice: Choice) -> dict[str, str]:
    return dict(choice.declined)


def test_every_other_candidate_says_why_not_in_the_engines_order() -> None:
    choice = run(ROW, W4, "compressed-tensors")
    assert choice.chosen == "MacheteLinearKernel"
    assert choice.label == "CompressedTensorsLinearMethod/CompressedTensorsWNA16/MacheteLinearKernel"
    assert choice.layers == "RowParallelLinear[o_proj]"
    assert choice.shape == (4096, 2048)
    assert choice.provider == "vllm"
    assert not choice.refusals
    order = list(VLLM.order("linear", "mixed_precision"))
    assert {kernel for kernel, _ in choice.declined} | {choice.chosen} == set(order)
    assert reasons(choice)["HummingLinearKernel"] == "could run it, MacheteLinearKernel comes first"


@pytest.mark.parametrize(
    ("n", "cc", "dtype", "chosen"),
    [
        (4096, (9, 0), "BF16", "MacheteLinearKernel"),
        (4096, (8, 0), "BF16", "MarlinLinearKernel"),
        (4096, (7, 5), "F16", "MarlinLinearKernel"),
        (4096, (7, 0), "F16", "ExllamaLinearKernel"),
        (4104, (9, 0), "BF16", "HummingLinearKernel"),
        (4104, (8, 0), "BF16", "MarlinLinearKernel"),
    ],
)
def test_mixed_precision_moves_down_its_list(n: int, cc: tuple[int, int], dtype: str, chosen: str) -> None:
    """4104 is no multiple of Machete's 128; on Hopper, Humming comes before Marlin."""
    assert run(replace(ROW, parts=(n,), parts_full=(n,)), GPTQ, "auto_gptq", cc, dtype).chosen == chosen


@pytest.mark.parametrize(("group", "chosen"), [(32, "MarlinLinearKernel"), (128, "HummingLinearKernel")])
def test_marlin_takes_no_group_that_straddles_ranks(group: int, chosen: str) -> None:
    """2080 is 65 groups of 32, and 16.25 of 128."""
    cut = replace(ROW, k=2080, k_full=4160)
    assert run(cut, replace(GPTQ, group_size=group), "auto_gptq", (8, 0)).chosen == chosen


def test_reasons_carry_their_numbers() -> None:
    choice = run(replace(ROW, k=1376, k_full=11008), GPTQ, "auto_gptq")
    assert choice.chosen == "HummingLinearKernel"
    assert reasons(choice)["MacheteLinearKernel"] == "K per rank must be a multiple of 64: 1376 % 64 = 32"
    assert "1376 % 128 = 96" in reasons(choice)["MarlinLinearKernel"]
    assert reasons(choice)["ConchLinearKernel"] == "conch is not installed"


def test_awq_leaves_the_marlin_method_where_a_group_straddles_ranks() -> None:
    awq = Scheme("awq", "gemm", 4, "int", "group", 128, symmetric=False)
    assert run(ROW, awq, "auto_awq").label == "AutoAWQMarlinLinearMethod/MacheteLinearKernel"
    assert run(replace(ROW, k=1728, k_full=13824), awq, "auto_awq").label == "AutoAWQLinearMethod"


@pytest.mark.parametrize(
    ("cc", "chosen"),
    [
        ((7, 5), "MarlinFP8ScaledMMLinearKernel"),
        ((8, 9), "MarlinFP8ScaledMMLinearKernel"),
        ((9, 0), "DeepGemmFp8BlockScaledMMKernel"),
        ((10, 0), "DeepGemmFp8BlockScaledMMKernel"),
        ((12, 0), "DeepGemmFp8BlockScaledMMKernel"),
    ],
)
def test_fp8_blocks_by_generation(cc: tuple[int, int], chosen: str) -> None:
    assert run(ROW, BLOCK, "fp8", cc).chosen == chosen


def test_deep_gemm_writes_bfloat16_and_wants_whole_tiles() -> None:
    assert run(ROW, BLOCK, "fp8", dtype="F16").chosen == "CutlassFp8BlockScaledMMKernel"
    assert run(replace(ROW, parts=(4128,)), BLOCK, "fp8").chosen == "CutlassFp8BlockScaledMMKernel"
    assert run(replace(ROW, parts=(4160,)), BLOCK, "fp8").chosen == "DeepGemmFp8BlockScaledMMKernel"


def test_deep_gemm_is_off_for_some_model_types_on_blackwell() -> None:
    assert run(ROW, BLOCK, "fp8", (10, 0), model_type="qwen3_5_text").chosen == "CutlassFp8BlockScaledMMKernel"
    assert run(ROW, BLOCK, "fp8", (9, 0), model_type="qwen3_5_text").chosen == "DeepGemmFp8BlockScaledMMKernel"


def test_nvfp4_is_native_on_blackwell_and_weight_only_below() -> None:
    labels = [run(ROW, NVFP4, "modelopt_fp4", cc).chosen for cc in ((8, 0), (9, 0), (10, 0))]
    assert labels == ["MarlinNvFp4LinearKernel", "HummingNvFp4LinearKernel", "CutlassNvFp4LinearKernel"]
    a16 = replace(NVFP4, activation=None)
    assert run(ROW, a16, "modelopt_fp4", (10, 0)).chosen == "MarlinNvFp4LinearKernel"


def test_extras_that_count_as_installed_change_the_choice() -> None:
    with_flashinfer = replace(VLLM, assumed={**VLLM.assumed, "flashinfer": True})
    choice = run(ROW, NVFP4, "modelopt_fp4", (10, 0), profile=with_flashinfer)
    assert (choice.chosen, choice.provider) == ("FlashInferCuteDslNvFp4LinearKernel", "flashinfer")
    without = replace(VLLM, assumed={**VLLM.assumed, "humming": False})
    assert run(ROW, NVFP4, "modelopt_fp4", (9, 0), profile=without).chosen == "MarlinNvFp4LinearKernel"


def test_block_experts_go_to_triton_on_hopper_but_to_deep_gemm_under_expert_parallelism() -> None:
    assert run(EXPERTS, BLOCK, "fp8").label == "Fp8MoEMethod/TRITON"
    assert run(replace(EXPERTS, ep=8, tp=8, experts=16), BLOCK, "fp8").label == "Fp8MoEMethod/DEEPGEMM"
    assert run(EXPERTS, BLOCK, "fp8", (10, 0)).label == "Fp8MoEMethod/DEEPGEMM"
    assert run(EXPERTS, BLOCK, "fp8", (8, 0)).label == "Fp8MoEMethod/MARLIN"


def test_a_refined_grid_starts_on_hopper_and_is_refused_on_ampere() -> None:
    cut = replace(EXPERTS, parts=(96, 96), parts_full=(768, 768), tp=8)
    assert run(cut, BLOCK, "fp8").label == "Fp8MoEMethod/TRITON"
    refused = run(cut, BLOCK, "fp8", (8, 0))
    assert refused.chosen is None
    (finding,) = refused.refusals
    assert (finding.code, finding.severity, finding.question) == ("KN002", "error", "starts")
    assert finding.numbers["intermediate"] == 96
    assert finding.hints[0].command == "--enable-expert-parallel"
    assert "32x32" in reasons(refused)["MARLIN"]


def test_experts_that_marlin_cannot_cut_go_to_the_halving_method() -> None:
    cut = replace(EXPERTS, parts=(96, 96), parts_full=(768, 768), tp=8)
    assert run(EXPERTS, GPTQ, "auto_gptq", (8, 0)).label == "AutoGPTQMoEMethod/MARLIN"
    assert run(cut, GPTQ, "auto_gptq", (8, 0)).label == "MoeWNA16Method/TRITON"
    assert run(cut, GPTQ, "auto_gptq", (9, 0)).label == "MoeWNA16Method/HUMMING"


def test_one_scale_a_channel_in_experts_stops_where_humming_comes_first() -> None:
    channel = replace(W4, strategy="channel", group_size=None)
    assert not run(EXPERTS, channel, "compressed-tensors", (8, 0)).refusals
    (finding,) = run(EXPERTS, channel, "compressed-tensors", (9, 0)).refusals
    assert finding.code == "KN004"


def test_a_scheme_with_a_least_capability_of_its_own() -> None:
    quark = Scheme("quark", "", 8, "float", "tensor", activation="static", activation_bits=8)
    assert not run(ROW, quark, "quark", (9, 0)).refusals
    (finding,) = run(ROW, quark, "quark", (8, 0)).refusals
    assert finding.code == "KN003"
    assert {"89", "80"} <= set(finding.message.replace("(", " ").replace(")", " ").replace(",", " ").split())


def test_experts_without_a_gate() -> None:
    plain = replace(EXPERTS, parts=(1856,), activation="relu2_no_mul")
    assert run(plain, NVFP4, "modelopt_fp4", (10, 0)).chosen == "VLLM_CUTLASS"
    assert run(plain, BLOCK, "fp8", (10, 0)).chosen == "TRITON"


def test_unquantized_layers_have_a_method_and_no_choice() -> None:
    assert run(ROW, None, None).label == "UnquantizedLinearMethod"
    head = EngineLayer("ParallelLMHead", "lm_head", (64128,), 4096, tp=2)
    assert run(head, None, "fp8").label == "UnquantizedEmbeddingMethod"
    assert run(head, None, "modelopt").label == "UnquantizedLinearMethod"
    assert run(EXPERTS, None, None).label == "UnquantizedFusedMoEMethod/TRITON"


def test_a_method_that_is_not_known_says_so() -> None:
    choice = run(ROW, Scheme("torchao", "", 8), "torchao")
    assert not choice.known
    assert choice.chosen is None
    assert not choice.refusals


def test_providers() -> None:
    named = {"MacheteLinearKernel": "vllm", "HUMMING": "humming", "TritonFp8BlockScaledMMKernel": "triton",
             "DEEPGEMM": "deep_gemm", "PerTensorTorchFP8ScaledMMLinearKernel": "torch"}  # fmt: skip
    assert {kernel: provider(kernel) for kernel in named} == named


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_every_candidate_of_every_list_is_known(version: str) -> None:
    from mlload.kernels.choice.linear import CONDITIONS

    profile = load("vllm", version)
    families = ("mixed_precision", "fp8", "fp8_block", "fp8_weight_only", "int8", "nvfp4", "mxfp4", "mxfp8")
    for family in families:
        order = profile.order("linear", family)
        assert order
        assert set(order) <= set(CONDITIONS), family


def test_codes_have_texts() -> None:
    assert all(title and text.endswith(".") for title, text in CODES.values())


def test_int8_activations_are_built_on_blackwell_and_fail_there() -> None:
    int8 = Scheme("compressed_tensors", "int-quantized", 8, "int", "channel", activation="dynamic", activation_bits=8)
    assert not run(ROW, int8, "compressed-tensors", (9, 0)).refusals
    (finding,) = run(ROW, int8, "compressed-tensors", (10, 0)).refusals
    assert (finding.code, finding.question) == ("KN005", "right")


def test_other_platforms_are_not_judged() -> None:
    choice = choose(ROW, W4, "compressed-tensors", "BF16", None, VLLM, platform="rocm")
    assert not choice.known


def test_the_older_version_answers_too() -> None:
    old = load("vllm", "0.32.0")
    assert (
        run(ROW, BLOCK, "fp8", (10, 0), profile=old, model_type="qwen3_5_text").chosen
        == "CutlassFp8BlockScaledMMKernel"
    )
    assert run(EXPERTS, BLOCK, "fp8", (10, 0), profile=old, model_type="qwen3_5_moe_text").chosen == "DEEPGEMM"
    assert run(EXPERTS, BLOCK, "fp8", (10, 0), model_type="qwen3_5_moe_text").chosen == "TRITON"


QUARK_FP8 = Scheme("quark", "fp8", 8, "float", "tensor", activation="static", activation_bits=8)
QUARK_MX = Scheme("quark", "mxfp4", 4, "mx", "group", 32, activation="dynamic", activation_bits=4)
MXFP8 = Scheme("modelopt", "MXFP8", 8, "mx", "group", 32, activation="dynamic", activation_bits=8)
ROUND = Scheme("gptq", "gptq", 4, "int", "group", 32)


@pytest.mark.parametrize(
    ("scheme", "quant", "cc", "label"),
    [
        (QUARK_FP8, "quark", (9, 0), "QuarkW8A8Fp8MoEMethod/TRITON"),
        (QUARK_FP8, "quark", (8, 0), "QuarkW8A8Fp8MoEMethod/MARLIN"),
        (QUARK_MX, "quark", (10, 0), "QuarkOCP_MX_MoEMethod/CUTLASS_MXFP4_MXFP4"),
        (QUARK_MX, "quark", (9, 0), "QuarkOCP_MX_MoEMethod/HUMMING"),
        (QUARK_MX, "quark", (8, 0), "QuarkOCP_MX_MoEMethod/MARLIN"),
        (MXFP8, "modelopt_mxfp8", (10, 0), "ModelOptMxFp8FusedMoE/DEEPGEMM"),
        (MXFP8, "modelopt_mxfp8", (9, 0), "ModelOptMxFp8FusedMoE/HUMMING"),
        (ROUND, "inc", (8, 0), "AutoGPTQMoEMethod/MARLIN"),
    ],
)
def test_other_methods_of_experts(scheme: Scheme, quant: str, cc: tuple[int, int], label: str) -> None:
    assert run(EXPERTS, scheme, quant, cc).label == label


def test_autoround_experts_want_whole_tiles() -> None:
    """96 is three groups of 32, but no multiple of Marlin's 64."""
    cut = replace(EXPERTS, parts=(96, 96), parts_full=(768, 768), tp=8)
    assert run(cut, ROUND, "inc", (8, 0)).label == "MoeWNA16Method/TRITON"
    assert run(cut, ROUND, "auto_gptq", (8, 0)).label == "AutoGPTQMoEMethod/MARLIN"


def test_quark_blocks_share_the_least_capability() -> None:
    block = Scheme("quark", "fp8", 8, "float", "block", 128, (128, 128), activation="dynamic", activation_bits=8)
    assert (
        run(ROW, block, "quark", (9, 0)).label
        == "QuarkLinearMethod/QuarkW8A8Fp8PerBlock/DeepGemmFp8BlockScaledMMKernel"
    )
    assert [finding.code for finding in run(ROW, block, "quark", (8, 0)).refusals] == ["KN003"]
