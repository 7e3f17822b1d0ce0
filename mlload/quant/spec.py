"""How a checkpoint's weights are quantized: what was declared, what the tensors show.

Letters: N = out_features, K = in_features, G = group size along K, b = bits, E = experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["int", "float", "mx", "codebook", "none"]


class Dim(NamedTuple):
    """One dim of a stored tensor in terms of the linear that it stands for.

    axis:   "N", "K", "E", or "" for a dim that no cut touches
    values: how many logical values along the axis ...
    items:  ... are held by how many stored elements (AWQ's N dim: 8 values in 1 int32 word;
            3-bit GPTQ's K dim: 32 values in 3 words; a Q4_K row: 256 values in 144 bytes)
    size:   of a dim without an axis
    dense:  the last unit may be cut short (a bit stream that stops at the last word it needs)

    A stored length is `ceil(length / values) * items` (dense: `ceil(length * items / values)`); a cut
    [start, stop) of the axis is legal where both ends are multiples of `values` (or the end of the axis), and
    is then [start / values * items, stored length of stop). `quant.formats.tensors` does both.
    """

    axis: Literal["N", "K", "E", ""]
    values: int = 1
    items: int = 1
    size: int = 1
    dense: bool = False


class TensorSpec(NamedTuple):
    """One of the tensors that stand for a quantized linear.

    suffix:   after the module path: "qweight", "weight_scale", "weight.absmax"; "" for a bare parameter. One that
              begins with "_" follows the path without a dot ("_blocks" of "experts.gate_up_proj"), see
              `quant.formats.tensors.tensor_name`
    dtype:    safetensors dtype name; None where any float is legal (bf16 and f32 scales are both right)
    dims:     in stored order; () for a scalar
    role:     "weight", "scale", "zero", "global_scale", "input_scale", "g_idx", "shape", "bias", "aux"
    optional: may be absent
    scalar_ok: a one-element tensor may be stored as [] or [1]
    flat:     holds the row-major flattened [N, K], so that a cut along K is not a slice of it
    """

    suffix: str
    dtype: str | None
    dims: tuple[Dim, ...]
    role: str = "weight"
    optional: bool = False
    scalar_ok: bool = False
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one linear is quantized; equal schemes compare equal, so that layers can be grouped.

    format:     module of `quant.formats` that knows the layout: "awq", "gptq", "compressed_tensors", ...
    layout:     variant inside the format: "gemm", "gemv"; "gptq", "gptq_v2"; "pack-quantized", ...
    bits:       of one stored weight
    kind:       "int", "float" (fp8, fp4 with float scales), "mx" (e8m0 block scales), "codebook" (nf4)
    strategy:   "tensor", "channel", "group", "block", "tensor_group", "token", ...
    group_size: along K; -1 = one group
    block:      (bn, bk) for two-dimensional blocks
    symmetric:  no zero points
    act_order:  rows follow a stored g_idx that is not k // G
    activation: None (weight only), "dynamic" or "static", with `activation_bits`
    """

    format: str
    layout: str = ""
    bits: int = 16
    kind: Kind = "int"
    strategy: str = "group"
    group_size: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool = True
    act_order: bool = False
    activation: Literal["dynamic", "static"] | None = None
    activation_bits: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True)
class KVScheme:
    """How the checkpoint asks for its KV cache to be stored."""

    bits: int
    kind: Kind
    strategy: str = "tensor"
    declared_by: str = ""


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """What one checkpoint's quantization is.

    method:     as declared, normalized ("awq", "gptq", "compressed-tensors", "fp8", "modelopt", "mxfp4", ...)
    scheme_for: disk module path -> Scheme, or None where the module is left unquantized
    schemes:    the distinct schemes, the most common first
    ignore:     patterns or names that the config excludes, as written
    kv:         KV-cache scheme, or None
    config:     the dict that declared it (nested and renamed keys resolved), {} when only tensors show it
    declared_in: "config.json", "text_config", "hf_quant_config.json", "quantize_config.json", ...; "" = content only
    evidence:   sentences: what was declared, what the tensors show
    """

    method: str
    scheme_for: Callable[[str], Scheme | None]
    schemes: tuple[Scheme, ...]
    ignore: tuple[str, ...] = ()
    kv: KVScheme | None = None
    config: dict[str, Any] = field(default_factory=dict)
    declared_in: str = ""
    evidence: tuple[str, ...] = ()
