"""Findings about scales: zero ones over weights that are not, placeholders, denormal ones."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, Hint, MlloadError
from mlload.plan.unknowns import Unknown
from mlload.validators.deep.report import finding, tensors
from mlload.validators.deep.scan import Scan
from mlload.validators.deep.seen import Seen
from mlload.validators.deep.zero_blocks import Unfollowable, lost_weights

ENOUGH = 64  # scales of one tensor, before all being equal says anything
ENOUGH_INPUTS = 8
DENORMAL_SHARE = 0.05
ANEW = Hint("quantize again", needs="original weights")


def of_scales(scan: Scan) -> Iterator[tuple[str, Seen]]:
    return ((name, seen) for name, seen in scan.tensors.items() if scan.hows[name].kind == "scale")


def zero_scales(scan: Scan, checkpoint: Checkpoint) -> Iterator[Finding | Unknown]:
    """One scale for all of a layer is wrong when it is 0; of many, those whose weights are not zero."""
    single, lost, unfollowed = [], {}, {}
    for name, seen in of_scales(scan):
        if not seen.zeros:
            continue
        if seen.elements == 1 or scan.roles[name].role in ("global_scale", "input_scale"):
            single.append(name)
        else:
            try:
                place = lost_weights(scan, checkpoint, name, seen)
            except (Unfollowable, MlloadError) as error:
                unfollowed[name] = str(error)
            else:
                if place is not None:
                    lost[name] = place
    if unfollowed:
        name, why = next(iter(unfollowed.items()))
        count = sum(scan.tensors[name].zeros for name in unfollowed)
        what = f"whether {count:,} zero scales in {tensors(len(unfollowed))} lie over weights that are not zero"
        yield Unknown(what, f"{name}: {why}", "")
    if single:
        message = f"{tensors(len(single))} that scale a whole layer by 0: {single[0]}"
        yield finding("DP003", "error", "right", single, message, (ANEW,), zeros=len(single), first=single[0])
    if lost:
        zeros = sum(scan.tensors[name].zeros for name in lost)
        total = sum(scan.tensors[name].elements for name in lost)
        name, place = next(iter(lost.items()))
        message = (
            f"{zeros:,} of {total:,} scales in {tensors(len(lost))} are 0, over weights that are not: element "
            f"{place:,} of {name}"
        )
        numbers = {"zeros": zeros, "scales": total, "first": name, "element": place}
        yield finding("DP003", "error", "right", list(lost), message, (ANEW,), **numbers)


def constant_scales(scan: Scan) -> Iterator[Finding]:
    found: dict[float, list[str]] = {}
    for name, seen in of_scales(scan):
        number = scan.hows[name].number
        if number is None or seen.elements < ENOUGH or not seen.constant or seen.nan or seen.inf or seen.zeros:
            continue
        power_of_two = not (seen.low or 0) & ((1 << number.mantissa) - 1)
        value = number.value(seen.magnitude)
        if value == 1.0 or not power_of_two:
            found.setdefault(value, []).append(name)
    for value, names in found.items():
        count = sum(scan.tensors[name].elements for name in names)
        message = f"all {count:,} scales of {tensors(len(names))} are {value:.6g}: {names[0]}"
        yield finding("DP004", "warning", "right", names, message, (ANEW,), value=value, scales=count, first=names[0])


def denormal_scales(scan: Scan) -> Iterator[Finding]:
    found: dict[str, float] = {}
    for name, seen in of_scales(scan):
        number = scan.hows[name].number
        share = seen.denormal / seen.elements
        wide = number is not None and number.exponent >= 8
        if seen.denormal and (wide or share > DENORMAL_SHARE):
            found[name] = share
    if found:
        count = sum(scan.tensors[name].denormal for name in found)
        total = sum(scan.tensors[name].elements for name in found)
        worst = max(found, key=lambda name: found[name])
        message = f"{count:,} of {total:,} scales in {tensors(len(found))} are denormal: {found[worst]:.0%} of {worst}"
        numbers = {"denormal": count, "scales": total, "first": worst}
        yield finding("DP005", "warning", "right", list(found), message, (ANEW,), **numbers)


def never_calibrated(scan: Scan) -> Iterator[Finding]:
    """Every activation scale of the checkpoint's experts, or of its other layers, is the placeholder."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    for name, seen in of_scales(scan):
        role = scan.roles[name]
        if role.role == "input_scale" and seen.elements:
            groups[role.spec is not None and (role.spec.experts is not None or role.spec.op == "experts")].append(name)
    for experts, names in groups.items():
        count = sum(scan.tensors[name].elements for name in names)
        if count >= ENOUGH_INPUTS and all(is_one(scan, name) for name in names):
            message = f"input_scale is 1.0 in all {count:,} {'experts' if experts else 'layers'}: {names[0]}"
            hint = Hint("calibrate again, with every expert active", needs="original weights")
            yield finding("DP019", "warning", "right", names, message, (hint,), scales=count, first=names[0])


def is_one(scan: Scan, name: str) -> bool:
    number, seen = scan.hows[name].number, scan.tensors[name]
    if number is None or seen.negative or seen.nan or seen.inf:
        return False
    return seen.constant and number.value(seen.positive) == 1.0
