"""What a person asked for, as the schemes of `quant.spec`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from mlload.checkpoint.finding import MlloadError
from mlload.quant.spec import Scheme

CT = "compressed_tensors"
SCHEMES: dict[str, Scheme] = {
    "W4A16": Scheme(CT, "pack-quantized", 4, "int", "group", 128),
    "W4A16_ASYM": Scheme(CT, "pack-quantized", 4, "int", "group", 128, symmetric=False),
    "W8A16": Scheme(CT, "pack-quantized", 8, "int", "channel", -1),
    "W8A8": Scheme(CT, "int-quantized", 8, "int", "channel", -1, activation="dynamic", activation_bits=8),
    "FP8": Scheme(CT, "float-quantized", 8, "float", "channel", -1, activation="dynamic", activation_bits=8),
    "FP8_TENSOR": Scheme(CT, "float-quantized", 8, "float", "tensor", activation="dynamic", activation_bits=8),
    "FP8_BLOCK": Scheme(
        CT, "float-quantized", 8, "float", "block", None, (128, 128), activation="dynamic", activation_bits=8
    ),
    "FP8_STATIC": Scheme(CT, "float-quantized", 8, "float", "tensor", activation="static", activation_bits=8),
    "MXFP4A16": Scheme(CT, "mxfp4-pack-quantized", 4, "mx", "group", 32),
    "MXFP4": Scheme(CT, "mxfp4-pack-quantized", 4, "mx", "group", 32, activation="dynamic", activation_bits=4),
    "NVFP4A16": Scheme(CT, "nvfp4-pack-quantized", 4, "float", "tensor_group", 16),
    # Dynamic within a block, under a global scale that is calibrated.
    "NVFP4": Scheme(
        CT, "nvfp4-pack-quantized", 4, "float", "tensor_group", 16, activation="dynamic", activation_bits=4
    ),
}
SPELLINGS = {"FP8_DYNAMIC": "FP8", "INT8": "W8A8"}
METHODS = {
    "rtn": ("W4A16", "W4A16_ASYM", "W8A16"),
    "awq": ("W4A16_ASYM", "W4A16", "W8A16"),
    "gptq": ("W4A16", "W4A16_ASYM", "W8A16"),
    "fp8": ("FP8", "FP8_TENSOR", "FP8_BLOCK", "FP8_STATIC"),
    "int8": ("W8A8",),
    "mxfp4": ("MXFP4A16", "MXFP4"),
    "nvfp4": ("NVFP4A16", "NVFP4"),
}
CALIBRATED = ("awq", "gptq")
LAYOUTS = ("awq", "gptq", "compressed-tensors", "fp8")
BACKENDS = ("mlload", "autoawq")


@dataclass(frozen=True, slots=True)
class Recipe:
    """method: a key of METHODS; scheme: of every target but where an override says otherwise
    save_as: whose layout is written, one of LAYOUTS
    ignore: patterns of modules that stay as they are ("re:" regex, or a glob on the whole path or its last name)
    overrides: (pattern, scheme), the first that matches wins; None leaves the module as it is
    backend: whose algorithm, one of BACKENDS
    smooth: SmoothQuant's alpha, None = no smoothing; kv_cache: scales for a KV cache of fp8
    sequential: layers are calibrated on what the quantized layers before them make
    """

    method: str
    scheme: Scheme
    save_as: str
    ignore: tuple[str, ...] = ()
    overrides: tuple[tuple[str, Scheme | None], ...] = ()
    clip: bool = True
    backend: str = "mlload"
    smooth: float | None = None
    kv_cache: bool = False
    sequential: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether data is looked at: for the weights, for what the layers see, or for the cache."""
        return self.method in CALIBRATED or self.smooth is not None or self.kv_cache or has_input_scale(self.scheme)

    def ignores(self, module: str) -> bool:
        return any(matches(pattern, module) for pattern in self.ignore)

    def scheme_for(self, module: str) -> Scheme | None:
        if self.ignores(module):
            return None
        for pattern, scheme in self.overrides:
            if matches(pattern, module):
                return scheme
        return self.scheme

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "save_as": self.save_as,
            "scheme": scheme_json(self.scheme),
            "ignore": list(self.ignore),
            "overrides": {pattern: None if s is None else scheme_json(s) for pattern, s in self.overrides},
            "clip": self.clip,
            "smooth": self.smooth,
            "kv_cache": self.kv_cache,
            "sequential": self.sequential,
            "backend": self.backend,
        }


