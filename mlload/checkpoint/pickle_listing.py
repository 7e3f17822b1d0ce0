"""A pickle read as a list of instructions: what it would build and whom it would call, calling nobody.

Objects that matter to a checkpoint (dicts, tuples, texts, numbers) are built; everything else stays a
description: `Name` for what a GLOBAL would import, `Call` for what a REDUCE would run.
Source: Python's pickletools (the instructions) and torch/_weights_only_unpickler.py (what may be named).
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

from mlload.checkpoint.pickle_names import ALLOWED

MAX_INSTRUCTIONS = 5_000_000
MAX_NAMES = 10_000


class Name(NamedTuple):
    """Something that unpickling would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Persistent(NamedTuple):
    """Something kept outside the pickle: in torch files a storage."""

    key: Any


@dataclass(eq=False)
class Call:
    """Something that unpickling would run: `state` is what BUILD would set on the result."""

    function: Any
    arguments: Any
    state: Any = None


class Mark:
    """Where a group of stack items begins."""


class BadPickle(Exception):
    """Why the instructions cannot be followed, as the end of a sentence."""


class Listing(NamedTuple):
    """root: the object that the pickle describes; names: everything that it would import, in order;
    length: bytes up to and with its STOP."""

    root: Any
    names: list[Name]
    length: int

    @property
    def refused(self) -> list[str]:
        """Names that torch.load(weights_only=True) does not take."""
        return [text for text in dict.fromkeys(map(str, self.names)) if text not in ALLOWED]


