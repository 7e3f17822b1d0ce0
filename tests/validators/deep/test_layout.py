"""Blocks of any size bring every element of every tensor once, whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mlload.checkpoint.streaming import spans
from mlload.checkpoint.tensor import TensorRef
from mlload.validators.deep.layout import FileLayout


@st.composite
def files(draw: st.DrawFn) -> tuple[list[TensorRef], int]:
    at = draw(st.integers(0, 100))
    tensors = []
    for number in range(draw(st.integers(0, 8))):
        dtype, unit = draw(st.sampled_from([("BF16", 2), ("F64", 8), ("Q4_K", 144), ("U8", 1)]))
        count = draw(st.integers(0, 60))
        tensors.append(TensorRef(f"t{number}", dtype, (count,), 0, at, count * unit))
        at += count * unit + draw(st.sampled_from([0, 0, 3]))
    return draw(st.permutations(tensors)), at + draw(st.integers(0, 40))


@given(files(), st.integers(200, 900), st.integers(300, 3000))
@settings(max_examples=300, deadline=None)
def test_every_byte_of_every_tensor_once(file: tuple[list[TensorRef], int], block: int, span: int) -> None:
    tensors, size = file
    layout = FileLayout(tensors, size, {"Q4_K": 144})
    got: dict[str, list[tuple[int, int]]] = {}
    at = 0
    for start, stop in spans(0, size, span, layout.ends):
        assert start == at and stop > start
        while start < stop:
            limit = min(stop, start + block)
            end = limit if limit == stop else layout.ends(start, limit)
            assert start < end <= limit
            for tensor, begin, last, offset in layout.pieces(start, end):
                assert tensor.offset + begin == start + offset
                got.setdefault(tensor.name, []).append((begin, last))
            start = end
        at = stop
    assert at == size
    for tensor in tensors:
        runs = got.get(tensor.name, [])
        assert [a for a, _ in runs] == [0, *(b for _, b in runs)][: len(runs)]
        assert (runs[-1][1] if runs else 0) == tensor.nbytes
        unit = {"BF16": 2, "F64": 8, "Q4_K": 144, "U8": 1}[tensor.dtype]
        assert all(begin % unit == 0 for begin, _ in runs)


def test_shared_and_overlapping_bytes() -> None:
    """Pickles give one storage two names; a damaged header can overlap."""
    one, same = TensorRef("a", "F32", (4,), 0, 0, 16), TensorRef("b", "F32", (4,), 0, 0, 16)
    over, after = TensorRef("c", "F32", (4,), 0, 8, 16), TensorRef("d", "F32", (4,), 0, 24, 16)
    layout = FileLayout([over, one, same, after], 40, {})
    assert [tensor.name for tensor in layout.tensors] == ["a", "d"]
    assert layout.aliases == {"b": "a"} and layout.hidden == ["c"]
