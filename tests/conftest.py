"""Fixtures that tests of several packages use."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# Before anything imports triton: its own library is decorated for the interpreter or for a GPU once, when imported.
os.environ["TRITON_INTERPRET"] = "1"

from tests.real_models import real_model
from tests.skeletons import skeleton

__all__ = ["real_model", "skeleton"]

# A busy machine takes what it takes; and what is tried is the same everywhere. HYPOTHESIS_PROFILE=default tries others.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# A shell ignores Ctrl-C for what it starts in the background, and children inherit that: tests interrupt theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)
