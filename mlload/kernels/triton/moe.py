"""Fused experts: two grouped GEMMs over routed rows, the activation between them, the weighted sum behind.

    x [T, H]; gate_up [E, 2I, H] and down [E, H, I] as floats, in planes (int4, mxfp4, ...), or fp8 in 128x128 blocks;
    weights, ids [T, top_k] from the router; y [T, H]
Every step has a fixed grid, every sum a fixed order: the same bits every run, no atomics.
Activations: "silu": silu(gate) * up, gate in the first I rows. "swiglu_oai": gpt-oss's: gate and up alternate, gate is
clamped from above and up on both sides, gate * sigmoid(1.702 gate) * (up + 1).
Reference: `reference`. Idea of sorting into blocks of one expert: vLLM's fused_moe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from mlload.kernels.families import family
from mlload.kernels.stored import elements
from mlload.kernels.triton import launch
from mlload.kernels.triton.moe_device import activate_pairs, combine_choices, grouped_warps
from mlload.kernels.triton.packed import Spec, pack_linear, spec_for, unpack_linear
from mlload.kernels.triton.quantize import quantize
from mlload.kernels.triton.routing import Routing, align
from mlload.kernels.triton.w8a8_device import w8a8_gemm
from mlload.kernels.triton.weight_only import weight_only_gemm
from mlload.quant.spec import Scheme

LIMIT, ALPHA = 7.0, 1.702
# Width of a step along K for experts that are not quantized.
FLOAT_STEP = 64


class Experts(NamedTuple):
    """One stacked linear. tensors: weight and scale as `packed`, as fp8 blocks, or floats, with a leading E.

    spec: what the codes are; None for floats and fp8 blocks (which have a scale)
    """

    n: int
    k: int
    tensors: dict[str, Tensor]
    spec: Spec | None

    @property
    def experts(self) -> int:
        return self.tensors["weight"].shape[0]


def stack(
    scheme: Scheme | None,
    experts: Sequence[Mapping[str, Tensor]],
    n: int,
    k: int,
    dtype: torch.dtype,
    *,
    native_fp8: bool = True,
) -> Experts:
    """Stored tensors of each expert's [n, k] linear -> the form that the kernels read. A "bias" is kept.

    native_fp8: fp8 blocks for fp8 instructions; False: in planes, unpacked bit by bit
    """
    kind = family(scheme)
    if scheme is None or kind == "unquantized":
        parts = [{"weight": tensors["weight"].to(dtype)} for tensors in experts]
        spec = None
    elif kind == "fp8_block" and native_fp8:
        found = [elements(scheme, tensors, n, k) for tensors in experts]
        parts = [{"weight": part.codes, "scale": part.scale} for part in found]
        spec = None
    else:
        parts = [pack_linear(scheme, tensors, n, k) for tensors in experts]
        spec = spec_for(scheme, k, parts[0])
    stacked = {}
    for name in parts[0]:
        raw = [part[name] for part in parts]
        # No stack of fp8 tensors on every device: as bytes.
        bytes_only = raw[0].dtype == torch.float8_e4m3fn
        whole = torch.stack([t.view(torch.uint8) if bytes_only else t for t in raw])
        stacked[name] = whole.view(torch.float8_e4m3fn) if bytes_only else whole
    if "global_scale" in stacked:
        stacked["global_scale"] = stacked["global_scale"].reshape(-1)
    if "bias" in experts[0]:
        stacked["bias"] = torch.stack([tensors["bias"] for tensors in experts]).to(dtype)
    return Experts(n, k, stacked, spec)


def fused_moe(
    x: Tensor,
    gate_up: Experts,
    down: Experts,
    weights: Tensor,
    ids: Tensor,
    *,
    activation: str = "silu",
    limit: float = LIMIT,
) -> Tensor:
    """x [T, H] -> [T, H]; router weights are applied to what the experts return."""
    tokens, top_k = ids.shape
    block = _block(tokens * top_k, gate_up.experts)
    routing = align(ids, gate_up.experts, block)
    both = grouped(x, gate_up, routing, tokens * top_k, top_k, block)
    middle = activate(both, activation, limit)
    out = grouped(middle, down, routing, tokens * top_k, 1, block)
    return combine(out, weights, ids)


def _block(slots: int, experts: int) -> int:
    """Rows a program: 16 while experts see a few tokens each, as decode does."""
    each = slots / max(experts, 1)
    return 16 if each <= 16 else 32 if each <= 32 else 64


def grouped(x: Tensor, experts: Experts, routing: Routing, slots: int, top_k: int, block: int) -> Tensor:
    """Row slot // top_k of x times the slot's expert -> [slots, N]; slots of no expert here are left undefined."""
    tensors, n, k = experts.tensors, experts.n, experts.k
    weight, bias = tensors["weight"], tensors.get("bias")
    y = torch.empty(slots, n, dtype=x.dtype, device=x.device)
    blocks = routing.experts.shape[0]
    if not slots:
        return y
    if experts.spec is None and "scale" in tensors:
        q, scale = quantize(x, 128)
        w8a8_gemm[(blocks, triton.cdiv(n, 64), 1)](
            q,
            scale,
            weight,
            tensors["scale"],
            x if bias is None else bias,
            y,
            routing.rows,
            routing.experts,
            slots,
            n,
            k,
            scale.stride(0),
            scale.stride(1),
            triton.cdiv(k, 128),
            triton.cdiv(k, 128),
            top_k,
            BLOCKED=True,
            INT8=False,
            BIAS=bias is not None,
            ROUTED=True,
            EVEN_K=k % 128 == 0,
            SPLIT=False,
            BN=64,
            BM=block,
            num_warps=4,
            num_stages=4,
            enable_fp_fusion=True,
        )
        return y
    spec = experts.spec or Spec("float", -1)
    width = FLOAT_STEP if experts.spec is None else spec.layout.width
    planes = 1 if experts.spec is None else spec.layout.planes
    k_tiles = triton.cdiv(k, width * planes)
    scale = tensors.get("scale", weight)
    block_n = 128 if n >= 128 else 64
    weight_only_gemm[(blocks, triton.cdiv(n, block_n), 1)](
        x,
        weight,
        scale,
        tensors.get("zero", scale),
        x if bias is None else bias,
        y,
        routing.rows,
        routing.experts,
        tensors.get("global_scale", scale),
        slots,
        n,
        k,
        x.stride(0),
        k_tiles,
        n if experts.spec is None else scale.shape[-1],
        k_tiles,
        top_k,
        CODE=spec.code,
        DTYPE=launch.DTYPES[x.dtype],
        ZERO="zero" in tensors,
        BIAS=bias is not None,
        ROUTED=True,
        GLOBAL="global_scale" in tensors,
        EVEN_K=k % (width * planes) == 0,
        SPLIT=False,
        G=max(spec.group, 0),
        P=width,
        PLANES=planes,
        BN=block_n,
        BM=block,
        PTX=launch.use_ptx(x.device),
        num_warps=grouped_warps(spec.code, block, launch.capability_of(x)),
        num_stages=4,
        enable_fp_fusion=True,
    )
    return y


