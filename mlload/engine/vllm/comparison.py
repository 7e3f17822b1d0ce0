"""Prediction against fact: every number that `validate` gives beside what the engine did."""

from __future__ import annotations

from typing import Any, NamedTuple

from mlload.engine.vllm.prediction import Prediction
from mlload.engine.vllm.session import Outcome

# Kernels keep weights in layouts of their own, with padding and a few more vectors.
BYTES_SLACK = 0.01
SAYS = {True: "starts", False: "refuses", None: "cannot say"}


class Row(NamedTuple):
    """what:       "verdict", "weight_bytes", "kv_tokens" or "kernel"
    where:      "rank 0", "QKVParallelLinear[qkv_proj]", "" for the whole
    predicted, measured: of the same kind; None where one of them is not known
    difference: measured - predicted, None of words; of a range, how far outside of it
    agrees:     None where there is nothing to compare
    note:       why something is missing, or what stands beside it
    """

    what: str
    where: str
    predicted: Any
    measured: Any
    difference: float | None
    agrees: bool | None
    note: str = ""


def compare(prediction: Prediction, outcome: Outcome) -> list[Row]:
    """One row for each number that was predicted."""
    if prediction.missing or prediction.verdict is None:
        started = SAYS[outcome.started] if not outcome.timed_out else None
        return [Row("verdict", "", None, started, None, None, prediction.missing)]
    return [verdict(prediction, outcome), *weights(prediction, outcome), tokens(prediction, outcome),
            *kernels(prediction, outcome)]  # fmt: skip


def verdict(prediction: Prediction, outcome: Outcome) -> Row:
    assert prediction.verdict is not None
    starts = prediction.verdict.starts
    known = not outcome.timed_out
    agrees = None if starts is None or not known else starts is outcome.started
    reasons = [f"{finding.code} {finding.message}" for finding in prediction.errors if finding.question == "starts"]
    if not reasons and starts is None:
        reasons = [f"{unknown.what}: {unknown.why}" for unknown in prediction.verdict.unknowns]
    return Row("verdict", "", SAYS[starts], SAYS[outcome.started] if known else None, None, agrees, "; ".join(reasons))


def weights(prediction: Prediction, outcome: Outcome) -> list[Row]:
    """Bytes of each rank's weights: those that torch sees, and on a CPU those that oneDNN took over."""
    measured = {rank["rank"]: rank for rank in outcome.events.get("holds", {}).get("ranks", [])}
    rows = []
    for rank in prediction.ranks:
        expected, held = rank["weight_bytes"], measured.get(rank["rank"])
        found = None if held is None else held["parameter_bytes"] + held["moved_bytes"]
        difference = None if found is None else found - expected
        agrees = None if difference is None else abs(difference) <= BYTES_SLACK * expected
        rows.append(Row("weight_bytes", f"rank {rank['rank']}", expected, found, difference, agrees, beside(held)))
    return rows


def beside(held: dict[str, Any] | None) -> str:
    """What else the rank's weights take: second copies, and what the engine counts on its device."""
    notes = []
    if held is not None and held.get("copied_bytes"):
        notes.append(f"{held['copied_bytes']:,} bytes more in copies that its kernels made")
    if held is not None and held.get("device_bytes"):
        notes.append(f"{held['device_bytes']:,} bytes of the device by its own count")
    return "; ".join(notes)


def measured_tokens(outcome: Outcome) -> int | None:
    """What the engine says of its cache; it counts in requests of the longest length."""
    said = outcome.log.numbers.get("kv_tokens")
    return None if said is None else int(said)


def tokens(prediction: Prediction, outcome: Outcome) -> Row:
    found = measured_tokens(outcome)
    if prediction.tokens is None:
        return Row("kv_tokens", "", None, found, None, None, prediction.tokens_missing)
    low, high = prediction.tokens
    expected: Any = low if low == high else [low, high]
    if found is None:
        return Row("kv_tokens", "", expected, None, None, None)
    difference = found - low if found < low else found - high if found > high else 0
    return Row("kv_tokens", "", expected, found, difference, difference == 0)


def kernels(prediction: Prediction, outcome: Outcome) -> list[Row]:
    """Method, scheme and kernel of each kind of layer by the names of the engine's own classes, as its objects say;
    all ranks choose alike, and the first one is asked."""
    ranks = outcome.events.get("holds", {}).get("ranks", [])
    measured: dict[str, list[str]] = {}
    for row in ranks[0]["kernels"] if ranks else ():
        measured.setdefault(row["layers"], []).append(row["label"])
    rows = []
    for choice in prediction.kernels:
        expected = choice.label if choice.known else None
        found = measured.get(choice.layers)
        # A tied head has no layer of its own in some classes: nothing is there to compare with.
        agrees = None if expected is None or found is None else expected in found
        note = "" if choice.known else "the choice for this layer is not known to validate"
        rows.append(Row("kernel", choice.layers, expected, ", ".join(found) if found else None, None, agrees, note))
    return rows