def list_pickle(data: bytes, start: int = 0) -> Listing:
    """Follow the instructions of one pickle in `data` from `start` on. BadPickle where that fails."""
    machine = _Machine()
    stream = BytesIO(data)
    stream.seek(start)
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(stream)):
            if count > MAX_INSTRUCTIONS:
                raise BadPickle(f"has more than {MAX_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP" and position is not None:
                return Listing(machine.pop(), machine.names, position + 1 - start)
            machine.step(opcode.name, argument)
    except BadPickle:
        raise
    except (ValueError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise BadPickle(f"cannot be followed: {ascii(reason)[1:-1]}") from None
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadPickle(f"cannot be followed: its instructions do not fit together ({type(error).__name__})") from None
    raise BadPickle("does not end")


class _Machine:
    """The pickle machine: a stack, a memo, and no effect on anything else."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[Any, Any] = {}
        self.names: list[Name] = []
        self.copied = 0

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is Mark:
            raise BadPickle("cannot be followed: it takes from an empty group")
        return value

    def top(self) -> Any:
        return self.stack[-1]

    def group(self) -> list[Any]:
        """Everything above the last mark, which goes with it."""
        items: list[Any] = []
        while True:
            value = self.stack.pop()
            if value is Mark:
                items.reverse()
                return items
            items.append(value)

    def step(self, name: str, argument: Any) -> None:
        handler = _SIMPLE.get(name)
        if handler is not None:
            self.stack.append(handler())
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _IGNORED:
            return
        else:
            getattr(self, "do_" + name.lower(), self.unknown)(argument)

    def unknown(self, argument: Any) -> None:
        raise BadPickle("uses an instruction that is not understood")

    def do_mark(self, _: Any) -> None:
        self.stack.append(Mark)

    def do_pop(self, _: Any) -> None:
        self.stack.pop()

    def do_pop_mark(self, _: Any) -> None:
        self.group()

    def do_dup(self, _: Any) -> None:
        self.stack.append(self.top())

    # Memo

    def do_put(self, key: Any) -> None:
        self.memo[key] = self.top()

    do_binput = do_long_binput = do_put

    def do_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.top()

    def do_get(self, key: Any) -> None:
        self.stack.append(self.memo[key])

    do_binget = do_long_binget = do_get

    # Containers

    def do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.group()))

    def do_tuple1(self, _: Any) -> None:
        self.stack.append((self.pop(),))

    def do_tuple2(self, _: Any) -> None:
        second, first = self.pop(), self.pop()
        self.stack.append((first, second))

    def do_tuple3(self, _: Any) -> None:
        third, second, first = self.pop(), self.pop(), self.pop()
        self.stack.append((first, second, third))

    def do_list(self, _: Any) -> None:
        self.stack.append(self.group())

    def do_frozenset(self, _: Any) -> None:
        self.stack.append(self.group())

    def do_dict(self, _: Any) -> None:
        self.stack.append(pairs(self.group()))

    def do_append(self, _: Any) -> None:
        value = self.pop()
        extend(self.top(), [value])

    def do_appends(self, _: Any) -> None:
        values = self.group()
        extend(self.top(), values)

    do_additems = do_appends

    def do_setitem(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        update(self.top(), {hashable(key): value})

    def do_setitems(self, _: Any) -> None:
        values = pairs(self.group())
        update(self.top(), values)

    # What a real unpickler would import and run

    def named(self, module: Any, name: Any) -> Name:
        found = Name(label(module), label(name))
        if len(self.names) >= MAX_NAMES:
            raise BadPickle(f"imports more than {MAX_NAMES:,} names")
        self.names.append(found)
        return found

    def do_global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(self.named(module, name))

    def do_stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        self.stack.append(self.named(module, name))

    def do_inst(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        arguments = tuple(self.group())
        self.stack.append(Call(self.named(module, name), arguments))

    def do_obj(self, _: Any) -> None:
        function, *arguments = self.group()
        self.stack.append(Call(function, tuple(arguments)))

    def do_reduce(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        if isinstance(function, Name) and function == ("collections", "OrderedDict"):
            items = arguments[0] if isinstance(arguments, tuple) and arguments else []
            found = pairs_of(items)
            self.copied += len(found)
            if self.copied > MAX_INSTRUCTIONS:
                raise BadPickle(f"copies more than {MAX_INSTRUCTIONS:,} items")
            self.stack.append(found)
        else:
            self.stack.append(Call(function, arguments))

    def do_newobj(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        self.stack.append(Call(function, arguments))

    def do_newobj_ex(self, _: Any) -> None:
        keywords, arguments, function = self.pop(), self.pop(), self.pop()
        self.stack.append(Call(function, (arguments, keywords)))

    def do_build(self, _: Any) -> None:
        state = self.pop()
        target = self.top()
        if isinstance(target, Call):
            target.state = state

    def do_persid(self, key: Any) -> None:
        self.stack.append(Persistent(key))

    def do_binpersid(self, _: Any) -> None:
        self.stack.append(Persistent(self.pop()))

    def extension(self, code: Any) -> None:
        self.stack.append(self.named("copyreg", f"extension {code}"))

    do_ext1 = do_ext2 = do_ext4 = extension


_SIMPLE: dict[str, Any] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
}
# Instructions that push their own argument.
_LITERALS = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_IGNORED = frozenset({"PROTO", "FRAME", "READONLY_BUFFER"})


def hashable(key: Any) -> Any:
    """A dictionary key. Containers and huge numbers are named by their type alone."""
    if isinstance(key, int):
        return key if key.bit_length() <= 64 else "<int>"
    return key if isinstance(key, str | float | bytes | Name) or key is None else f"<{type(key).__name__}>"


def label(value: Any) -> str:
    """A name found in a pickle as text. Nothing else is turned into text: a few instructions describe
    structures whose text would fill the memory."""
    if isinstance(value, str):
        return value
    if isinstance(value, Name):
        return f"{value.module}.{value.name}"
    return str(value) if isinstance(value, int) and value.bit_length() <= 64 else f"<{type(value).__name__}>"


def pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise BadPickle("cannot be followed: a dictionary has a key without a value")
    return {hashable(items[i]): items[i + 1] for i in range(0, len(items), 2)}


def pairs_of(items: Any) -> dict[Any, Any]:
    """The argument of OrderedDict: a dictionary, or a list of pairs."""
    if isinstance(items, dict):
        return dict(items)
    found: dict[Any, Any] = {}
    for item in items if isinstance(items, list | tuple) else ():
        if isinstance(item, list | tuple) and len(item) == 2:
            found[hashable(item[0])] = item[1]
    return found


def extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(values)


def update(target: Any, values: dict[Any, Any]) -> None:
    if isinstance(target, dict):
        target.update(values)
