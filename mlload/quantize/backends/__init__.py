"""Other tools behind `mlload quantize`: the same front, data, carried files, check and report."""

from __future__ import annotations

from mlload.checkpoint.finding import MlloadError


class BackendFailed(MlloadError):
    """Another tool cannot quantize this model: nothing is left that could be gone on with."""
