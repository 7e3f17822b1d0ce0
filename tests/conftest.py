"""Fixtures that tests of several packages use."""

from __future__ import annotations

from tests.real_models import real_model
from tests.skeletons import skeleton

__all__ = ["real_model", "skeleton"]
