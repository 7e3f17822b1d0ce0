"""Small configs for every covered model type: each module's CASES, model type -> at least two cases."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.plan.architecture_cases.case import Case

CASES: dict[str, tuple[Case, ...]] = {}
for _found in pkgutil.iter_modules(__path__):
    _cases: dict[str, tuple[Case, ...]] = getattr(import_module(f"{__name__}.{_found.name}"), "CASES", {})
    assert not _cases.keys() & CASES.keys(), f"a model type of {_found.name} has cases elsewhere"
    CASES.update(_cases)
