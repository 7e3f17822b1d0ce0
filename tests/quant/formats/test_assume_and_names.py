"""--assume-quant, KV-scale names, the registry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlload.checkpoint.finding import MlloadError
from mlload.quant.codes import CODES
from mlload.quant.formats import assume, get, kv_scale_names, registry
from mlload.quant.formats.kv import declared, kv_scale_of


@pytest.mark.parametrize(
    ("text", "fmt", "layout", "bits", "group", "block"),
    [
        ("awq", "awq", "gemm", 4, 128, None),
        ("awq:g64", "awq", "gemm", 4, 64, None),
        ("gptq:g32", "gptq", "gptq", 4, 32, None),
        ("gptq:b8:channel", "gptq", "gptq", 8, -1, None),
        ("fp8", "fp8", "tensor", 8, None, None),
        ("fp8:static", "fp8", "static", 8, None, None),
        ("fp8:block128", "fp8", "block", 8, 128, (128, 128)),
        ("w8a8", "compressed_tensors", "int-quantized", 8, -1, None),
        ("w4a16", "compressed_tensors", "pack-quantized", 4, 128, None),
        ("W4A16:g32", "compressed_tensors", "pack-quantized", 4, 32, None),
        ("mxfp4", "compressed_tensors", "mxfp4-pack-quantized", 4, 32, None),
        ("nvfp4", "compressed_tensors", "nvfp4-pack-quantized", 4, 16, None),
    ],
)
def test_assume(text: str, fmt: str, layout: str, bits: int, group: int | None, block: object) -> None:
    quant = assume(text)
    scheme = quant.scheme_for("model.layers.0.mlp.experts.3.down_proj")
    assert scheme is not None and quant.schemes == (scheme,)
    assert (scheme.format, scheme.layout, scheme.bits) == (fmt, layout, bits)
    assert (scheme.group_size, scheme.block) == (group, block)
    for plain in ("lm_head", "model.embed_tokens", "model.layers.0.mlp.gate", "model.visual.blocks.0.attn.proj"):
        assert quant.scheme_for(plain) is None


@pytest.mark.parametrize("text", ["", "q4", "awq:128", "fp8:g32", "gptq:b5", "fp8:block0", "awq:g99999999999"])
def test_unknown_names_list_the_choices(text: str) -> None:
    with pytest.raises(MlloadError, match=r"choices: awq\[:gN\]"):
        assume(text)


def test_kv_scale_spellings() -> None:
    attention = "model.layers.5.self_attn"
    for which in ("k", "v", "q"):
        for name in kv_scale_names(attention, which):  # type: ignore[arg-type]
            assert kv_scale_of(name) in ((attention, which), (attention, "kv"))
    assert f"{attention}.k_proj.k_scale" in kv_scale_names(attention, "k")
    assert kv_scale_names(attention, "v")[-2:] == (f"{attention}.kv_scale", f"{attention}.attn.kv_scale")
    assert kv_scale_of(f"{attention}.k_zero_point") == (attention, "zero")
    assert kv_scale_of(f"{attention}.k_proj.weight_scale") is None
    assert kv_scale_of(f"{attention}.k_proj.input_scale") is None
    assert kv_scale_of("backbone.layers.3.mixer.k_proj.k_scale") == ("backbone.layers.3.mixer", "k")


def test_declared_kv_schemes() -> None:
    per_head = declared({"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head"}})
    assert per_head is not None and per_head.strategy == "attn_head"
    assert declared({"kv_cache_quant_algo": "NVFP4"}) is not None
    for nothing in ({}, {"kv_cache_scheme": None}, {"kv_cache_quant_algo": None}, {"kv_cache_quant_algo": "none"}):
        assert declared(nothing) is None


def test_every_format_has_the_same_names() -> None:
    for name in registry.NAMES:
        module = get(name)
        for function in ("detect", "declare", "spec", "unpack", "pack", "cut", "dequantize"):
            assert callable(getattr(module, function)), (name, function)


def test_unknown_formats_name_the_known() -> None:
    with pytest.raises(MlloadError, match="compressed_tensors"):
        get("no-such-format")


def test_third_parties_are_asked_only_for_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "their-format"

        def load(self) -> object:
            return self

    asked = []

    def entries() -> tuple[Entry, ...]:
        asked.append(True)
        return (Entry(),)

    monkeypatch.setattr(registry, "_entry_points", entries)
    get.cache_clear()
    get("awq")
    assert not asked
    assert isinstance(get("their-format"), Entry) and asked
    get.cache_clear()


def test_detection_imports_neither_numpy_nor_torch() -> None:
    program = (
        "import sys\n"
        "from mlload.quant.formats import assume, get, registry, spec, effective_bits\n"
        "for name in registry.NAMES: get(name)\n"
        "assume('awq'); effective_bits(assume('gptq').schemes[0])\n"
        "print(sorted({'numpy', 'torch', 'transformers', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_codes_are_explained() -> None:
    used = set()
    for source in Path(registry.__file__).parents[2].rglob("*.py"):
        used |= set(re.findall(r'^ +"(QT[0-9]{3})",$', source.read_text(), re.MULTILINE))
    assert used == set(CODES)
    for code, (title, explanation) in CODES.items():
        assert code[:2] == "QT" and code[2:].isdigit() and len(code) == 5
        assert title and explanation.endswith(".")
