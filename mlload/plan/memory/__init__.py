"""Does it fit: the engine's own cache arithmetic (exact), and what it needs beside weights and cache (ranges)."""

from __future__ import annotations

from mlload.plan.memory.fit import Fits, MemoryAnswer, RankMemory, judge_memory
from mlload.plan.memory.settings import Settings

__all__ = ["Fits", "MemoryAnswer", "RankMemory", "Settings", "judge_memory"]
