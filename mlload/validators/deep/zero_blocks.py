"""The weights under a zero scale, looked up in the files: are they zero as well?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.plan.stored import Stored
from mlload.quant.spec import Dim
from mlload.validators.deep.roles import Role
from mlload.validators.deep.scan import Scan
from mlload.validators.deep.seen import Seen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

LOOKED_AT = 16  # zero scales per tensor
MOST_BYTES = 64 << 20  # of the weight's rows, for one scale


class Unfollowable(Exception):
    """Which weights a scale belongs to cannot be told from the layout; the message says why."""


def lost_weights(scan: Scan, checkpoint: Checkpoint, name: str, seen: Seen) -> int | None:
    """The first zero scale of a tensor whose weights are not zero; None where all that were looked at are.

    Raises Unfollowable, and MlloadError where the weights cannot be read.
    """
    role = scan.roles[name]
    weight = weight_of(scan, role)
    if weight is None or role.stored is None:
        raise Unfollowable("no weights are known to belong to it")
    mine, its = checkpoint.tensors[name], checkpoint.tensors[weight]
    partner = scan.roles[weight].stored
    for at in seen.zero_at[:LOOKED_AT]:
        box = None if partner is None else box_under(at, mine, role.stored, its, partner)
        if box is None:
            raise Unfollowable(f"the layout of {weight} is not one that scales can be followed in")
        if not all_zero(checkpoint, its, box, scan.roles[weight]):
            return at
    return None


def weight_of(scan: Scan, role: Role) -> str | None:
    """The tensor of codes of the same module."""
    for suffix in (".weight", ".weight_packed", ".qweight", "_blocks"):
        name = role.module + suffix
        if name in scan.roles and scan.roles[name].role == "weight" and name in scan.tensors:
            return name
    return None


def box_under(at: int, scale: TensorRef, its: Stored, weight: TensorRef, codes: Stored) -> list[slice] | None:
    """Stored elements of the weight that the scale numbered `at` multiplies; None where axes do not match."""
    place: dict[str, tuple[int, Dim]] = {}
    if len(its.dims) != len(scale.shape) or len(codes.dims) != len(weight.shape):
        return None
    for size, dim in reversed(list(zip(scale.shape, its.dims, strict=True))):
        at, index = divmod(at, size)
        if dim.axis:
            place[dim.axis] = (index, dim)
    if not place:
        return None
    box = []
    for size, dim in zip(weight.shape, codes.dims, strict=True):
        if dim.axis not in place:
            box.append(slice(0, size))
            continue
        index, unit = place[dim.axis]
        first, last = index * unit.values // unit.items, (index + 1) * unit.values // unit.items
        start, stop = first // dim.values * dim.items, -(-last // dim.values) * dim.items
        if start >= size:
            return None
        box.append(slice(start, min(stop, size)))
    return box


def all_zero(checkpoint: Checkpoint, ref: TensorRef, box: list[slice], role: Role) -> bool:
    """Whether every code in the box stands for 0. Asymmetric ones: whether they are all the same."""
    import numpy as np

    width = DTYPE_BITS.get(ref.dtype, 8) // 8
    row = ref.nbytes // ref.shape[0]
    if not width or (box[0].stop - box[0].start) * row > MOST_BYTES:
        raise Unfollowable(f"too much of {ref.name} lies under one scale")
    name = checkpoint.files[ref.file].name
    data = checkpoint.source.read(name, ref.offset + box[0].start * row, (box[0].stop - box[0].start) * row)
    codes: Array = np.frombuffer(data, f"u{width}").reshape(-1, *ref.shape[1:])[(slice(None), *box[1:])]
    scheme = role.scheme
    if scheme is None or scheme.kind in ("float", "mx"):
        sign_free = 0x77 if scheme is not None and scheme.bits == 4 else (1 << (8 * width - 1)) - 1
        return not (codes & np.asarray(sign_free, codes.dtype)).any()
    if width == 1:
        return not codes.any()
    if not scheme.symmetric:
        return bool((codes == codes.flat[0]).all())
    if scheme.bits not in (2, 4, 8):
        raise Unfollowable(f"{scheme.bits}-bit codes straddle words")
    zero = sum(1 << (shift + scheme.bits - 1) for shift in range(0, 32, scheme.bits))
    return bool((codes == zero).all())
