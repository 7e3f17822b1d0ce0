"""The real models as made from their packages: known sizes, and a checkpoint without problems."""

from __future__ import annotations

import hashlib

import pytest

from mlload.checkpoint.checkpoint import Checkpoint
from tests.real_models import RealModel


def test_smollm2_is_whole(real_model: RealModel) -> None:
    checkpoint = Checkpoint.open(str(real_model("smollm2")))
    assert checkpoint.problems == ()
    # 30 layers of q, k, v, o, gate, up, down and two norms; a table, tied to the head; a last norm
    assert len(checkpoint.tensors) == 30 * 9 + 2
    hidden, mlp, kv, vocab = 576, 1536, 3 * 64, 49152
    layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * hidden * mlp + 2 * hidden
    assert sum(ref.nbytes for ref in checkpoint.tensors.values()) == 2 * (30 * layer + vocab * hidden + hidden)


@pytest.mark.slow
def test_gemma3_is_what_its_package_states(real_model: RealModel) -> None:
    folder = real_model("gemma3")
    digest, name = (folder / "SHA256SUMS").read_text().split()
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
