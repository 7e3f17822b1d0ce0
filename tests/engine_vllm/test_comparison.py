"""Prediction against fact, row by row."""

from __future__ import annotations

from typing import Any

from mlload.checkpoint.finding import Finding
from mlload.engine.vllm.comparison import Row, compare
from mlload.engine.vllm.prediction import Prediction
from mlload.engine.vllm.session import Outcome
from mlload.engine.vllm.tokens import Tokens
from mlload.kernels.choice import Choice
from mlload.plan.unknowns import Unknown
from mlload.validators.verdict import combine

LINEAR = "QKVParallelLinear[qkv_proj]"
REFUSAL = Finding("TP001", "error", "starts", "attention", "9 heads do not divide by tp 2: 9 % 2 = 1", {})


def prediction(**more: Any) -> Prediction:
    fields: dict[str, Any] = {
        "verdict": combine([], []),
        "ranks": ({"rank": 0, "disk_bytes": 1000, "weight_bytes": 1000, "kv_bytes_per_token": 4},),
        "kernels": (Choice(LINEAR, (8, 8), "Fp8LinearMethod", "MarlinFP8ScaledMMLinearKernel", "vllm"),),
        "tokens": Tokens(4096, 4096),
    }
    return Prediction("0.33.0", **{**fields, **more})


def outcome(weights: int = 1000, moved: int = 0, tokens: int = 4096, label: str = "") -> Outcome:
    kernel = label or "Fp8LinearMethod/MarlinFP8ScaledMMLinearKernel"
    rank = {"rank": 0, "parameter_bytes": weights, "moved_bytes": moved,
            "kernels": [{"layers": LINEAR, "label": kernel, "count": 2}]}  # fmt: skip
    found = Outcome(events={"up": {}, "holds": {"ranks": [rank]}, "done": {}})
    found.log.numbers["kv_tokens"] = float(tokens)
    return found


def rows(*args: Any) -> dict[str, Row]:
    return {row.what: row for row in compare(*args)}


def test_all_as_predicted() -> None:
    found = rows(prediction(), outcome())
    assert list(found) == ["verdict", "weight_bytes", "kv_tokens", "kernel"]
    assert all(row.agrees for row in found.values())
    assert found["weight_bytes"].difference == found["kv_tokens"].difference == 0


def test_what_a_library_took_over_counts() -> None:
    assert rows(prediction(), outcome(weights=600, moved=400))["weight_bytes"].measured == 1000


def test_what_stands_beside_weights_is_noted() -> None:
    found = outcome()
    found.events["holds"]["ranks"][0].update(copied_bytes=2048, device_bytes=5000)
    note = rows(prediction(), found)["weight_bytes"].note
    assert note == "2,048 bytes more in copies that its kernels made; 5,000 bytes of the device by its own count"


def test_differences_are_told() -> None:
    found = rows(
        prediction(), outcome(weights=1011, tokens=4000, label="Fp8LinearMethod/CutlassFP8ScaledMMLinearKernel")
    )
    assert (found["weight_bytes"].difference, found["weight_bytes"].agrees) == (11, False)
    assert (found["kv_tokens"].difference, found["kv_tokens"].agrees) == (-96, False)
    assert found["kernel"].agrees is False
    # A vector more in a kernel's layout is told, and no fault of the prediction.
    small = rows(prediction(), outcome(weights=1010))["weight_bytes"]
    assert (small.difference, small.agrees) == (10, True)


def test_a_range_holds_what_is_within() -> None:
    within = prediction(tokens=Tokens(4000, 5000))
    assert rows(within, outcome())["kv_tokens"][2:6] == ([4000, 5000], 4096, 0, True)
    assert rows(within, outcome(tokens=5300))["kv_tokens"].difference == 300
    assert rows(within, outcome(tokens=3900))["kv_tokens"].difference == -100


def test_a_refusal_that_was_predicted() -> None:
    refused = Outcome(events={"imported": {}})
    found = rows(prediction(verdict=combine([REFUSAL], [])), refused)
    assert found["verdict"] == Row("verdict", "", "refuses", "refuses", None, True, f"TP001 {REFUSAL.message}")
    assert found["weight_bytes"].measured is None and found["weight_bytes"].agrees is None


def test_a_refusal_that_was_not() -> None:
    assert rows(prediction(), Outcome(events={"imported": {}}))["verdict"].agrees is False
    assert rows(prediction(verdict=combine([REFUSAL], [])), outcome())["verdict"].agrees is False


def test_what_was_not_known_is_not_held_against_anybody() -> None:
    unknown = prediction(verdict=combine([], [Unknown("architecture", "nobody knows it", "")]))
    row = rows(unknown, outcome())["verdict"]
    assert (row.predicted, row.agrees, row.note) == ("cannot say", None, "architecture: nobody knows it")
    # Ended from outside, it neither started nor refused.
    late = Outcome(timed_out=True)
    assert rows(prediction(), late)["verdict"][3:6] == (None, None, None)


def test_nothing_predicted() -> None:
    (row,) = compare(Prediction("", "no profile of vLLM 0.40"), outcome())
    assert row == Row("verdict", "", None, "starts", None, None, "no profile of vLLM 0.40")
