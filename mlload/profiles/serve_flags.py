"""The flags that an engine's `serve` command knows, and how each takes its value. Data: `vllm_flags_*.json`."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any, NamedTuple

from mlload.profiles.profile import Profile

_HERE = os.path.dirname(__file__)


class Flag(NamedTuple):
    """One flag of the engine.

    name:    the long name without dashes: "tensor-parallel-size"
    takes:   "value", "list" (several words), "optional" (a word or none), "switch"
    type:    "int", "human int" (32k), "float", "str", "json", "json or text"; "" for a switch
    choices: values that it is held to, () where it is not
    negated: spelled as its opposite (--no-x)
    """

    name: str
    takes: str
    type: str = ""
    choices: tuple[Any, ...] = ()
    negated: bool = False


class FlagTable:
    """All flags of one version, by every spelling."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.version: str = data["version"]
        self.by_spelling: dict[str, Flag] = {}
        for name, record in data["flags"].items():
            flag = Flag(name, record["takes"], record.get("type", ""), tuple(record.get("choices", ())))
            for spelling in (f"--{name}", *record.get("also", ())):
                self.by_spelling[spelling] = flag
            if record.get("no"):
                off = flag._replace(negated=True)
                self.by_spelling[f"--no-{name}"] = off
                if data["enable_disable"]["value"]:
                    for word, opposite in (("enable-", "disable-"), ("disable-", "enable-")):
                        if name.startswith(word):
                            self.by_spelling["--" + opposite + name.removeprefix(word)] = off

    def find(self, spelling: str) -> Flag | None:
        """A flag as typed, without its value; underscores count as dashes, and a beginning that only one flag has
        stands for it (argparse)."""
        if spelling.startswith("--"):
            spelling = spelling.replace("_", "-")
        found = self.by_spelling.get(spelling)
        if found is None and spelling.startswith("--") and len(spelling) > 3:
            fitting = {flag for known, flag in self.by_spelling.items() if known.startswith(spelling)}
            found = fitting.pop() if len(fitting) == 1 else None
        return found

    def near(self, spelling: str) -> list[str]:
        """Spellings that somebody may have meant."""
        from difflib import get_close_matches

        near = get_close_matches(spelling.replace("_", "-"), self.by_spelling, n=3, cutoff=0.7)
        return [known for known in near if alike(spelling.replace("_", "-"), known)]


def alike(typed: str, known: str) -> bool:
    """Not only one word in common, such as "backend" or "size": two, or the words that differ are alike."""
    from difflib import SequenceMatcher

    one, other = (spelling.strip("-").split("-") for spelling in (typed, known))
    both = set(one) & set(other)
    rest = ["-".join(word for word in words if word not in both) for words in (one, other)]
    return len(both) > 1 or SequenceMatcher(None, rest[0], rest[1]).ratio() >= 0.6


def flag_table(profile: Profile) -> FlagTable:
    """The flags of the engine at the profile's version; of the newest vLLM for an engine without a `serve`."""
    from mlload.profiles.loading import available

    return _read(profile.version if profile.engine == "vllm" else available("vllm")[-1])


@cache
def _read(version: str) -> FlagTable:
    with open(os.path.join(_HERE, f"vllm_flags_{version.replace('.', '_')}.json"), encoding="utf-8") as file:
        return FlagTable(json.load(file))