def scheme_json(scheme: Scheme) -> dict[str, Any]:
    return {
        "format": scheme.format,
        "layout": scheme.layout,
        "bits": scheme.bits,
        "kind": scheme.kind,
        "strategy": scheme.strategy,
        "group_size": scheme.group_size,
        "block": scheme.block,
        "symmetric": scheme.symmetric,
        "activation": scheme.activation,
    }


def has_input_scale(scheme: Scheme) -> bool:
    """Whether a scale of the activations is stored."""
    return scheme.activation == "static" or (scheme.activation is not None and scheme.strategy == "tensor_group")


def matches(pattern: str, module: str) -> bool:
    """ "re:" and a regex that matches from the start; else a glob on the path, or on its end after a dot."""
    if pattern.startswith("re:"):
        from mlload.quant.formats.matching import regex

        compiled = regex(pattern[3:])
        if compiled is None:
            raise MlloadError(f"{pattern!r} is no regular expression")
        return compiled.match(module) is not None
    return fnmatchcase(module, pattern) or fnmatchcase(module, f"*.{pattern}")


def make_recipe(
    method: str,
    *,
    scheme: str | None = None,
    bits: int | None = None,
    group_size: int | None = None,
    symmetric: bool | None = None,
    save_as: str | None = None,
    ignore: tuple[str, ...] = (),
    overrides: tuple[str, ...] = (),
    clip: bool | None = None,
    backend: str = "mlload",
    smooth: float | None = None,
    kv_cache: bool = False,
    sequential: bool | None = None,
) -> Recipe:
    """clip: None = where it was measured to help. Raises MlloadError where two options contradict each other."""
    name = (scheme or METHODS[method][0]).upper()
    name = SPELLINGS.get(name, name)
    if name not in METHODS[method]:
        raise MlloadError(f"--method {method} makes {', '.join(METHODS[method])}, not {scheme}")
    found = SCHEMES[name]
    integers = found.layout == "pack-quantized"
    if not integers and (bits, group_size, symmetric) != (None, None, None):
        raise MlloadError(f"--bits, --group-size and --sym belong to integer weights; {name} has none to choose")
    if integers:
        found = _integers(found, bits, group_size, symmetric)
    target = save_as or (method if method in ("awq", "gptq") else "compressed-tensors")
    found = saved_as(found, target, name)
    # An asymmetric range ends where the weights do: any cut is a loss at both ends, and without data nobody knows what
    # it costs. A symmetric one reaches beyond the weights on one side, and is cut there for nothing.
    cut = clip if clip is not None else method != "rtn" or found.symmetric
    made = Recipe(method, found, target, ignore, (), cut, backend, smooth, kv_cache, sequential is True)
    _refuse_contradictions(made, sequential)
    if backend == "autoawq" and (method != "awq" or target != "awq" or found.group_size == -1):
        raise MlloadError(
            "--backend autoawq makes --method awq, saved as awq, in groups",
            hint="--group-size 128, or --backend mlload",
        )
    return replace(made, overrides=tuple(_override(text, made) for text in overrides))


def _refuse_contradictions(recipe: Recipe, sequential: bool | None) -> None:
    if recipe.smooth is not None:
        if recipe.method != "int8":
            raise MlloadError("--smooth belongs to --method int8: weights alone need no smoother activations")
        if not 0 <= recipe.smooth <= 1:
            raise MlloadError(f"--smooth takes 0 to 1 (0.5 shares the difficulty evenly), not {recipe.smooth:g}")
    if recipe.kv_cache and recipe.save_as != "compressed-tensors":
        raise MlloadError(
            f"--kv-cache-scheme is declared by compressed-tensors only, not by {recipe.save_as}",
            hint="--save-as compressed-tensors",
        )
    if sequential is not None and not recipe.calibrated:
        raise MlloadError(f"--method {recipe.method} looks at no calibration data: there is no order to choose")
    if recipe.backend != "mlload" and (recipe.kv_cache or sequential is not None):
        raise MlloadError("--backend autoawq takes neither --kv-cache-scheme nor --sequential")


