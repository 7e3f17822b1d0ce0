"""Damage of every kind is found and named; sound files of every format are left in peace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mlload.checkpoint.finding import Finding
from tests.validators.build import (
    AWQ,
    FP8_BLOCK,
    FP8_STATIC,
    GPTQ,
    LLAMA,
    NVFP4,
    QWEN3_MOE,
    W4A16,
    Tensors,
    awq,
    fp8_block,
    fp8_static,
    gptq,
    llama,
    nvfp4,
    quantized,
    w4a16,
)  # fmt: skip
from tests.validators.deep.build import judged, only, sound, write

Damage = Callable[[dict[str, torch.Tensor]], None]
DOWN = "model.layers.2.mlp.down_proj"


def plain(tmp_path: Path, damage: Damage, **options: Any) -> Any:
    tensors = sound(llama())
    damage(tensors)
    return judged(write(tmp_path / "m", LLAMA, tensors), **options)


def packed(
    tmp_path: Path,
    quant: dict[str, Any],
    how: Callable[[int, int], Tensors],
    damage: Damage = lambda tensors: None,
    config: dict[str, Any] = LLAMA,
    **options: Any,
) -> Any:
    tensors = sound(quantized(llama(config), how))
    damage(tensors)
    return judged(write(tmp_path / "m", config, tensors, quant), **options)


FORMATS: dict[str, tuple[dict[str, Any], Callable[[int, int], Tensors]]] = {
    "awq": (AWQ, awq),
    "gptq": (GPTQ, gptq),
    "fp8-block": (FP8_BLOCK, fp8_block),
    "fp8-static": (FP8_STATIC, fp8_static),
    "nvfp4": (NVFP4, nvfp4),
    "w4a16": (W4A16, w4a16),
}


def test_a_sound_model_has_no_findings(tmp_path: Path) -> None:
    assert plain(tmp_path, lambda tensors: None) == ((), ())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE], ids=["dense", "experts"])
def test_sound_quantized_models_have_no_findings(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    assert packed(tmp_path, *FORMATS[name], config=config) == ((), ())


def test_nan_and_infinity_are_counted_and_placed(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight"].view(-1)[[70, 9000]] = float("nan")
        tensors["model.layers.3.mlp.down_proj.weight"].view(-1)[5] = float("-inf")

    found = only(plain(tmp_path, damage))
    assert (found.code, found.severity, found.question) == ("DP001", "error", "content")
    assert found.where == "model.layers.2-3.mlp.down_proj.weight"
    assert (found.numbers["nan"], found.numbers["inf"], found.numbers["element"]) == (2, 1, 70)
    assert found.numbers["elements"] == 2 * 256 * 512


@pytest.mark.parametrize(
    ("name", "tensor", "question"),
    [
        ("nvfp4", "weight_scale", "starts"),  # the engine takes it for a scale that it never loaded
        ("nvfp4", "weight_scale_2", "content"),
        ("fp8-block", "weight_scale_inv", "content"),
        ("awq", "scales", "content"),
        ("w4a16", "weight_scale", "content"),
    ],
)
def test_nan_among_scales(tmp_path: Path, name: str, tensor: str, question: str) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        scale = tensors[f"{DOWN}.{tensor}"]
        scale.reshape(-1).view(torch.uint8)[: scale.element_size()] = 0xFF

    found = only(packed(tmp_path, *FORMATS[name], damage))
    assert (found.code, found.question) == ("DP002", question)
    assert found.numbers["first"] == f"{DOWN}.{tensor}"


def test_a_flipped_exponent_bit_is_far_too_large(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight"].view(-1)[3] = -3e30

    found = judged_codes(plain(tmp_path, damage))
    assert set(found) == {"DP006", "DP014"}
    assert found["DP006"].numbers["largest"] == pytest.approx(-3e30, rel=0.01)
    assert found["DP014"].severity == "info"  # it is served in bfloat16


def test_a_scale_far_too_large(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight_scale_2"] = torch.tensor(3e38)

    assert only(packed(tmp_path, *FORMATS["nvfp4"], damage)).code == "DP006"


def judged_codes(found: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in found.findings}


@pytest.mark.parametrize("value", [65520.0, -65536.0, 7e4])
def test_beyond_float16_where_it_is_served_so(tmp_path: Path, value: float) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
        tensors["model.norm.weight"][7] = value

    found = only(plain(tmp_path, damage, dtype="half"))
    assert torch.tensor(value).half().isinf()
    assert (found.code, found.severity) == ("DP014", "error")


def test_near_the_end_of_float16(tmp_path: Path) -> None:
    """A vision tower's buffer of -53,760 fits; the subtraction of it does not."""

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][7] = -53760.0

    found = only(plain(tmp_path / "half", damage, dtype="half"))
    assert (found.code, found.severity, found.numbers["largest"]) == ("DP015", "warning", -53760.0)
    assert plain(tmp_path / "bf16", damage) == ((), ())


