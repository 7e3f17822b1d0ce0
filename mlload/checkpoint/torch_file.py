"""Tensors of a torch.save file (.bin, .pt), listed without unpickling it.

Since torch 1.6 such a file is a zip archive: `*/data.pkl` describes the objects, `*/data/<key>` are the
raw storages. Before, it was five pickles in a row (magic, protocol, system, objects, storage keys), then
each storage with its length. Source: torch/serialization.py.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from mlload.checkpoint.json_text import quote
from mlload.checkpoint.pickle_listing import BadPickle, Call, Listing, Name, Persistent, label, list_pickle
from mlload.checkpoint.sniff import sniff
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef
from mlload.checkpoint.window import CutOff, TooLong, Window
from mlload.checkpoint.zip_directory import BadZip, data_starts, read_directory

MAX_PICKLE = 64 * 1024 * 1024
MAX_TENSORS = 1_000_000
MAX_NESTING = 8
MAX_DIMENSIONS = 64
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C

STORAGES: dict[str, str] = {
    "BFloat16Storage": "BF16",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "ComplexFloatStorage": "C64",
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "ShortStorage": "I16",
    "UntypedStorage": "U8",
}
DTYPES: dict[str, str] = {
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float64": "F64",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
    "complex64": "C64",
}


class View(NamedTuple):
    """A tensor as the pickle describes it. offset: elements into its storage, of `dtype`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: str
    offset: int
    storage_bytes: int


@dataclass
class TorchFile:
    """tensors: with places in the file; refused: names that weights_only=True does not take;
    problems: (code, sentence without the file's name, numbers)."""

    tensors: list[TensorRef] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    problems: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    nested: list[str] = field(default_factory=list)
    pickle: bytes = b""

    def problem(self, code: str, message: str, **numbers: Any) -> None:
        self.problems.append((code, message, numbers))


def read_torch(source: Source, name: str, size: int, file: int) -> TorchFile:
    """List one file. MlloadError only where the source cannot be read."""
    result = TorchFile()
    if size == 0:
        result.problem("FI004", "is empty: 0 bytes", size=0)
        return result
    head = source.read(name, 0, min(size, 512))
    kind = sniff(head).kind
    try:
        if kind in ("zip", "pickle-zip"):
            _zip(source, name, size, file, result)
        elif kind == "pickle":
            _legacy(source, name, size, file, result)
        elif kind:
            code = {"lfs": "FI001", "html": "FI002", "xml": "FI002", "json": "FI002", "text": "FI002"}.get(
                kind, "FI021"
            )
            result.problem(code, f"is {sniff(head).what} of {size:,} bytes, and no torch.save file", size=size)
        else:
            result.problem("FI051", "is neither a zip archive nor a pickle, as torch.save writes", size=size)
    except (BadPickle, BadZip) as error:
        result.problem("FI051", str(error), size=size)
    except TooLong as cut:
        result.problem("FI051", f"has pickles of more than {cut.end:,} bytes", size=cut.size)
    except CutOff as cut:
        result.problem("FI051", f"is cut off: its pickles do not end within {cut.size:,} bytes", size=cut.size)
    return result


def _zip(source: Source, name: str, size: int, file: int, result: TorchFile) -> None:
    members = read_directory(source, name, size)
    pickles = [member for member in members.values() if member.name.rpartition("/")[2] == "data.pkl"]
    if not pickles:
        held = ", ".join(quote(member, 40) for member in list(members)[:3]) or "nothing"
        raise BadZip(f"is a zip archive without data.pkl (it holds {held})")
    member = pickles[0]
    root = member.name.removesuffix("data.pkl")
    if root + "constants.pkl" in members and any(other.startswith(root + "code/") for other in members):
        result.problem("FI050", "is a TorchScript archive: it carries code, and engines want plain weights")
    if member.size > MAX_PICKLE or member.packed > MAX_PICKLE:
        raise BadZip(f"has a data.pkl of {member.size:,} bytes")
    (start,) = data_starts(source, name, [member], size)
    result.pickle = _unpacked(source.read(name, start, member.packed), member.stored, member.size)
    listing = list_pickle(result.pickle)
    views = _views(listing, result)
    storages = {view.storage: members.get(f"{root}data/{view.storage}") for view in views}
    there = {key: found for key, found in storages.items() if found is not None}
    absent = [view for view in views if storages[view.storage] is None]
    if absent:
        first = absent[0]
        message = f"describes {quote(first.name)} and holds no data for it ({len(absent)} of {len(views)} tensors)"
        result.problem("FI013", message, tensors=len(absent))
    starts = dict(zip(there, data_starts(source, name, list(there.values()), size), strict=True))
    packed = [key for key, found in there.items() if not found.stored]
    if packed:
        result.problem("FI051", f"has compressed tensors ({len(packed)} of {len(there)} storages)", packed=len(packed))
    for view in views:
        if view.storage in starts:
            _place(view, file, starts[view.storage], there[view.storage].size, result)


def _unpacked(raw: bytes, stored: bool, size: int) -> bytes:
    if stored:
        return raw
    try:
        return zlib.decompressobj(-15).decompress(raw, min(size, MAX_PICKLE))
    except zlib.error as error:
        raise BadZip(f"has a damaged data.pkl ({error})") from None


