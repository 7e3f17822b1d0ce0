"""What is wrong with a safetensors file that the fast reader does not accept, in sentences.

The causes follow safetensors' own error list (SafeTensorError in safetensors/src/tensor.rs):
HeaderTooSmall, HeaderTooLarge, InvalidHeader (UTF-8), InvalidHeaderStart, InvalidHeaderLength,
InvalidHeaderDeserialization, InvalidOffset, TensorInvalidInfo, MetadataIncompleteBuffer,
ValidationOverflow, MisalignedSlice. Each finding tells which of a file's tensors can still be read.
"""

from __future__ import annotations

from typing import Any

from mlload.checkpoint import hints, json_text
from mlload.checkpoint.finding import Finding, Hint
from mlload.checkpoint.json_text import BadJson, OddNumber, StrictObject, kind_of, quote
from mlload.checkpoint.safetensors import MAX_HEADER, Header, header_length
from mlload.checkpoint.sniff import Content, lfs_fields, sniff
from mlload.checkpoint.sources.base import Source
from mlload.checkpoint.tensor import DTYPE_BITS, TensorRef

U64_MAX = 2**64 - 1
MAX_DEPTH = 120  # serde_json stops at 128 levels


class Damage:
    """Collects the findings about one file."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name = name
        self.findings: list[Finding] = []

    def add(
        self,
        code: str,
        message: str,
        *,
        severity: Any = "error",
        question: Any = "starts",
        numbers: dict[str, Any] | None = None,
        hint: Hint | None = None,
        again: bool = False,
        where: str | None = None,
    ) -> None:
        found = [hint] if hint else []
        if again:
            found.append(hints.download_again(self.source, self.name))
        place = self.name if where is None else where
        self.findings.append(Finding(code, severity, question, place, message, numbers or {}, tuple(found)))


def explain_start(source: Source, name: str, size: int, head: bytes) -> list[Finding]:
    """Why the first bytes of a file are not the start of a safetensors file; [] when they can be.

    head: at least min(size, 16) bytes from the start; 512 tell more.
    """
    damage = Damage(source, name)
    if size == 0:
        damage.add("FI004", f"{name} is empty: 0 bytes, where a header is expected.", numbers={"size": 0}, again=True)
        return damage.findings
    content = sniff(head)
    length = header_length(head)
    plausible = len(head) >= 8 and 2 <= length <= size - 8 and head[8:9] in (b"{", b" ", b"\n", b"\t", b"\r")
    if not plausible and content.kind:
        _other_kind(damage, size, head, content)
    elif size < 8:
        message = f"{name} has {size} bytes; a safetensors file starts with 8 bytes that tell its header's length."
        damage.add("FI005", message, numbers={"size": size}, again=True)
    elif length > size - 8:
        message = (
            f"{name}: the first 8 bytes say that the header has {length:,} bytes, and the file has {size:,} bytes "
            "in all: it is cut off inside its header, or is no safetensors file."
        )
        if length > MAX_HEADER:
            message = (
                f"{name}: the first 8 bytes, read as a header length, give {length:,}, and the file has {size:,} "
                "bytes: this is no safetensors file."
            )
        damage.add("FI006", message, numbers={"header": length, "size": size}, again=True)
    elif length < 2:
        message = f"{name}: a header of {length} bytes; the shortest that there can be, {{}}, takes 2."
        damage.add("FI006", message, numbers={"header": length, "size": size}, again=True)
    elif length > MAX_HEADER and plausible:
        message = (
            f"{name}: its header has {length:,} bytes, above the {MAX_HEADER:,} that safetensors reads: it fits the "
            f"file ({size:,} bytes) and can be sound, but every safetensors reader refuses it."
        )
        hint = Hint(
            "Write the tensors into several smaller files (fewer tensors a file), or stack small tensors.",
            needs="original weights",
        )
        damage.add("FI007", message, numbers={"header": length, "limit": MAX_HEADER, "size": size}, hint=hint)
    elif length > MAX_HEADER:
        message = (
            f"{name}: the first 8 bytes, read as a header length, give {length:,}, and no {{ follows: this is no "
            "safetensors file."
        )
        damage.add("FI006", message, numbers={"header": length, "size": size}, again=True)
    return damage.findings


def _other_kind(damage: Damage, size: int, head: bytes, content: Content) -> None:
    name, kind = damage.name, content.kind
    numbers = {"size": size}
    if kind == "lfs":
        oid, real = lfs_fields(head)
        promised = f" of a file of {real:,} bytes" if real else ""
        message = f"{name} is a git-lfs pointer ({size} bytes of text){promised}: the weights were never fetched."
        extra: dict[str, Any] = {"size": size, "real_size": real, "sha256": oid}
        damage.add("FI001", message, numbers=extra, hint=hints.pull_lfs(damage.source, [name]))
    elif kind in ("html", "xml", "json", "text"):
        first = quote(head[:40].decode("utf-8", "replace").strip())
        message = f"{name} is {content.what} of {size:,} bytes ({first}): a download saved the error, not the file."
        damage.add("FI002", message, numbers=numbers, again=True)
    elif kind in ("pickle-zip", "zip", "pickle"):
        message = (
            f"{name} is {content.what} of {size:,} bytes under a safetensors name: unpickling can run any code, and "
            "no safetensors reader takes it."
        )
        hint = Hint("Rename it to .bin, convert it with weights_only, and keep the safetensors result.")
        damage.add("FI003", message, numbers=numbers, hint=hint)
    elif kind == "zeros":
        message = f"{name} starts with zero bytes ({size:,} bytes in all): space was reserved and never written."
        damage.add("FI006", message, numbers=numbers, again=True)
    else:
        message = f"{name} is {content.what} of {size:,} bytes under a safetensors name."
        damage.add("FI021", message, numbers=numbers, again=True)


def explain_header(
    source: Source, name: str, raw: bytes, file: int, data_start: int, file_size: int
) -> tuple[Header | None, list[Finding]]:
    """The tensors that can be located, and everything that is wrong with the header in `raw`."""
    damage = Damage(source, name)
    expected = data_start - 8
    if raw[:1] != b"{":
        stripped = raw.lstrip(b" \t\r\n")
        if stripped[:1] != b"{":
            message = f"{name}: the header starts with {quote(ascii(raw[:8])[2:-1])}, where a {{ is expected."
            damage.add("FI008", message, numbers={"header": expected}, again=True)
            return None, damage.findings
        message = f"{name}: white space stands before the header's {{, which some readers refuse."
        damage.add("FI008", message, severity="warning", numbers={"header": expected})
    if len(raw) < expected:
        message = f"{name}: only {len(raw):,} of the header's {expected:,} bytes could be read."
        damage.add("FI022", message, numbers={"read": len(raw), "header": expected}, again=True)
        return None, damage.findings
    try:
        entries = json_text.parse_strict(raw)
    except BadJson as error:
        message = f"{name}: the header ({expected:,} bytes) {error}."
        damage.add("FI008", message, numbers={"header": expected}, again=True)
        return None, damage.findings
    _duplicates(damage, entries)
    metadata = _metadata(damage, entries)
    tensors = _Entries(damage, file, data_start, file_size - data_start).read(entries)
    return Header(tensors, metadata), damage.findings


def _duplicates(damage: Damage, entries: StrictObject) -> None:
    if entries.duplicates:
        first, count = quote(entries.duplicates[0]), len(entries.duplicates)
        message = f"{damage.name}: the header names {count} {'keys' if count > 1 else 'key'} twice, first {first}."
        hint = Hint("Write the file anew from the weights that it was made of.", needs="original weights")
        damage.add("FI009", message, numbers={"duplicates": count}, hint=hint)
    for name, entry in entries.items():
        if isinstance(entry, StrictObject) and entry.duplicates:
            twice = quote(entry.duplicates[0])
            message = f"{damage.name}: the entry {quote(name)} of the header names {twice} twice."
            damage.add("FI009", message, numbers={"duplicates": len(entry.duplicates)})


def _metadata(damage: Damage, entries: StrictObject) -> dict[str, str] | None:
    if "__metadata__" not in entries:
        return None
    metadata = entries.pop("__metadata__")
    if metadata is None:
        return None
    if not isinstance(metadata, StrictObject):
        message = f"{damage.name}: __metadata__ is {kind_of(metadata)}; it must map texts to texts."
        damage.add("FI017", message)
        return None
    wrong = [(key, value) for key, value in metadata.items() if type(value) is not str]
    if wrong:
        key, value = wrong[0]
        message = (
            f"{damage.name}: __metadata__ must map texts to texts, and {len(wrong)} of its {len(metadata)} values "
            f"are none, first {quote(key)}: {kind_of(value)}."
        )
        damage.add("FI017", message, numbers={"wrong": len(wrong), "entries": len(metadata)})
    lone = [key for pair in metadata.items() for key in pair if isinstance(key, str) and not encodable(key)]
    if lone:
        damage.add("FI017", f"{damage.name}: __metadata__ holds half of a surrogate pair: {quote(lone[0])}.")
    return {key: value for key, value in metadata.items() if type(value) is str}


def encodable(text: str) -> bool:
    """False where a text holds half of a surrogate pair, which is no text outside JSON's escapes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Entries:
    """Checks each tensor's entry by itself, then all of them against the data."""

    def __init__(self, damage: Damage, file: int, data_start: int, data_size: int) -> None:
        self.damage = damage
        self.file = file
        self.data_start = data_start
        self.data_size = data_size
        self.malformed: list[str] = []
        self.disagree: list[tuple[str, str, dict[str, Any]]] = []
        self.unknown: dict[str, list[tuple[str, int, int]]] = {}
        self.odd_names: list[str] = []
        self.extra: list[str] = []

    def read(self, entries: StrictObject) -> list[TensorRef]:
        spans: list[tuple[int, int, str]] = []
        tensors: list[TensorRef] = []
        for name, entry in entries.items():
            if not encodable(name):
                self.malformed.append(f"the name {name!a} holds half of a surrogate pair")
                continue
            if not name or not name.isprintable():
                self.odd_names.append(name)
            ref = self._entry(name, entry)
            if ref is not None:
                spans.append((ref.offset - self.data_start, ref.offset - self.data_start + ref.nbytes, name))
                tensors.append(ref)
        self._report()
        complete = not self.malformed
        self._layout(sorted(spans), complete)
        tensors.sort(key=lambda ref: (ref.offset, ref.nbytes))
        return tensors

    def _entry(self, name: str, entry: Any) -> TensorRef | None:
        """A tensor's place, or None with a reason kept."""
        shown = quote(name)
        if not isinstance(entry, StrictObject):
            self.malformed.append(f"the entry of {shown} is {kind_of(entry)}")
            return None
        absent = [key for key in ("dtype", "shape", "data_offsets") if key not in entry]
        if absent:
            self.malformed.append(f"the entry of {shown} has no {' and no '.join(absent)}")
            return None
        if len(entry) > 3:
            others = [key for key in entry if key not in ("dtype", "shape", "data_offsets")]
            deep = [key for key in others if depth(entry[key]) > MAX_DEPTH or not clean(entry[key])]
            if deep:
                self.malformed.append(f"the entry of {shown} holds {quote(deep[0])}, which no reader parses")
                return None
            self.extra.extend(f"{shown}: {quote(key)}" for key in others)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if type(dtype) is not str or not encodable(dtype):
            self.malformed.append(f"the dtype of {shown} is {kind_of(dtype)}")
            return None
        if not isinstance(shape, list):
            self.malformed.append(f"the shape of {shown} is {kind_of(shape)}")
            return None
        for size in shape:
            if type(size) is not int or not 0 <= size <= U64_MAX:
                self.malformed.append(f"the shape of {shown} holds {kind_of(size)}")
                return None
        if not isinstance(offsets, list) or len(offsets) != 2:
            count = f"a list of {len(offsets)}" if isinstance(offsets, list) else kind_of(offsets)
            self.malformed.append(f"data_offsets of {shown} is {count}, where [begin, end] is expected")
            return None
        for offset in offsets:
            if type(offset) is not int or not 0 <= offset <= U64_MAX:
                self.malformed.append(f"data_offsets of {shown} hold {kind_of(offset)}")
                return None
        begin, end = offsets
        if end < begin:
            self.malformed.append(f"{shown} ends at {end:,}, before its beginning at {begin:,}")
            return None
        nbytes = end - begin
        self._sizes(name, dtype, shape, nbytes)
        return TensorRef(name, dtype, tuple(shape), self.file, self.data_start + begin, nbytes)

    def _sizes(self, name: str, dtype: str, shape: list[int], nbytes: int) -> None:
        count = 1
        for size in shape:
            count *= size
            if count > U64_MAX:
                message = f"{quote(name)}: {' x '.join(map(str, shape[:8]))} elements are more than can be counted"
                self.disagree.append((name, message, {"shape": shape[:8]}))
                return
        bits = DTYPE_BITS.get(dtype)
        if bits is None:
            self.unknown.setdefault(dtype, []).append((name, count, nbytes))
        elif count * bits != nbytes * 8:
            needed = count * bits / 8
            text = f"{needed:,.0f}" if needed == int(needed) else f"{needed:,}"
            message = (
                f"{quote(name)}: {dtype} {show_shape(shape)} takes {text} bytes, and data_offsets give it {nbytes:,}"
            )
            self.disagree.append((name, message, {"needed": needed, "given": nbytes}))

    def _report(self) -> None:
        damage, file = self.damage, self.damage.name
        if self.malformed:
            more = others(len(self.malformed))
            message = f"{file}: {self.malformed[0]}{more}."
            damage.add("FI010", message, numbers={"entries": len(self.malformed)}, again=True)
        if self.disagree:
            name, message, numbers = self.disagree[0]
            numbers = {**numbers, "tensors": len(self.disagree)}
            text = f"{file}: {message}{others(len(self.disagree))}."
            damage.add("FI012", text, numbers=numbers, again=True, where=f"{file}: {name}")
        for dtype, tensors in self.unknown.items():
            self._unknown(dtype, tensors)
        if self.odd_names:
            message = (
                f"{file}: the tensor name {self.odd_names[0][:60]!a} is empty or holds characters that cannot "
                f"be printed{others(len(self.odd_names))}."
            )
            damage.add("FI020", message, severity="warning", numbers={"names": len(self.odd_names)})
        if self.extra:
            message = f"{file}: the header holds keys that safetensors does not know, first {self.extra[0]}."
            damage.add("FI010", message, severity="info", numbers={"keys": len(self.extra)})

    def _unknown(self, dtype: str, tensors: list[tuple[str, int, int]]) -> None:
        """A dtype newer than this list is a warning; one whose sizes make no sense is damage."""
        name, count, nbytes = tensors[0]
        file, shown = self.damage.name, quote(dtype, 32)
        total = sum(entry[2] for entry in tensors)
        numbers = {"tensors": len(tensors), "bytes": total}
        bits = nbytes * 8 / count if count else 0.0
        one_size = all(entry[2] * 8 == bits * entry[1] for entry in tensors)
        named = dtype.replace("_", "").isalnum() and dtype[:1].isalpha() and dtype.isascii() and dtype.isupper()
        if not (named and one_size and bits == int(bits) and (bits or not count) and bits <= 128):
            message = f"{file}: {quote(name)} has the dtype {shown}, which does not exist{others(len(tensors))}."
            self.damage.add("FI011", message, numbers=numbers, again=True)
            return
        message = (
            f"{file}: {len(tensors)} {'tensors' if len(tensors) > 1 else 'tensor'} of the dtype {shown}, which "
            f"safetensors 0.8 does not know ({bits:.0f} bits an element by size, {total:,} bytes), first "
            f"{quote(name)}: older readers refuse the file."
        )
        self.damage.add("FI011", message, severity="warning", numbers={**numbers, "bits": int(bits)})

    def _layout(self, spans: list[tuple[int, int, str]], complete: bool) -> None:
        """Past the end, overlap, holes and bytes left over. Of each kind one finding, with its first place."""
        damage, file, size = self.damage, self.damage.name, self.data_size
        past = [span for span in spans if span[1] > size]
        if past:
            begin, _, name = past[0]
            end = max(span[1] for span in past)
            start, file_size = self.data_start, self.data_start + size
            side = "begins" if begin >= size else "ends"
            at = start + (begin if begin >= size else past[0][1])
            message = (
                f"{file} is cut off: {quote(name)} {side} at byte {at:,} of a {file_size:,}-byte file"
                f"{others(len(past))}; {end - size:,} bytes are missing at the end."
            )
            numbers = {"offset": at, "size": file_size, "missing": end - size, "tensors": len(past)}
            damage.add("FI013", message, numbers=numbers, again=True, where=f"{file}: {name}")
        position, previous = 0, ""
        overlaps: list[str] = []
        holes: list[str] = []
        for begin, end, name in spans:
            if begin < position:
                overlaps.append(f"{quote(name)} begins at {begin:,}, before {quote(previous)} ends at {position:,}")
            elif begin > position:
                after = f" after {quote(previous)}" if previous else ""
                holes.append(f"{begin - position:,} bytes{after} ({position:,} to {begin:,}) belong to no tensor")
            if end >= position:
                position, previous = end, name
        if overlaps:
            message = f"{file}: tensors overlap: {overlaps[0]} (bytes of the data){others(len(overlaps))}."
            damage.add("FI014", message, numbers={"overlaps": len(overlaps)}, again=True)
        if holes and complete:
            message = f"{file}: the data has holes: {holes[0]}{others(len(holes))}."
            damage.add("FI015", message, numbers={"holes": len(holes)}, again=True)
        if position < size and complete:
            left = size - position
            message = f"{file}: {left:,} bytes follow the last tensor, at byte {self.data_start + position:,}."
            damage.add("FI016", message, numbers={"bytes": left}, again=True)


def show_shape(shape: list[int]) -> str:
    if len(shape) <= 8:
        return str(shape)
    return f"[{', '.join(map(str, shape[:8]))}, ... {len(shape):,} dimensions]"


def others(count: int) -> str:
    """ " (and 3 others)" for a list of 4 of which the first was named."""
    if count < 2:
        return ""
    return f" (and {count - 1:,} {'others' if count > 2 else 'other'})"


def depth(value: Any) -> int:
    """Levels of nesting, counted without recursion."""
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, level = stack.pop()
        deepest = max(deepest, level)
        if isinstance(item, dict):
            stack.extend((child, level + 1) for child in item.values())
        elif isinstance(item, list):
            stack.extend((child, level + 1) for child in item)
    return deepest


def clean(value: Any) -> bool:
    """False where a text inside holds half a surrogate pair or a number is NaN or infinite."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, OddNumber):
            if item.lstrip("-")[:1] in ("N", "I"):
                return False
        elif isinstance(item, str) and not encodable(item):
            return False
    return True
