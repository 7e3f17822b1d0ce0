"""Fused experts: two grouped GEMMs over routed rows, the activation between them, the weighted sum behind.

    x [T, H]; gate_up [E, 2I, H] and down [E, H, I] as floats, in planes (int4, mxfp4, ...), or 8-bit codes that meet
    8-bit activations (fp8 in 128x128 blocks or with a scale a channel, int8 with a scale a channel);
    weights, ids [T, top_k] from the router; y [T, H]
Every step has a fixed grid, every sum a fixed order: the same bits every run, no atomics.
Activations: "silu": silu(gate) * up, gate in the first I rows. "swiglu_oai": gpt-oss's: gate and up alternate, gate is
clamped from above and up on both sides, gate * sigmoid(1.702 gate) * (up + 1).
Reference: `reference`; conditions: `experts.fused`. Idea of sorting into blocks of one expert: vLLM's fused_moe.
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
from mlload.kernels.triton.moe_device import activate_pairs, combine_choices, grouped_warps, permute_columns
from mlload.kernels.triton.packed import Spec, common_width, pack_linear, spec_for, unpack_linear
from mlload.kernels.triton.quantize import quantize
from mlload.kernels.triton.routing import Routing, align
from mlload.kernels.triton.w8a8_device import w8a8_gemm
from mlload.kernels.triton.weight_only import weight_only_gemm
from mlload.quant.spec import Scheme

LIMIT, ALPHA = 7.0, 1.702
# Width of a step along K for experts that are not quantized.
FLOAT_STEP = 64


class Experts(NamedTuple):
    """One stacked linear. tensors: weight and scale as `packed`, as `w8a8` (8 bits), or floats, with a leading E.

    spec: what the codes are; None for floats and for 8 bits (which have a scale)
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

    native_fp8: fp8 for fp8 instructions, activations quantized too; False: in planes, unpacked bit by bit
    """
    stacked: dict[str, Tensor] = {}
    width = common_width(scheme, experts, n, k) if scheme is not None and scheme.act_order else 0
    for number, tensors in enumerate(experts):
        part = _one(scheme, tensors, n, k, dtype, native_fp8, width)
        if "bias" in tensors:
            part["bias"] = tensors["bias"].to(dtype)
        for name, tensor in part.items():
            if number == 0:
                stacked[name] = tensor.new_empty((len(experts), *tensor.shape))
            # One expert at a time, so that no second stack is in memory. fp8 as bytes: not every device copies it.
            as_bytes = tensor.dtype == torch.float8_e4m3fn
            room = stacked[name][number]
            (room.view(torch.uint8) if as_bytes else room).copy_(tensor.view(torch.uint8) if as_bytes else tensor)
    return Experts(n, k, stacked, planes_of(scheme, k, native_fp8, stacked))


def planes_of(
    scheme: Scheme | None, k: int, native_fp8: bool, stacked: Mapping[str, Tensor] | None = None
) -> Spec | None:
    """What is unpacked in registers; None for floats and for what meets 8-bit activations."""
    kind = family(scheme)
    eight = kind == "w8a8_int8" or (kind.startswith("fp8") and native_fp8)
    return None if scheme is None or kind == "unquantized" or eight else spec_for(scheme, k, stacked)


def _one(
    scheme: Scheme | None,
    tensors: Mapping[str, Tensor],
    n: int,
    k: int,
    dtype: torch.dtype,
    native_fp8: bool,
    width: int,
) -> dict[str, Tensor]:
    if scheme is None or family(scheme) == "unquantized":
        return {"weight": tensors["weight"].to(dtype)}
    if planes_of(scheme, k, native_fp8) is not None:
        return pack_linear(scheme, tensors, n, k, width=width)
    if family(scheme) == "w8a8_int8":
        return {"weight": tensors["weight"], "scale": tensors["weight_scale"].to(torch.float32).reshape(-1).expand(n)}
    part = elements(scheme, tensors, n, k)
    return {"weight": part.codes, "scale": part.scale if scheme.block is not None else part.scale.expand(n)}


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
        steps = tensors["scale"]
        q, scale = quantize(x, 128 if steps.dim() == 3 else k, int8=weight.dtype == torch.int8)
        w8a8_gemm[(blocks, triton.cdiv(n, 64), 1)](
            q,
            scale,
            weight,
            steps,
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
            BLOCKED=steps.dim() == 3,
            INT8=weight.dtype == torch.int8,
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
    if "order" in tensors:
        # Each expert has an order of its own for the columns of its rows.
        x, k = permuted(x, tensors["order"], routing, slots, top_k, block), tensors["order"].shape[1]
        top_k = 1
    spec = experts.spec or Spec("float", -1)
    width = FLOAT_STEP if experts.spec is None else spec.layout.width
    planes = 1 if experts.spec is None else spec.layout.planes
    k_tiles = triton.cdiv(k, width * planes)
    scale = tensors.get("scale", weight)
    words = scale.dtype == torch.int32
    block_n = 128 if n >= 128 else 64
    weight_only_gemm[(blocks, triton.cdiv(n, block_n), 1)](
        x,
        weight,
        launch.wide(scale) if experts.spec else weight,
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
        n if experts.spec is None else scale.shape[-2],
        k_tiles,
        top_k,
        CODE=spec.code,
        DTYPE=launch.DTYPES[x.dtype],
        STEP=launch.STEPS[scale.dtype],
        ZERO="zero" in tensors or words,
        WORDS=words,
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
        num_warps=grouped_warps(spec.code, block, launch.capability_of(x), spec.group),
        num_stages=4,
        enable_fp_fusion=True,
    )
    return y


def permuted(x: Tensor, order: Tensor, routing: Routing, slots: int, top_k: int, block: int) -> Tensor:
    """Row slot // top_k of x in the order [E, K'] of the slot's expert -> [slots, K']."""
    width = order.shape[1]
    y = torch.empty(slots, width, dtype=x.dtype, device=x.device)
    step = min(triton.next_power_of_2(width), 1024)
    permute_columns[(routing.experts.shape[0], triton.cdiv(width, step))](
        x, order, routing.rows, routing.experts, y, slots, x.stride(0), width, top_k, BM=block, BLOCK=step, num_warps=4
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
        per = [{name: t[e] for name, t in tensors.items()} for e in range(experts.experts)]
        weights = [unpack_linear(experts.spec, one, n, k) for one in per]
        if "order" in tensors:
            # Fillers are zeros on a column that stands elsewhere too.
            pairs = zip(weights, tensors["order"], strict=True)
            weights = [weight.new_zeros(n, k).index_add_(1, order, weight) for weight, order in pairs]
        return torch.stack(weights)
    if "scale" not in tensors:
        return tensors["weight"].float()
    scale = tensors["scale"][:, :, None]
    if tensors["scale"].dim() == 3:
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
