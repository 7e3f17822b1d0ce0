"""Finds the profile of an engine at a version.

Without a version an installed engine decides; where none is installed, the newest profile. A
version may be given in short ("0.33" is the newest 0.33.x that there is a profile for).
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.profiles.profile import Profile

ENGINES = ("vllm", "transformers", "native")
_HERE = os.path.dirname(__file__)


def parse_engine(text: str) -> tuple[str, str | None]:
    """ "vllm@0.33" -> ("vllm", "0.33"); "vllm" -> ("vllm", None)."""
    engine, _, version = text.strip().lower().partition("@")
    if engine not in ENGINES:
        raise MlloadError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    return engine, version.removeprefix("v") or None


@cache
def available(engine: str) -> tuple[str, ...]:
    """Versions that there is a profile for, oldest first. ("",) for an engine without versions."""
    found = []
    for name in os.listdir(_HERE):
        stem, dot, ending = name.partition(".")
        if not dot or ending != "json":
            continue
        if stem == engine:
            found.append("")
        elif stem.startswith(engine + "_") and (version := stem[len(engine) + 1 :].replace("_", "."))[0].isdigit():
            found.append(version)
    return tuple(sorted(found, key=_numbers))


def load(engine: str = "vllm", version: str | None = None) -> Profile:
    """The profile of an engine; `version` in short or in full. "vllm@0.33" may be given as one word.

    A version that there is no profile for is an error with exit code 3 (could not judge), unless an
    installed engine asked for it: then the nearest profile stands in, and says so in its label.
    """
    if "@" in engine:
        engine, version = parse_engine(engine)
    if engine not in ENGINES:
        raise MlloadError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    versions = available(engine)
    if versions == ("",):
        found = _read(engine, "", False)
        return _with_installed_quantizers(found) if engine == "transformers" else found
    if version is not None:
        return _read(engine, _match(engine, version, versions), False)
    here = _installed(engine)
    if here is not None:
        series = [v for v in versions if _numbers(v)[:2] == _numbers(here)[:2]]
        if series:
            return _read(engine, here if here in versions else series[-1], True)
    return _read(engine, versions[-1], False)


def _with_installed_quantizers(profile: Profile) -> Profile:
    """The quantizers of the installed Transformers, read from its table as text; as it is where none is installed."""
    import re
    import sys

    for folder in sys.path:
        path = os.path.join(folder or ".", "transformers", "quantizers", "auto.py")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                table = re.search(r"AUTO_QUANTIZATION_CONFIG_MAPPING\b[^{]*\{([^}]*)\}", file.read())
            names = sorted(re.findall(r"[\"']([\w-]+)[\"']\s*:", table[1])) if table else []
            version = _installed("transformers") or ""
            facts = {
                **profile.facts,
                "quantizers": {"value": names, "source": f"transformers {version} quantizers/auto.py"},
            }
            return replace(profile, version=version, installed=True, facts=facts if names else profile.facts)
    return profile


def _match(engine: str, asked: str, versions: tuple[str, ...]) -> str:
    exact = [v for v in versions if v == asked or v.startswith(asked + ".")]
    if not exact:
        raise MlloadError(
            f"no profile for {engine} {asked}; there are profiles for {', '.join(versions)}",
            hint=f"use --engine {engine}@{versions[-1]}",
            exit_code=3,
        )
    return exact[-1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


@cache
def _installed(engine: str) -> str | None:
    """The installed version, found without importing the engine; None when there is none."""
    import sys

    # A look at the folders first: importlib.metadata costs more than reading a profile.
    if not any(os.path.isdir(os.path.join(path, engine)) for path in sys.path if path):
        return None
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(engine)
    except PackageNotFoundError:
        return None


@cache
def _read(engine: str, version: str, installed: bool) -> Profile:
    name = f"{engine}_{version.replace('.', '_')}.json" if version else f"{engine}.json"
    with open(os.path.join(_HERE, name), encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return Profile(
        engine=data["engine"],
        version=data["version"],
        assumed=data.get("assumed", {}),
        installed=installed,
        facts=data.get("facts", {}),
        kernels=data.get("kernels", {}),
    )