def activate(both: Tensor, activation: str, limit: float = LIMIT) -> Tensor:
    rows, inner = both.shape[0], both.shape[1] // 2
    y = torch.empty(rows, inner, dtype=both.dtype, device=both.device)
    if rows:
        block = min(triton.next_power_of_2(inner), 1024)
        activate_pairs[(rows, triton.cdiv(inner, block))](
            both, y, inner, limit, OAI=activation == "swiglu_oai", BLOCK=block, num_warps=4
        )
    return y


def combine(out: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    (tokens, top_k), width = ids.shape, out.shape[1]
    y = torch.empty(tokens, width, dtype=out.dtype, device=out.device)
    if tokens:
        block = min(triton.next_power_of_2(width), 1024)
        combine_choices[(tokens, triton.cdiv(width, block))](
            out, weights.contiguous(), ids.contiguous(), y, width, TOP_K=top_k, BLOCK=block, num_warps=4
        )
    return y


def dequantized(experts: Experts) -> Tensor:
    """float32 [E, N, K], for the reference."""
    tensors, n, k = experts.tensors, experts.n, experts.k
    if experts.spec is not None:
        per = [{name: t[e : e + 1] if name == "global_scale" else t[e] for name, t in tensors.items()}
               for e in range(experts.experts)]  # fmt: skip
        return torch.stack([unpack_linear(experts.spec, one, n, k) for one in per])
    if "scale" not in tensors:
        return tensors["weight"].float()
    scale = tensors["scale"].repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[:, :, :k]
    return tensors["weight"].float() * scale


def reference(
    x: Tensor,
    gate_up: Experts,
    down: Experts,
    weights: Tensor,
    ids: Tensor,
    *,
    activation: str = "silu",
    limit: float = LIMIT,
) -> Tensor:
    """In float64, expert by expert, nothing rounded on the way."""
    first, second = dequantized(gate_up).double(), dequantized(down).double()
    y = torch.zeros(x.shape[0], down.n, dtype=torch.float64)
    for token, (chosen, shares) in enumerate(zip(ids.tolist(), weights.double(), strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            if expert < 0:
                continue
            both = first[expert] @ x[token].double()
            if "bias" in gate_up.tensors:
                both += gate_up.tensors["bias"][expert].double()
            out = second[expert] @ activation_reference(both, activation, limit)
            if "bias" in down.tensors:
                out += down.tensors["bias"][expert].double()
            y[token] += share * out
    return y


def activation_reference(both: Tensor, activation: str, limit: float = LIMIT) -> Tensor:
    """[..., 2I] -> [..., I]."""
    if activation == "swiglu_oai":
        gate, up = both[..., 0::2].clamp(max=limit), both[..., 1::2].clamp(-limit, limit)
        return gate * torch.sigmoid(ALPHA * gate) * (up + 1)
    gate, up = both.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up
