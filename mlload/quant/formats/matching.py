"""How engines decide that a module is named by an ignore list, a target or an override.

Each method of vLLM 0.33 matches its own way (`model_executor/layers/quantization`: utils/quant_utils.py
`is_layer_skipped`, utils/config_utils.py, compressed_tensors/utils.py, modelopt.py, torchao.py). Names here
are those on disk, where the parts of a fused layer stand apart, so that what vLLM asks of each part is asked
of the module itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

# What quantizers' wrapper modules leave at the end of names, and no runtime has.
WRAPPERS = (".linear", ".orig_module", ".base_layer")


@lru_cache(maxsize=1024)
def regex(pattern: str) -> re.Pattern[str] | None:
    """A compiled pattern, None where it is not one."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def matches(pattern: str, name: str) -> bool:
    """compressed-tensors: equal, or "re:" and a regex that matches from the start."""
    if pattern.startswith("re:"):
        compiled = regex(pattern[3:])
        return compiled is not None and compiled.match(name) is not None
    return pattern == name


def exact_or_regex(patterns: Iterable[str]) -> Callable[[str], bool]:
    names, compiled = set(), []
    for pattern in patterns:
        if pattern.startswith("re:"):
            found = regex(pattern[3:])
            if found is not None:
                compiled.append(found)
        else:
            names.add(pattern)
    return lambda module: module in names or any(p.match(module) for p in compiled)


def exact(names: Iterable[str]) -> Callable[[str], bool]:
    """HF fp8: equal. An entry that names any expert leaves all the experts of its layer unquantized, since the
    engine has one method for them: `experts` in a longer name is what it looks for."""
    listed = frozenset(names)
    layers = frozenset(name[: name.index(".experts") + 8] for name in listed if ".experts" in name)

    def skipped(module: str) -> bool:
        if module in listed:
            return True
        at = module.find(".experts")
        return at >= 0 and bool(layers) and module[: at + 8] in layers

    return skipped


def substring(names: Sequence[str]) -> Callable[[str], bool]:
    """AWQ: an entry anywhere in the name that the engine asks for; "gate" leaves a router plain, and no expert."""
    listed = tuple(name for name in names if name)

    def skipped(module: str) -> bool:
        asked = engine_path(module)
        return any(name in asked for name in listed)

    return skipped


def engine_path(module: str) -> str:
    """What an engine asks about: all experts of a layer are one module to it, called as their parent on disk."""
    at = module.find(".experts.")
    return module if at < 0 else module[: at + 8]


def component(names: Sequence[str]) -> Callable[[str], bool]:
    """torchao: an entry that is a run of whole components of the name."""
    listed = tuple(f".{name}." for name in names if name)

    def skipped(module: str) -> bool:
        dotted = f".{module}."
        return any(name in dotted for name in listed)

    return skipped


def modelopt(patterns: Sequence[str]) -> Callable[[str], bool]:
    """ModelOpt: equal, then inside the name, then wildcards; "name*" means name and all below it."""
    plain = tuple(p for p in patterns if p and not set(p) & set("*?["))
    wild = tuple(p for p in patterns if set(p) & set("*?["))

    by_expert = exact(patterns)

    def skipped(module: str) -> bool:
        asked = engine_path(module)
        if by_expert(module) or any(p in asked for p in plain):
            return True
        short = asked.removeprefix("model.")
        return any(fnmatchcase(asked, p) or fnmatchcase(short, p) for p in wild)

    return skipped


def without_wrapper(pattern: str) -> str:
    """An entry without the wrapper's name that a quantizer left at its end."""
    for wrapper in WRAPPERS:
        if pattern.endswith(wrapper) and not pattern.startswith("re:"):
            return pattern[: -len(wrapper)]
    return pattern
