"""One of vLLM's functions, once its parameters have been looked at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from mlload.checkpoint.finding import MlloadError


@cache
def function(module: str, name: str, *parameters: str) -> Callable[..., Any]:
    """`module.name`, which must know these parameters; a release that does not is named in the error."""
    try:
        found: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise MlloadError(f"{_release()} has no {module}.{name}: {error}") from error
    known = set(inspect.signature(found).parameters)
    missing = [parameter for parameter in parameters if parameter not in known]
    if missing:
        raise MlloadError(f"{module}.{name} of {_release()} takes no {', '.join(missing)}")
    return found


def _release() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"vllm {version('vllm')}"
    except PackageNotFoundError:
        return "this vllm"
