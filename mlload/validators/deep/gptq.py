"""GPTQ's zero points and group numbers against what the config calls them."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.plan import Plan
from mlload.validators.deep.report import finding, tensors
from mlload.validators.deep.roles import Role
from mlload.validators.deep.scan import Scan
from mlload.validators.quant_tensors import Label, gptq_zero_label


def label_of(role: Role) -> Label:
    """v2 stores zero points as they are, v1 less one."""
    return "gptq_v2" if role.scheme is not None and role.scheme.layout == "gptq_v2" else "gptq"


def stores_less_one(role: Role) -> bool:
    """Whether a zero point of 0 would have borrowed from its neighbours: asymmetric v1."""
    return role.scheme is not None and not role.scheme.symmetric and label_of(role) == "gptq"


def zero_points(scan: Scan) -> Iterator[Finding]:
    other: dict[Label, list[str]] = {"gptq": [], "gptq_v2": []}
    borrowed: list[str] = []
    for name, seen in scan.tensors.items():
        role = scan.roles[name]
        if scan.hows[name].kind != "zeros" or role.scheme is None or role.scheme.bits not in (2, 3, 4, 8):
            continue
        if seen.borrowed:
            borrowed.append(name)
        if role.scheme.symmetric and (seen.constant or role.scheme.bits == 3):
            found = gptq_zero_label(seen.head, role.scheme.bits, True, label_of(role))
            if found.content is not None and not found.agrees:
                other[found.content].append(name)
    for content, names in other.items():
        if names:
            label = "gptq" if content == "gptq_v2" else "gptq_v2"
            word = scan.tensors[names[0]].head[0]
            message = (
                f"{tensors(len(names))} of zero points hold {word:#010x}, which is {content}, and the config calls "
                f"them {label}; vLLM's Marlin path does not read them, kernels that do are off by one scale"
            )
            hint = Hint(f'set checkpoint_format to "{content}" in quantization_config')
            numbers = {"word": word, "content": content, "label": label}
            yield finding("DP016", "warning", "right", names, message, (hint,), **numbers)
    if borrowed:
        count = sum(scan.tensors[name].borrowed for name in borrowed)
        message = f"{count:,} zero points in {tensors(len(borrowed))} are 0, stored as z - 1: {borrowed[0]}"
        hint = Hint("export again as gptq_v2", needs="original weights")
        yield finding("DP017", "warning", "right", borrowed, message, (hint,), zeros=count, first=borrowed[0])


def group_numbers(scan: Scan, checkpoint: Checkpoint, plan: Plan | None) -> Iterator[Finding]:
    names = [name for name in scan.tensors if scan.hows[name].kind == "g_idx"]
    reordered = [n for n in names if scan.tensors[n].wrong and scan.tensors[n].high != 0]  # all zero: a placeholder
    outside = {}
    for name in names:
        groups, high = _groups(checkpoint, name), scan.tensors[name].high or 0
        if groups is not None and high >= groups:
            outside[name] = (high, groups)
    if outside:
        name, (high, groups) = next(iter(outside.items()))
        message = f"{tensors(len(outside))} name groups that do not exist: {high} of {groups} in {name}"
        numbers = {"group": high, "groups": groups, "first": name}
        yield finding("DP021", "error", "right", list(outside), message, (), **numbers)
    quant = plan.model.quant if plan is not None else None
    declared = quant.config.get("desc_act") if quant is not None else None
    if reordered and declared is False:
        name = reordered[0]
        message = (
            f"desc_act is false, and {tensors(len(reordered))} put rows into groups in another order: "
            f"{scan.tensors[name].wrong:,} of {scan.tensors[name].elements:,} entries of {name} are not row // "
            f"{scan.hows[name].group}; vLLM drops them and uses the wrong scales"
        )
        hint = Hint("quantize again with desc_act false", needs="original weights")
        numbers = {"wrong": scan.tensors[name].wrong, "group_size": scan.hows[name].group, "first": name}
        yield finding("DP018", "error", "right", reordered, message, (hint,), **numbers)
    elif names and declared is True and not reordered:
        message = (
            f"desc_act is true, yet every g_idx is row // {scan.hows[names[0]].group}: with desc_act false the engine "
            "starts it, with the same numbers"
        )
        hint = Hint('set desc_act to false in quantization_config ("static_groups" needs no g_idx)')
        yield finding("DP018", "info", "starts", names, message, (hint,), group_size=scan.hows[names[0]].group)


def _groups(checkpoint: Checkpoint, name: str) -> int | None:
    """Groups that the scales of the same module have."""
    scales = checkpoint.tensors.get(name.removesuffix("g_idx") + "scales")
    return scales.shape[0] if scales is not None and len(scales.shape) == 2 else None