def _integers(scheme: Scheme, bits: int | None, group: int | None, symmetric: bool | None) -> Scheme:
    bits = bits or scheme.bits
    if bits not in (4, 8):
        raise MlloadError(f"--bits takes 4 or 8, not {bits}: engines have no kernel for other widths")
    group = scheme.group_size if group is None else group
    if group is None or (group != -1 and (group < 16 or group % 8)):
        raise MlloadError(f"--group-size takes 32, 64, 128 or -1 (one group a row), not {group}")
    return replace(
        scheme,
        bits=bits,
        group_size=group,
        strategy="channel" if group == -1 else "group",
        symmetric=scheme.symmetric if symmetric is None else symmetric,
    )


def saved_as(scheme: Scheme, target: str, name: str) -> Scheme:
    """The same numbers in another tool's layout."""
    if target == "compressed-tensors":
        return scheme
    if target == "fp8":
        if name == "FP8_BLOCK":
            return Scheme("fp8", "block", 8, "float", "block", 128, (128, 128), activation="dynamic", activation_bits=8)
        if name == "FP8_STATIC":
            return Scheme("fp8", "static", 8, "float", "tensor", activation="static", activation_bits=8)
        if name == "FP8_TENSOR":
            return Scheme("fp8", "tensor", 8, "float", "tensor", activation="dynamic", activation_bits=8)
        raise MlloadError(
            f"--save-as fp8 has scales per tensor or per block of 128, not those of {name}",
            hint="--scheme FP8_BLOCK, FP8_TENSOR or FP8_STATIC",
        )
    if scheme.layout != "pack-quantized":
        raise MlloadError(f"--save-as {target} holds integer weights, and {name} makes others")
    if target == "awq" and scheme.bits != 4:
        raise MlloadError(f"--save-as awq holds 4 bits, not {scheme.bits}", hint="--save-as gptq or compressed-tensors")
    if target == "gptq" and not scheme.symmetric:
        raise MlloadError(
            "--save-as gptq is symmetric: engines' kernels for it take no zero points",
            hint="--sym, or --save-as awq",
        )
    if target == "awq" and scheme.symmetric:
        raise MlloadError("--save-as awq holds zero points: it is asymmetric", hint="--asym, or --save-as gptq")
    layout = {"awq": "gemm", "gptq": "gptq"}[target]
    return replace(scheme, format=target, layout=layout)


def _override(text: str, recipe: Recipe) -> tuple[str, Scheme | None]:
    """ "PATTERN=bits:8", "PATTERN=group:64", "PATTERN=none"; several settings with commas."""
    pattern, found, settings = text.rpartition("=")
    if not found or not pattern:
        raise MlloadError(f"--override takes PATTERN=bits:8, PATTERN=group:64 or PATTERN=none, not {text!r}")
    if settings == "none":
        return pattern, None
    scheme = recipe.scheme
    for setting in settings.split(","):
        key, _, value = setting.partition(":")
        number = int(value) if value.lstrip("-").isdigit() else None
        if key not in ("bits", "group") or number is None or scheme.kind != "int" or scheme.activation is not None:
            raise MlloadError(f"--override takes PATTERN=bits:8, PATTERN=group:64 or PATTERN=none, not {text!r}")
        scheme = _integers(scheme, number if key == "bits" else None, number if key == "group" else None, None)
    if scheme != recipe.scheme and recipe.save_as == "awq":
        raise MlloadError("--save-as awq has one scheme for all layers; an override there can only be PATTERN=none")
    return pattern, scheme