def test_zero_block_scales_over_weights_that_are_not(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        scale, weight = tensors[f"{DOWN}.weight_scale"], tensors[f"{DOWN}.weight"]
        scale.view(torch.uint8)[9, 4] = 0
        weight[9, 32:40] = 0x80  # 16 codes of 0 and -0: nothing is lost
        scale.view(torch.uint8)[20, 1] = 0

    found = only(packed(tmp_path, *FORMATS["nvfp4"], damage))
    assert (found.code, found.severity) == ("DP003", "error")
    assert found.numbers["zeros"] == 2
    assert found.numbers["element"] == 20 * (512 // 16) + 1


@pytest.mark.parametrize("name", ["nvfp4", "fp8-block", "awq", "gptq", "w4a16"])
def test_zero_scales_over_zero_weights_are_right(tmp_path: Path, name: str) -> None:
    """The box under scale [1, 1], by each format's own layout; then one code in its last corner."""
    suffix = {"nvfp4": "weight_scale", "fp8-block": "weight_scale_inv", "w4a16": "weight_scale"}.get(name, "scales")

    def empty(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.{suffix}"][1, 1] = 0
        if name == "nvfp4":
            tensors[f"{DOWN}.weight"][1, 8:16] = 0
        elif name == "fp8-block":
            tensors[f"{DOWN}.weight"].view(torch.uint8)[128:256, 128:256] = 0x80
        elif name == "awq":  # one word holds eight columns, of which only the second has the zero scale
            tensors[f"{DOWN}.qweight"][128:256, 0] = 0x11111111
        elif name == "gptq":
            tensors[f"{DOWN}.qweight"][16:32, 1] = int("88888888", 16) - 2**32
        else:
            tensors[f"{DOWN}.weight_packed"][1, 16:32] = int("88888888", 16) - 2**32

    def corner(tensors: dict[str, torch.Tensor]) -> None:
        empty(tensors)
        if name == "nvfp4":
            tensors[f"{DOWN}.weight"][1, 15] = 0x10
        elif name == "fp8-block":
            tensors[f"{DOWN}.weight"].view(torch.uint8)[255, 255] = 1
        elif name == "awq":
            tensors[f"{DOWN}.qweight"][255, 0] = 0x11111112
        elif name == "gptq":
            tensors[f"{DOWN}.qweight"][31, 1] = 7
        else:
            tensors[f"{DOWN}.weight_packed"][1, 31] = 7

    assert packed(tmp_path / "empty", *FORMATS[name], empty) == ((), ())
    assert only(packed(tmp_path / "corner", *FORMATS[name], corner)).code == "DP003"


def test_an_input_scale_of_zero(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.input_scale"] = torch.tensor(0.0)

    found = only(packed(tmp_path, *FORMATS["fp8-static"], damage))
    assert (found.code, found.where) == ("DP003", f"{DOWN}.input_scale")


def test_placeholder_and_denormal_scales(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.scales"][:] = 0.031  # no power of two
        tensors["model.layers.1.mlp.up_proj.scales"][:] = 0.25  # one, as rounding to powers of two gives
        tensors["model.layers.0.mlp.up_proj.scales"][:, :100] = 2.0**-20

    found = judged_codes(packed(tmp_path, *FORMATS["awq"], damage))
    assert set(found) == {"DP004", "DP005"}
    assert found["DP004"].where == f"{DOWN}.scales"
    assert found["DP005"].numbers["denormal"] == 100 * 256 // 128


def test_saturated_weights(tmp_path: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        weight = tensors[f"{DOWN}.weight"]
        tensors[f"{DOWN}.weight"] = (weight.float() * 4e4).clamp(-448, 448).to(weight.dtype)

    found = only(packed(tmp_path, *FORMATS["fp8-block"], damage))
    assert (found.code, found.severity) == ("DP007", "warning")
    # |N(0, 0.02)| * 40,000 beyond 448 (rounding begins at 432): all but about 41 %
    assert found.numbers["share"] == pytest.approx(1 - torch.erf(torch.tensor(432 / 800 / 2**0.5)).item(), abs=0.02)


def test_matrices_of_zeros_and_of_one_word(tmp_path: Path) -> None:
    def zero(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight"].zero_()
        tensors["model.norm.weight"].zero_()  # a norm that adds one may be stored so

    found = only(plain(tmp_path / "plain", zero))
    assert (found.code, found.where, found.numbers["bytes"]) == ("DP008", f"{DOWN}.weight", 256 * 512 * 2)

    def same(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.qweight"].fill_(0x11111111)

    found = only(packed(tmp_path / "awq", *FORMATS["awq"], same))
    assert (found.code, found.numbers["word"]) == ("DP008", 0x11111111)


def test_a_hole_across_rows_and_whole_rows_of_zeros(tmp_path: Path) -> None:
    def hole(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight"].view(-1)[1000:50_000] = 0

    found = only(plain(tmp_path / "hole", hole))
    assert (found.code, found.severity, found.numbers["first"]) == ("DP009", "error", f"{DOWN}.weight")
    assert abs(found.numbers["bytes"] - 2 * 49_000) <= 16

    def rows(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.weight"][100:250] = 0

    assert plain(tmp_path / "rows", rows) == ((), ())


@pytest.mark.parametrize(
    ("word", "label", "content"), [(0x88888888, "gptq", "gptq_v2"), (0x77777777, "gptq_v2", "gptq")]
)
def test_zero_points_under_the_other_label(tmp_path: Path, word: int, label: str, content: str) -> None:
    def zeros(tensors: dict[str, torch.Tensor], word: int = word) -> None:
        for name in tensors:
            if name.endswith("qzeros"):
                tensors[name].fill_(word - 2**32 if word >= 2**31 else word)

    found = only(packed(tmp_path / "other", {**GPTQ, "checkpoint_format": label}, gptq, zeros))
    assert (found.code, found.numbers["content"], found.numbers["tensors"]) == ("DP016", content, 4 * 7)
    assert packed(tmp_path / "right", {**GPTQ, "checkpoint_format": content}, gptq, zeros) == ((), ())


def test_zero_points_that_borrowed(tmp_path: Path) -> None:
    """z = 0 stored as z - 1: 0xF in its field, and whatever the subtraction took from the next."""

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.qzeros"][0, 3] = 0x777777F7 - 0x10  # field 1 is 0 - 1, field 2 lost one
        tensors[f"{DOWN}.qzeros"][0, 3] = 0x77777667  # sound again: 8, 7, 7, 8, ...
        tensors[f"{DOWN}.qzeros"][1, 5] = 0x777777FF - 2**8  # fields 0 and 1 are 0: 0x..76FF

    found = only(packed(tmp_path, {**GPTQ, "sym": False}, gptq, damage))
    word = (0x777777FF - 2**8 + 0x11111111) & 0xFFFFFFFF
    zeros = sum(word >> shift & 15 == 0 for shift in range(0, 32, 4))
    assert (found.code, found.numbers["zeros"], found.where) == ("DP017", zeros, f"{DOWN}.qzeros")
    assert zeros > 0


def test_group_numbers_against_desc_act(tmp_path: Path) -> None:
    def reorder(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.g_idx"] = tensors[f"{DOWN}.g_idx"].flip(0).contiguous()

    found = only(packed(tmp_path / "wrong", GPTQ, gptq, reorder))
    assert (found.code, found.severity, found.numbers["wrong"]) == ("DP018", "error", 512)
    found = only(packed(tmp_path / "needless", {**GPTQ, "desc_act": True}, gptq))
    assert (found.code, found.severity) == ("DP018", "info")
    assert packed(tmp_path / "real", {**GPTQ, "desc_act": True}, gptq, reorder) == ((), ())

    def outside(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{DOWN}.g_idx"][511] = 4

    found = judged_codes(packed(tmp_path / "outside", {**GPTQ, "desc_act": True}, gptq, outside))["DP021"]
    assert (found.numbers["group"], found.numbers["groups"]) == (4, 4)


def test_experts_that_were_never_calibrated(tmp_path: Path) -> None:
    def ones(tensors: dict[str, torch.Tensor], spare: str = "") -> None:
        for name in tensors:
            if name.endswith("input_scale") and ".experts." in name and name != spare:
                tensors[name] = torch.tensor(1.0)

    found = only(packed(tmp_path / "all", NVFP4, nvfp4, ones, QWEN3_MOE))
    assert (found.code, found.numbers["scales"]) == ("DP019", 2 * 8 * 3)
    spare = "model.layers.1.mlp.experts.7.up_proj.input_scale"
    assert packed(tmp_path / "one", NVFP4, nvfp4, lambda tensors: ones(tensors, spare), QWEN3_MOE) == ((), ())


@pytest.mark.parametrize("tie", [True, False])
def test_head_and_embedding(tmp_path: Path, tie: bool) -> None:
    config = {**LLAMA, "tie_word_embeddings": tie}
    tensors = sound(llama(config))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    found = only(judged(write(tmp_path / "same", config, tensors)))
    assert (found.code, found.severity, found.numbers["bytes"]) == ("DP020", "info", 512 * 256 * 2)
    tensors["lm_head.weight"].view(-1)[70_000] += 1
    other = judged(write(tmp_path / "other", config, tensors))
    assert [(f.severity, f.numbers["first_difference"] // 2) for f in other.findings] == [("warning", 70_000)] * tie


def test_two_names_of_one_storage_are_no_copy(tmp_path: Path) -> None:
    """torch.save keeps a tied head as a second name of the same bytes; what is seen counts for both."""
    tensors = sound(llama({**LLAMA, "tie_word_embeddings": True}))
    tensors["model.embed_tokens.weight"].view(-1)[3] = float("inf")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    folder = write(tmp_path / "m", {**LLAMA, "tie_word_embeddings": True}, sound(llama()))
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    found = only(judged(folder))
    assert (found.code, found.numbers["tensors"], found.numbers["inf"]) == ("DP001", 2, 2)
