"""How much is asked of a real vLLM: eight starts in CI, everything with MLLOAD_ACCEPTANCE=all."""

from __future__ import annotations

import os


def everything() -> bool:
    return os.environ.get("MLLOAD_ACCEPTANCE") == "all"
