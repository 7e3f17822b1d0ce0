"""What the interpreter gets wrong is mended before a kernel runs in it."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.kernels.triton import interpreter

__all__ = ["interpreter"]
