"""The whole pass over random files, in small blocks and many threads, against torch's view of the same tensors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mlload.checkpoint import streaming
from mlload.checkpoint.checkpoint import Checkpoint
from mlload.validators.deep import scan as scanning
from mlload.validators.deep.roles import without_model
from mlload.validators.deep.scan import Asked, scan

FLOATS = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e8m0fnu,
)  # fmt: skip
PACKED = (torch.int32, torch.uint8, torch.int8, torch.int64)


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_files(tmp_path: Path, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    tensors = {}
    for count in range(data.draw(st.integers(1, 8))):
        dtype = data.draw(st.sampled_from((*FLOATS, *PACKED)))
        size = data.draw(st.integers(1, 20_000)) * dtype.itemsize
        raw = torch.randint(0, 256, (size,), generator=generator, dtype=torch.int64).to(torch.uint8)
        if data.draw(st.booleans()):
            raw &= 0x3B  # no exponent of all ones: finite
        tensors[f"t{count}"] = raw.view(dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    checkpoint = Checkpoint.open(str(tmp_path))
    hashed = frozenset(["model.safetensors"] if data.draw(st.booleans()) else [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "LOCAL_BLOCK", 4096)
        patch.setattr(scanning, "SPAN", data.draw(st.sampled_from([5_000, 64 << 20])))
        seen = scan(checkpoint, without_model(checkpoint.tensors), Asked(True, hashed), threads=3)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        mine, number = seen.tensors[name], seen.hows[name].number
        assert (mine.elements, mine.nbytes) == (tensor.numel(), tensor.nbytes)
        if tensor.dtype in FLOATS:
            wide = tensor.to(torch.float64)
            bad = ~wide.isfinite()
            assert (mine.nan, mine.inf) == (int(wide.isnan().sum()), int(wide.isinf().sum()))
            assert mine.first_bad == (int(bad.nonzero()[0]) if bad.any() else None)
            finite = wide[~bad].abs()
            assert number is not None
            if finite.numel():
                assert number.value(mine.magnitude) == float(finite.max())
        else:
            unsigned = tensor.view(torch.uint8).numpy().view(f"u{tensor.itemsize}")
            assert (mine.low, mine.high) == (int(unsigned.min()), int(unsigned.max()))
    (file,) = seen.files
    truth = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert file.sha256 == (truth if hashed else None)
    assert seen.streamed.nbytes == file.nbytes == (tmp_path / "model.safetensors").stat().st_size
