"""Findings about the numbers of weights: what is no number, too large, all zero, or beyond float16."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.plan import Plan
from mlload.validators.deep.again import fetch_again
from mlload.validators.deep.numbers import NUMBERS
from mlload.validators.deep.report import finding, tensors
from mlload.validators.deep.scan import Scan
from mlload.validators.deep.seen import Seen

HUGE = 1e6
HUGE_SCALE = 1e12  # some formats store 448 * 6 / the largest weight
LARGEST_F16 = 65504.0
OVERFLOWS_F16 = 65520.0  # from here on values round to infinity
NEAR_F16 = LARGEST_F16 / 2  # two of them may not be added
WIDER = frozenset({"BF16", "F32", "F64"})
# Share of the codes at the ends of their range that no sound quantization gives. A group's own largest value is
# always there: one in 16 to 64 for 4 bits.
SATURATED = {"e4m3": 0.05, "int8": 0.05, "int4": 0.5, "fp4": 0.5}
MIN_SAMPLE = 4096
MIN_MATRIX = 64  # elements


def values(scan: Scan, name: str) -> tuple[float, float]:
    """The largest finite magnitudes above and below zero."""
    number, seen = scan.hows[name].number, scan.tensors[name]
    if number is None:
        return 0.0, 0.0
    return number.value(seen.positive), number.value(seen.negative)


def largest(scan: Scan, name: str) -> float:
    """The value farthest from zero, with its sign."""
    positive, negative = values(scan, name)
    return positive if positive >= negative else -negative


def not_finite(scan: Scan, checkpoint: Checkpoint, plan: Plan | None) -> Iterator[Finding]:
    """Weights and scales apart; scales that make the engine refuse are an answer to another question."""
    weights: list[str] = []
    scales: list[str] = []
    refused: list[str] = []
    for name, seen in scan.tensors.items():
        if seen.nan or seen.inf:
            if scan.hows[name].kind in ("scale", "blocks"):
                (refused if refuses_nan(scan, name, seen, plan) else scales).append(name)
            else:
                weights.append(name)
    for code, question, names, what in (
        ("DP002", "starts", refused, "scales"),
        ("DP001", "content", weights, "values"),
        ("DP002", "content", scales, "scales"),
    ):
        if names:
            yield _not_finite(scan, checkpoint, code, question, names, what)


def refuses_nan(scan: Scan, name: str, seen: Seen, plan: Plan | None) -> bool:
    """vLLM 0.33 looks for the NaN that it filled the block scales of NVFP4 linears with
    (layers/quantization/modelopt.py:2076)."""
    role = scan.roles[name]
    if plan is None or plan.profile.engine != "vllm" or not seen.nan or role.scheme is None or role.spec is None:
        return False
    nvfp4 = role.scheme.format == "modelopt" and role.scheme.layout in ("NVFP4", "W4A16_NVFP4")
    return nvfp4 and role.role == "scale" and role.spec.op == "linear" and role.spec.experts is None


def _not_finite(scan: Scan, checkpoint: Checkpoint, code: str, question: str, names: list[str], what: str) -> Finding:
    found = [scan.tensors[name] for name in names]
    nan, inf, elements = (sum(getattr(seen, key) for seen in found) for key in ("nan", "inf", "elements"))
    first = found[0].first_bad or 0
    message = (
        f"{nan:,} NaN and {inf:,} infinite among {elements:,} {what} in {tensors(len(names))}; "
        f"the first is element {first:,} of {names[0]}"
    )
    if question == "starts":
        message += ": vLLM takes them for scales that were never loaded, and refuses to start"
    numbers = {"nan": nan, "inf": inf, "elements": elements, "first": names[0], "element": first}
    return finding(
        code,
        "error",
        "starts" if question == "starts" else "content",
        names,
        message,
        (fetch_again(checkpoint, names[0]),),
        **numbers,
    )


def too_large(scan: Scan, checkpoint: Checkpoint) -> Iterator[Finding]:
    limits = {"float": HUGE, "scale": HUGE_SCALE}
    names = [
        name
        for name in scan.tensors
        if (limit := limits.get(scan.hows[name].kind)) is not None and abs(largest(scan, name)) > limit
    ]
    if names:
        worst = max(names, key=lambda name: abs(largest(scan, name)))
        limit = limits[scan.hows[worst].kind]
        message = f"{tensors(len(names))} with values beyond {limit:,.0f}: {worst} reaches {largest(scan, worst):.4g}"
        numbers = {"largest": largest(scan, worst), "first": worst}
        yield finding("DP006", "warning", "content", names, message, (fetch_again(checkpoint, worst),), **numbers)


def saturated(scan: Scan) -> Iterator[Finding]:
    for codes, limit in SATURATED.items():
        found = {}
        for name, seen in scan.tensors.items():
            how, role = scan.hows[name], scan.roles[name]
            # Scales that are rounded down to powers of two clip by design.
            if (
                how.codes != codes
                or seen.sampled < MIN_SAMPLE
                or (role.scheme is not None and role.scheme.kind == "mx")
            ):
                continue
            share = seen.saturated / seen.sampled
            if share > limit and not seen.constant:
                found[name] = share
        if found:
            worst = max(found, key=lambda name: found[name])
            message = (
                f"{tensors(len(found))} with more than {limit:.0%} of the codes at the end of their range: "
                f"{found[worst]:.0%} of {worst}"
            )
            numbers = {"share": round(found[worst], 4), "limit": limit, "first": worst}
            hint = Hint("quantize again with scales from the largest values", needs="original weights")
            yield finding("DP007", "warning", "right", list(found), message, (hint,), **numbers)


def all_zero(scan: Scan, checkpoint: Checkpoint) -> Iterator[Finding]:
    zero, same = [], []
    for name, seen in scan.tensors.items():
        if not is_matrix(scan, name, checkpoint.tensors[name]):
            continue
        if seen.all_zero:
            zero.append(name)
        elif scan.hows[name].kind == "bits" and seen.constant:
            same.append(name)
    if zero:
        nbytes = sum(scan.tensors[name].nbytes for name in zero)
        message = f"{tensors(len(zero))} of nothing but zeros, {nbytes:,} bytes: {zero[0]}"
        yield finding(
            "DP008",
            "warning",
            "content",
            zero,
            message,
            (fetch_again(checkpoint, zero[0]),),
            bytes=nbytes,
            first=zero[0],
        )
    if same:
        word = scan.tensors[same[0]].low or 0
        message = f"{tensors(len(same))} in which every stored word is the same: {word:#x} in {same[0]}"
        yield finding(
            "DP008", "warning", "content", same, message, (fetch_again(checkpoint, same[0]),), word=word, first=same[0]
        )


def is_matrix(scan: Scan, name: str, ref: TensorRef) -> bool:
    """A weight of at least two dims; vectors and biases may well be all zero."""
    role = scan.roles[name]
    known = role.role == "weight" and (role.spec is None or role.spec.op != "norm")
    guessed = not role.role and ref.dtype in NUMBERS
    return (known or guessed) and len(ref.shape) >= 2 and prod(ref.shape) >= MIN_MATRIX


def beyond_float16(scan: Scan, checkpoint: Checkpoint, plan: Plan | None) -> Iterator[Finding]:
    """Certain trouble where the engine computes in float16; a remark elsewhere."""
    over, near = [], []
    for name in scan.tensors:
        spec = scan.roles[name].spec
        if (
            scan.hows[name].kind != "float"
            or checkpoint.tensors[name].dtype not in WIDER
            or (spec and spec.dtype == "F32")
        ):
            continue
        size = abs(largest(scan, name))
        if size >= OVERFLOWS_F16:
            over.append(name)
        elif size > NEAR_F16:
            near.append(name)
    half = plan is not None and plan.dtype == "F16"
    if over:
        worst = max(over, key=lambda name: abs(largest(scan, name)))
        outcome = "they become infinite" if half else "with --dtype float16 they would become infinite"
        message = f"{tensors(len(over))} beyond {LARGEST_F16:,.0f}, {worst} at {largest(scan, worst):,.6g}: {outcome}"
        hint = Hint("serve in bfloat16", "--dtype bfloat16")
        numbers = {"largest": largest(scan, worst), "limit": LARGEST_F16, "first": worst}
        yield finding("DP014", "error" if half else "info", "right", over, message, (hint,), **numbers)
    if near and half:
        worst = max(near, key=lambda name: abs(largest(scan, name)))
        message = (
            f"{tensors(len(near))} with values above {NEAR_F16:,.0f}, {worst} at {largest(scan, worst):,.6g}: they fit "
            f"float16 (up to {LARGEST_F16:,.0f}), sums and differences of them may not"
        )
        numbers = {"largest": largest(scan, worst), "limit": LARGEST_F16, "first": worst}
        hint = Hint("serve in bfloat16", "--dtype bfloat16")
        yield finding("DP015", "warning", "right", near, message, (hint,), **numbers)
