"""`--assume-quant`: the quantization that a model would have, for one that is not quantized yet."""

from __future__ import annotations

from mlload.checkpoint.finding import MlloadError
from mlload.quant.formats import plain_modules
from mlload.quant.spec import QuantSpec, Scheme

CHOICES = (
    "awq[:gN]",
    "gptq[:gN][:bN]",
    "fp8",
    "fp8:static",
    "fp8:blockN",
    "w8a8",
    "w8a16",
    "w4a16[:gN]",
    "w8a8-fp8",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "nvfp4a16",
    "nf4",
)


def assume(text: str) -> QuantSpec:
    """The spec that `text` names; routers, head, embeddings, norms and towers are left as they are."""
    name, *options = text.strip().lower().split(":")
    group, bits, block, static = 128, 4, 0, False
    for option in options:
        if option == "static" and name == "fp8":
            static = True
        elif option[:5] == "block" and name == "fp8" and option[5:].isdigit():
            block = _size(text, option[5:])
        elif option == "channel" and name in ("w4a16", "gptq", "awq"):
            group = -1
        elif option[:1] == "g" and option[1:].lstrip("-").isdigit() and name in ("awq", "gptq", "w4a16"):
            group = -1 if option == "g-1" else _size(text, option[1:])
        elif option[:1] == "b" and name == "gptq" and option[1:] in ("2", "3", "4", "8"):
            bits = int(option[1:])
        else:
            raise _unknown(text)
    method, scheme = _scheme(text, name, group=group, bits=bits, block=block, static=static)

    def scheme_for(module: str) -> Scheme | None:
        return None if plain_modules.left_plain(module) or plain_modules.in_tower(module) else scheme

    return QuantSpec(
        method=method,
        scheme_for=scheme_for,
        schemes=(scheme,),
        declared_in="assumed",
        evidence=(f"assumed: {text}",),
    )


def _scheme(text: str, name: str, *, group: int, bits: int, block: int, static: bool) -> tuple[str, Scheme]:
    strategy = "channel" if group == -1 else "group"
    ct = "compressed_tensors"
    if name == "awq":
        return "awq", Scheme("awq", "gemm", 4, "int", strategy, group, symmetric=False)
    if name == "gptq":
        return "gptq", Scheme("gptq", "gptq", bits, "int", strategy, group)
    if name == "fp8" and block:
        size = (block, block)
        return "fp8", Scheme("fp8", "block", 8, "float", "block", block, size, activation="dynamic", activation_bits=8)
    if name == "fp8":
        if static:
            return "fp8", Scheme("fp8", "static", 8, "float", "tensor", activation="static", activation_bits=8)
        return "fp8", Scheme("fp8", "tensor", 8, "float", "tensor", activation="dynamic", activation_bits=8)
    if name == "w4a16":
        return "compressed-tensors", Scheme(ct, "pack-quantized", 4, "int", strategy, group)
    fixed = {
        "w8a16": Scheme(ct, "pack-quantized", 8, "int", "channel", -1),
        "w8a8": Scheme(ct, "int-quantized", 8, "int", "channel", -1, activation="dynamic", activation_bits=8),
        "w8a8-fp8": Scheme(ct, "float-quantized", 8, "float", "channel", -1, activation="dynamic", activation_bits=8),
        "nvfp4": Scheme(
            ct, "nvfp4-pack-quantized", 4, "float", "tensor_group", 16, activation="dynamic", activation_bits=4
        ),
        "nvfp4a16": Scheme(ct, "nvfp4-pack-quantized", 4, "float", "tensor_group", 16),
        "mxfp8": Scheme(ct, "mxfp8-quantized", 8, "mx", "group", 32, activation="dynamic", activation_bits=8),
        "mxfp4": Scheme(ct, "mxfp4-pack-quantized", 4, "mx", "group", 32),
    }
    if name in fixed:
        return "compressed-tensors", fixed[name]
    if name == "nf4":
        return "bitsandbytes", Scheme("bitsandbytes", "nf4", 4, "codebook", "block", 64)
    raise _unknown(text)


def _size(text: str, digits: str) -> int:
    size = int(digits[:9])
    if not 8 <= size <= 1 << 20:
        raise _unknown(text)
    return size


def _unknown(text: str) -> MlloadError:
    return MlloadError(f"unknown quantization {text!r}; choices: {', '.join(CHOICES)}")
