"""Findings about tensors that no module of the architecture claims.

vLLM refuses a name that its class does not know ("There is no module or parameter named ...",
model_executor/models/utils.py, `AutoWeightsLoader`), except for biases, rotary tables, and what each class drops.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from mlload.checkpoint.config import TEXT_KEYS
from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.completeness import Gap
from mlload.plan.fold import counted, fold_names, fold_numbers

MOST_MOVES = 4  # prefixes that are looked for
# Dropped or ignored by the loader of every class.
DROPPED_SUFFIXES = (
    ".bias",
    "_bias",
    ".inv_freq",
    ".cos_cached",
    ".sin_cached",
    ".masked_bias",
    ".num_batches_tracked",
    ".position_ids",
)
# ... and of quantized models only.
DROPPED_QUANTIZED = ("q_scale", "k_scale", "v_scale", "q_zero_point", "k_zero_point", "v_zero_point", ".g_idx")
# Scales that these classes pass over where they have no place for them (their `load_weights`).
SCALES = (".weight_scale", "_weight_scale", ".input_scale", "_input_scale")
LENIENT = frozenset({"qwen3_moe", "exaone_moe", "laguna"})
# Parts of composite models that some classes drop and some refuse. A class without a tower refuses the second kind,
# except those that exist with and without one.
OTHER_PARTS = re.compile(
    r"(^|\.)(\w*mtp\w*|eagle\w*|lora\w*|quantizer|\w*_quantizer|pooler|score|classifier|time_series)(\.|$)"
)
MODALITIES = re.compile(
    r"(^|\.)(talker|token2wav|code2wav|tts|apm|audio\w*|vision\w*|visual|vit\w*|embed_audio|embed_vision)(\.|$)"
)
TEXT_ALONE = frozenset({"gemma3n", "gemma3n_text", "gemma4", "gemma4_text"})
# Model types whose classes leave draft layers under names of their own to speculative decoding.
DRAFT_PARTS = re.compile(r"(^|\.)\w*mtp\w*(\.|$)")
DRAFTS = frozenset(
    {
        "alice_ai",
        "ernie4_5_moe",
        "exaone4",
        "exaone4_5",
        "exaone_moe",
        "longcat_flash",
        "mimo",
        "nemotron_h",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    }
)
DRAFT_KEYS = re.compile(r"nextn|mtp")


def moved_blocks(
    gaps: Sequence[Gap], left: Sequence[TensorRef], sure: bool
) -> tuple[list[Finding], list[Gap], list[TensorRef]]:
    """Blocks that lie in the files under another prefix than the model class asks for."""
    missing = {name: gap for gap in gaps for name in gap.names}
    there = {ref.name for ref in left}
    findings: list[Finding] = []
    prefixes: list[str] = []
    for _ in range(MOST_MOVES):
        move = _move(list(missing), there)
        if move is None:
            break
        ours, theirs = move
        under = [name for name in missing if name.startswith(ours)]
        moved = {name for name in under if theirs + name[len(ours) :] in there}
        block = (ours or "the model").rstrip(".")
        findings.append(
            Finding(
                "TN005",
                "error",
                "starts" if sure else "right",
                theirs.rstrip(".") or block,
                f"{len(moved):,} of {len(under):,} tensors that the model class expects under {ours or 'no prefix'!r} "
                f"are stored under {theirs or 'no prefix'!r} ({100 * len(moved) // len(under)} %), and none is found",
                {"expected_prefix": ours, "stored_prefix": theirs, "count": len(moved)},
                (
                    Hint(f"rename the tensors: {theirs or '(nothing)'} becomes {ours or '(nothing)'}"),
                    Hint("or name in config.json the model class that was saved (architectures, model_type)"),
                ),
            )
        )
        there -= {theirs + name[len(ours) :] for name in moved}
        prefixes.append(theirs)
        for name in moved:
            del missing[name]
    if not findings:
        return [], list(gaps), list(left)
    rest = [gap for gap in gaps if any(name in missing for name in gap.names)]
    # What lies under such a prefix besides (draft layers) needs no word of its own.
    told = tuple(prefix for prefix in prefixes if prefix)
    return findings, rest, [ref for ref in left if ref.name in there and not ref.name.startswith(told)]


def _move(missing: Sequence[str], there: Collection[str]) -> tuple[str, str] | None:
    """(prefix expected, prefix stored) that explains nine in ten of what is missing under the first."""
    ends: dict[str, list[str]] = {}
    for name in there:
        ends.setdefault(_end(name), []).append(name)
    tried: set[str] = set()
    for name in missing:
        root = name.partition(".")[0]
        if root in tried:
            continue
        tried.add(root)
        parts = name.split(".")
        for drop in range(len(parts) - 1):
            tail = ".".join(parts[drop:])
            ours = name[: len(name) - len(tail)]
            for other in ends.get(_end(name), ()):
                theirs = other[: len(other) - len(tail)]
                if other != theirs + tail or (theirs and not theirs.endswith(".")) or theirs == ours:
                    continue
                if any(part.isdigit() for part in (ours + theirs).split(".")):
                    continue
                under = [one for one in missing if one.startswith(ours)]
                moved = sum(theirs + one[len(ours) :] in there for one in under)
                if moved * 10 >= len(under) * 9:
                    return ours, theirs
    return None


def _end(name: str) -> str:
    return ".".join(name.rsplit(".", 2)[-2:])


def beyond_the_layers(
    left: Sequence[TensorRef], layers: Mapping[str, Collection[int]], config: Mapping[str, Any], sure: bool
) -> tuple[list[Finding], list[TensorRef]]:
    """Layers with a number that the config does not count, draft layers apart."""
    drafts = _drafts(config)
    over: dict[str, dict[int, int]] = {}
    rest: list[TensorRef] = []
    spare: list[str] = []
    for ref in left:
        head = next((h for h in layers if h and ref.name.startswith(h)), None)
        number = ref.name[len(head) :].partition(".")[0] if head is not None else ""
        last = max(layers[head]) + drafts if head is not None else 0
        if head is not None and number.isdigit() and len(number) < 9 and int(number) > last:
            counts = over.setdefault(head, {})
            counts[int(number)] = counts.get(int(number), 0) + 1
        elif head is not None and number.isdigit() and int(number) > last - drafts:
            spare.append(ref.name)
        else:
            rest.append(ref)
    findings = list(_left_out(spare, "of draft layers, which only speculative decoding loads"))
    for head, counts in over.items():
        declared, total = len(layers[head]), sum(counts.values())
        whole = sorted(counts) == list(range(max(layers[head]) + 1, max(counts) + 1))
        more = Hint(f'set "num_hidden_layers": {max(counts) + 1} if they belong to the model')
        findings.append(
            Finding(
                "TN007",
                "error" if sure else "warning",
                "starts" if sure else "right",
                counted(head + fold_numbers(counts), total),
                f"the files hold layers {fold_numbers(counts)} ({total:,} tensors), and config.json counts "
                f"{declared} layers: an engine has no place for them",
                {"layers": sorted(counts), "declared": declared, "count": total},
                (
                    *((more,) if whole else ()),
                    Hint("or leave these tensors out of the files, where the layers were cut on purpose"),
                ),
            )
        )
    return findings, rest


def _drafts(config: Mapping[str, Any]) -> int:
    """Draft layers that the config declares under any of its names."""
    scopes = [config, *(config[key] for key in TEXT_KEYS if isinstance(config.get(key), dict))]
    counts = [
        value
        for scope in scopes
        for key, value in scope.items()
        if isinstance(value, int) and not isinstance(value, bool) and DRAFT_KEYS.search(key)
    ]
    return max((count for count in counts if 0 < count < 1000), default=0)


def unexpected(
    left: Sequence[TensorRef], config: Mapping[str, Any], *, sure: bool, quantized: bool, towers: bool
) -> Iterator[Finding]:
    """The rest, folded: what every class drops is a remark, what some drop a warning, all else is refused."""
    dropped, drafts, other, refused = [], [], [], []
    passed: tuple[str, ...] = DROPPED_SUFFIXES
    if quantized:
        passed += DROPPED_QUANTIZED
    model_type = str(config.get("model_type") or "")  # somebody's JSON: not always a string
    if model_type in LENIENT:
        passed += SCALES
    several = towers or model_type in TEXT_ALONE
    for ref in left:
        name = ref.name
        if name.endswith(passed):
            dropped.append(name)
        elif model_type in DRAFTS and DRAFT_PARTS.search(name):
            drafts.append(name)
        elif not sure or OTHER_PARTS.search(name) or (several and MODALITIES.search(name)):
            other.append(name)
        else:
            refused.append(name)
    for where, count in fold_names(refused):
        yield Finding(
            "TN002",
            "error",
            "starts",
            counted(where, count),
            f"{_tensors(count)} in the files that the model class does not know: vLLM stops at the first",
            {"count": count},
            (Hint("leave these tensors out of the files, or serve the class that they belong to"),),
        )
    for where, count in fold_names(other):
        yield Finding(
            "TN002",
            "warning",
            "right",
            counted(where, count),
            f"{_tensors(count)} in the files that the architecture does not know: some model classes drop such parts, "
            "others stop at them",
            {"count": count},
        )
    yield from _left_out(drafts, "of draft layers, which only speculative decoding loads")
    yield from _left_out(dropped, "in the files that engines leave out")


def _left_out(names: Sequence[str], which: str) -> Iterator[Finding]:
    for where, count in fold_names(names):
        yield Finding("TN002", "info", "right", counted(where, count), f"{_tensors(count)} {which}", {"count": count})


def _tensors(count: int) -> str:
    return f"{count:,} tensor{'s' if count != 1 else ''}"
