"""What the interpreter gets wrong is mended before a kernel runs in it. Where there is no triton there are no tests."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import tests.kernels.triton.interpreter  # noqa: F401
