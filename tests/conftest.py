"""Fixtures that tests of several packages use."""

from __future__ import annotations

from tests.skeletons import skeleton

__all__ = ["skeleton"]