def _legacy(source: Source, name: str, size: int, file: int, result: TorchFile) -> None:
    window = Window(source, name, size)
    listings: list[Listing] = []
    position = 0
    while len(listings) < 5:
        listing = _next_pickle(window, position)
        if not listings and listing.root != LEGACY_MAGIC:
            # A plain pickle.dump: whatever it holds, no tensor of it can be located.
            result.refused = listing.refused
            raise BadPickle("is a plain Python pickle, not written by torch.save")
        listings.append(listing)
        position += listing.length
    result.pickle = bytes(window.data[:position])
    views = _views(listings[3], result)
    keys = listings[4].root
    sizes = {view.storage: view.storage_bytes for view in views}
    starts: dict[str, int] = {}
    for key in keys if isinstance(keys, list) else []:
        starts[label(key)] = position + 8
        position += 8 + sizes.get(label(key), 0)
    for view in views:
        if view.storage in starts:
            _place(view, file, starts[view.storage], sizes[view.storage], result)
    if position > size:
        message = f"is cut off: its tensors end at byte {position:,} of a {size:,}-byte file"
        result.problem("FI013", message, end=min(position, 2**63), size=size)


def _next_pickle(window: Window, position: int) -> Listing:
    """The pickle at `position`, reading on while it does not end."""
    wanted = min(window.size, position + 65_536)
    while True:
        window.need(wanted)
        try:
            return list_pickle(bytes(window.data), position)
        except BadPickle:
            if len(window.data) >= min(window.size, MAX_PICKLE):
                raise
            wanted = min(window.size, 4 * len(window.data))


def walk(root: Any) -> list[tuple[str, Any]]:
    """(dotted name, value) of everything below dictionaries, each container once, to a depth of MAX_NESTING."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = [("", root, 0)]
    while stack:
        name, value, level = stack.pop()
        if isinstance(value, Call) and isinstance(value.state, dict) and not is_tensor(value):
            value = value.state
        if isinstance(value, dict):
            if id(value) in seen or level > MAX_NESTING:
                continue
            seen.add(id(value))
            below = f"{name}." if name else ""
            stack.extend((below + label(key), child, level + 1) for key, child in reversed(value.items()))
        else:
            found.append((name, value))
            if len(found) > MAX_TENSORS:
                raise BadPickle(f"holds more than {MAX_TENSORS:,} values")
    return found


def is_tensor(value: Any) -> bool:
    return isinstance(value, Call) and isinstance(value.function, Name) and "_rebuild" in value.function.name


def _storage(persistent: Persistent) -> tuple[str, str, int] | None:
    key = persistent.key
    if not isinstance(key, tuple) or len(key) < 5 or key[0] != "storage" or not isinstance(key[1], Name):
        return None
    dtype = STORAGES.get(key[1].name)
    numel = key[4]
    if dtype is None or type(numel) is not int or not 0 <= numel < 2**62:
        return None
    return label(key[2]), dtype, numel


def _views(listing: Listing, result: TorchFile) -> list[View]:
    """Tensors of the object that a file describes; what is none of them is told in `result`."""
    result.refused = listing.refused
    views: list[View] = []
    strange: list[str] = []
    root = listing.root
    if isinstance(root, Call) and not isinstance(root.state, dict):
        raise BadPickle(f"holds {quote(label(root.function), 80)}, and no dictionary of tensors")
    if not isinstance(root, dict | Call):
        raise BadPickle(f"holds a {type(root).__name__}, and no dictionary of tensors")
    top = root if isinstance(root, dict) else {}
    for name, value in walk(root):
        if not is_tensor(value):
            continue
        view = _view(name, value)
        if view is None:
            strange.append(name)
            continue
        views.append(view)
        if name not in top:
            result.nested.append(name)
    if strange:
        message = f"describes {quote(strange[0])} in a way that is not understood ({len(strange)} tensors)"
        result.problem("FI051", message, tensors=len(strange))
    return views


def unwrapped(call: Call) -> tuple[str, tuple[Any, ...]]:
    """(function, arguments) of the call that sets up a tensor on a storage, through wrappers such as
    Parameter; ("", ()) where there is none."""
    for _ in range(4):
        function, arguments = call.function, call.arguments
        if not isinstance(function, Name) or not isinstance(arguments, tuple) or not arguments:
            break
        if isinstance(arguments[0], Persistent):
            return function.name, arguments
        if function.name == "_rebuild_from_type_v2" and len(arguments) >= 3:
            call = Call(arguments[0], arguments[2])
        elif isinstance(arguments[0], Call):
            call = arguments[0]
        else:
            break
    return "", ()


def _view(name: str, value: Call) -> View | None:
    function, arguments = unwrapped(value)
    storage = _storage(arguments[0]) if len(arguments) >= 3 and function.startswith("_rebuild") else None
    if storage is None:
        return None
    key, dtype, numel = storage
    nbytes = numel * DTYPE_BITS[dtype] // 8
    offset, shape = arguments[1], arguments[2]
    if isinstance(shape, Call) and isinstance(shape.arguments, tuple) and shape.arguments:
        shape = shape.arguments[0]  # torch.Size
    if function == "_rebuild_tensor_v3" and len(arguments) >= 7 and isinstance(arguments[6], Name):
        dtype = DTYPES.get(arguments[6].name, "")
    if type(offset) is not int or offset < 0 or not isinstance(shape, tuple | list) or not dtype:
        return None
    if len(shape) > MAX_DIMENSIONS or any(type(size) is not int or not 0 <= size < 2**62 for size in shape):
        return None
    return View(name, dtype, tuple(shape), key, offset, nbytes)


def _place(view: View, file: int, start: int, size: int, result: TorchFile) -> None:
    item = DTYPE_BITS[view.dtype] // 8
    nbytes = prod(view.shape) * item
    offset = view.offset * item
    if offset + nbytes > size:
        message = f"gives {quote(view.name)} bytes {offset:,} to {offset + nbytes:,} of a storage of {size:,} bytes"
        result.problem("FI013", message, tensor=view.name, end=min(offset + nbytes, 2**63), size=size)
        return
    result.tensors.append(TensorRef(view.name, view.dtype, view.shape, file, start + offset, nbytes))
