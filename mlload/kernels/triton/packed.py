"""Stored tensors -> what our weight-only kernel reads: codes in planes, scales and zero points in rows of N.

N, K, G, P as in the package. Everything stays on the device where it lies; done once, when a layer is loaded.
    weight       int16 [N/64, K/BK, 64, P]
    scale        float [K/BK, N padded to 64, groups a tile]: the scales of a row in a tile are one load; where a group
                 is a tile or more [groups, N padded to 64, 1]. e8m0 and e4m3 scales as bf16, which holds them exactly:
                 converting them in the main loop costs more than their second byte
    zero         uint8 [groups, N padded to 64], asymmetric integers only, and of 4 bits only where their scales have
                 more than 15 bits of fraction; else `scale` is int32 and holds both (`words_of`)
    global_scale float32 [N padded to 64], nvfp4 only: of each row, since rows of two linears may lie in one matrix
    order        int64 [K'], act-order only: which column of x each packed column multiplies
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mlload.kernels.families import family
from mlload.kernels.stored import e8m0, elements, integers
from mlload.kernels.triton.planes import Layout, layout_for, pack, pad_rows, unpack
from mlload.quant.spec import Scheme

# Members of one group that a rank holds are filled up to a multiple of this where they are not whole groups.
SPLINTER = 32


class Spec(NamedTuple):
    """What the kernel is compiled for.

    code:  "int4", "int8", "e4m3", "e2m1"
    group: along K, -1 = one scale a row
    """

    code: str
    group: int

    @property
    def layout(self) -> Layout:
        return layout_for(4 if self.code in ("int4", "e2m1") else 8, self.group)


def spec_for(scheme: Scheme, k: int, packed: Mapping[str, Tensor] | None = None) -> Spec:
    """`packed` (or a stack of it) tells where act-order broke the groups up; without it the scheme's own is meant."""
    kind = family(scheme)
    if kind in ("mxfp4", "nvfp4"):
        return Spec("e2m1", 32 if kind == "mxfp4" else 16)
    if kind.startswith("fp8"):
        return Spec("e4m3", scheme.block[1] if scheme.block is not None else -1)
    group = scheme.group_size if scheme.strategy == "group" and scheme.group_size else -1
    spec = Spec("int4" if kind == "w4a16" else "int8", -1 if group >= k else group)
    parts = packed["scale"].shape[-1] if packed is not None and "order" in packed else 1
    if packed is not None and parts > 1:
        return spec._replace(group=16 // scheme.bits * packed["weight"].shape[-1] // parts)
    return spec


def pack_linear(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int, *, width: int = 0) -> dict[str, Tensor]:
    """width: of act-order, the columns K' to fill up to, in pieces of 32 whatever the groups; 0: as few as it takes."""
    kind = family(scheme)
    if kind in ("mxfp4", "nvfp4") or kind.startswith("fp8"):
        return pack_elements(scheme, tensors, n, k)
    return pack_integers(scheme, tensors, n, k, width)


def common_width(scheme: Scheme, linears: Sequence[Mapping[str, Tensor]], n: int, k: int) -> int:
    """K' that holds each of these linears, whose orders differ; 0 where all of them have whole groups."""
    forms = set()
    for tensors in linears:
        parts, form = integers(scheme, tensors, n, k), (k, spec_for(scheme, k).group)
        if parts.g_idx is not None:
            order, broken = in_groups(parts.g_idx, parts.scale.shape[1], scheme.group_size or k)
            form = (len(order), form[1] if broken is None else SPLINTER)
        forms.add(form)
    return 0 if len(forms) < 2 else -(-(max(forms)[0] + SPLINTER) // SPLINTER) * SPLINTER


def pack_integers(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int, width: int = 0) -> dict[str, Tensor]:
    parts = integers(scheme, tensors, n, k)
    codes, scale, zero = parts.codes, parts.scale.T, None if parts.zero is None else parts.zero.T
    out: dict[str, Tensor] = {}
    spec = spec_for(scheme, k)
    middle = 1 << (scheme.bits - 1)
    if parts.g_idx is not None:
        order, groups = in_groups(parts.g_idx, scale.shape[0], scheme.group_size or k, width)
        codes = codes[:, torch.where(order < 0, -1 - order, order)]
        if groups is not None:
            scale = scale[groups]
            zero = zero if zero is None else zero[groups]
            # A filler counts as zero: its code is its group's zero point, and it looks at a column of its own group.
            blank = codes.new_tensor(middle) if zero is None else zero.T.repeat_interleave(SPLINTER, 1)
            codes = torch.where(order < 0, blank, codes)
            order = torch.where(order < 0, -1 - order, order)
            spec = spec._replace(group=SPLINTER)
        out["order"] = order
    # Padding beyond K meets activations of zero; beyond N it is never stored.
    out["weight"] = pack(codes, spec.layout, middle)
    out["scale"] = pad_rows(_whole_tiles(scale, codes.shape[1], spec))
    if zero is not None:
        out["zero"] = pad_rows(_whole_tiles(zero, codes.shape[1], spec))
        words = words_of(out["scale"], out["zero"]) if spec.code == "int4" else None
        if words is not None:
            out["scale"] = words
            del out["zero"]
    out["scale"] = by_tiles(out["scale"], spec)
    return out


def words_of(scale: Tensor, zero: Tensor) -> Tensor | None:
    """float32 scales with the zero point in the lowest byte, as int32; None where a scale needs that byte itself."""
    bits = scale.to(torch.float32).view(torch.int32)
    return None if bool((bits & 255).any()) else bits | zero.to(torch.int32)


def split_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """(scale float32, zero uint8) again."""
    return (words & -256).view(torch.float32), (words & 255).to(torch.uint8)


def by_tiles(rows: Tensor, spec: Spec) -> Tensor:
    """[groups, N] -> [tiles, N, groups a tile]."""
    parts = max(1, spec.layout.columns // spec.group) if spec.group > 0 else 1
    return rows.reshape(-1, parts, rows.shape[-1]).transpose(1, 2).contiguous()


def by_groups(scale: Tensor) -> Tensor:
    """[groups, N] again."""
    return scale.transpose(1, 2).reshape(-1, scale.shape[1])


def in_groups(g_idx: Tensor, count: int, group: int, width: int = 0) -> tuple[Tensor, Tensor | None]:
    """Columns sorted by group: (order, None) where every group is whole.

    A rank's share of an act-order layer holds some columns of every group. Then each group is filled up to a multiple
    of 32, and (order, groups) say which column stands where (a filler as -1 - column of a neighbour) and which group
    each 32 columns belong to. With a width that is done in any case, and up to so many columns."""
    order = torch.argsort(g_idx, stable=True)
    counts = torch.bincount(g_idx, minlength=count)
    whole = torch.full_like(counts, group)
    whole[-1] = len(g_idx) - group * (count - 1)
    if not width and torch.equal(counts, whole) and count * group - len(g_idx) < group:
        return order, None
    room = -(-counts // SPLINTER) * SPLINTER
    if width:
        room[counts.argmax()] += width - room.sum()
    groups = torch.repeat_interleave(torch.arange(count, device=g_idx.device), room // SPLINTER)
    start, begin = room.cumsum(0) - room, counts.cumsum(0) - counts
    spread = torch.arange(int(room.sum()), device=g_idx.device)
    of = groups.repeat_interleave(SPLINTER)
    inside = spread - start[of]
    column = order[begin[of] + torch.minimum(inside, counts[of] - 1)]
    return torch.where(inside < counts[of], column, -1 - column), groups


def pack_elements(scheme: Scheme, tensors: Mapping[str, Tensor], n: int, k: int) -> dict[str, Tensor]:
    parts = elements(scheme, tensors, n, k)
    spec = spec_for(scheme, k)
    if spec.code == "e2m1":
        codes = torch.stack([parts.codes & 15, parts.codes >> 4], -1).reshape(n, k)
        scale = (e8m0(parts.scale) if scheme.kind == "mx" else parts.scale).to(torch.bfloat16).T
        whole = parts.global_scale
        extra = {} if whole is None else {"global_scale": pad_rows(whole.expand(n)[None])[0]}
        rows = pad_rows(_whole_tiles(scale, k, spec))
        return {"weight": pack(codes, spec.layout, 0), "scale": by_tiles(rows, spec), **extra}
    codes, scale = parts.codes.view(torch.uint8), parts.scale
    if scheme.block is not None:
        scale = scale.repeat_interleave(scheme.block[0], 0)[:n].T.contiguous()
    else:
        scale = scale.expand(n).reshape(1, n).contiguous()
    # The kernel reads e4m3's NaN as a number; its group's scale says it instead.
    broken = (codes & 127) == 127
    if bool(broken.any()):
        size = k if spec.group < 0 else spec.group
        for group in range(scale.shape[0]):
            scale[group, broken[:, group * size : (group + 1) * size].any(1)] = torch.nan
    rows = pad_rows(_whole_tiles(scale, k, spec))
    return {"weight": pack(codes, spec.layout, 0), "scale": by_tiles(rows, spec)}


def _whole_tiles(rows: Tensor, k: int, spec: Spec) -> Tensor:
    """As many rows of scales as the tiles along K ask for: a ragged last tile may reach into groups that are not."""
    if spec.group < 0:
        return rows
    needed = -(-k // spec.layout.columns) * spec.layout.columns // spec.group
    missing = max(0, needed - rows.shape[0])
    return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])]) if missing else rows


def unpack_linear(spec: Spec, packed: Mapping[str, Tensor], n: int, k: int) -> Tensor:
    """The torch reference: float32 [N, K'] from the packed tensors, K' = len(order) or K."""
    order = packed.get("order")
    wide = k if order is None else len(order)
    codes = unpack(packed["weight"], spec.layout, n, wide)
    scale = by_groups(packed["scale"])[:, :n]
    zero = packed["zero"][:, :n].float() if "zero" in packed else None
    if scale.dtype == torch.int32:
        scale, codes_of_zero = split_words(scale)
        zero = codes_of_zero.float()
    size = wide if spec.group < 0 else spec.group
    spread = torch.arange(wide, device=codes.device) // size
    if spec.code == "e2m1":
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=codes.device)
        values = torch.cat([table, -table])[codes.long()]
    elif spec.code == "e4m3":
        values = codes.view(torch.float8_e4m3fn).float()
    else:
        middle = 8.0 if spec.code == "int4" else 128.0
        values = codes.float() - (middle if zero is None else zero.T[:, spread])
    weight = values * scale.float().T[:, spread]
    return weight * packed["global_scale"][:n, None] if "global_scale" in packed else weight
