"""What a kernel is asked: the layer, its method, the GPU, the model's dtype."""

from __future__ import annotations

from typing import NamedTuple

from mlload.profiles.layers import EngineLayer
from mlload.profiles.methods import Method
from mlload.profiles.profile import Profile


class Declined(NamedTuple):
    """A candidate that does not run the layer, and why."""

    kernel: str
    reason: str


class Question(NamedTuple):
    """layer, method: what is to be run
    cc:         compute capability as a number, 90 = 9.0
    dtype:      the model runs in ("BF16", "F16", "F32")
    profile:    orders, constants, and the extras that count as installed
    model_type: of the language model; some kernels are turned off for a few
    """

    layer: EngineLayer
    method: Method
    cc: int
    dtype: str
    profile: Profile
    model_type: str = ""

    @property
    def version(self) -> str:
        """The capability as people write it: "9.0"."""
        return f"{self.cc // 10}.{self.cc % 10}"

    def has(self, extra: str) -> bool:
        """Whether an optional package counts as installed."""
        return self.profile.assumed.get(extra, False)

    def family(self, *majors: int) -> bool:
        """Whether the GPU is of one of these generations: 10 for 10.0 and 10.3, 12 for 12.x."""
        return self.cc // 10 in majors

    @property
    def deep_gemm(self) -> bool:
        """utils/deep_gemm.py:113, platforms/cuda.py:691."""
        return self.has("deep_gemm") and (self.cc == 90 or self.family(10, 12))

    @property
    def deep_gemm_excluded(self) -> bool:
        """utils/deep_gemm.py:28: off for some model types on some generations."""
        families = self.profile.constant("deep_gemm_excluded", {}).get(self.model_type, ())
        return any(self.cc // 10 == int(family) // 10 for family in families)
