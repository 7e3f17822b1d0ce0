"""The product of 4-bit layers that vLLM's build for this CPU lacks, `_C::cpu_gemm_wna16`, by plain arithmetic.

Runs inside vLLM's own python; imports nothing of mlload. vLLM itself loads and repacks the weights; this reads what its
repacking made: weights int32 [N / 16, 2 K], eight 4-bit codes a word, lowest first, that are [N / 16, K, 16]; zero
points int32 [G, N / 8], of the same order, or none for 8; scales [G, N]. An engine that answers through this has shown
that it loads a folder and that the numbers are right, not that it would serve it on a CPU: such answers carry
`shim: true`.
"""

USED = []
KEPT = {}
NAME = "cpu_gemm_wna16"
SCHEMA = (
    f"{NAME}(Tensor input, Tensor q_weight, Tensor(a!) output, Tensor scales, Tensor? zeros, Tensor? bias, "
    "SymInt pack_factor, str isa_hint) -> ()"
)


def supply():
    """The library, to be kept alive; None where this build has the operator."""
    from torch.library import Library

    library = Library("_C", "FRAGMENT")
    try:
        library.define(SCHEMA)
    except RuntimeError:
        return None
    library.impl(NAME, product, "CPU")
    return library


def product(inputs, packed, output, scales, zeros, bias, pack_factor, _isa):
    USED[:] = [True]
    weight = KEPT.get(packed.data_ptr())
    if weight is None:
        weight = KEPT[packed.data_ptr()] = dequantized(packed, scales, zeros, pack_factor).to(inputs.dtype)
    found = inputs @ weight
    output.copy_(found if bias is None else found + bias)


def dequantized(packed, scales, zeros, pack_factor):
    """float32 [K, N]."""
    k = packed.shape[1] * pack_factor // 16
    codes = nibbles(packed).view(-1, k, 16).permute(1, 0, 2).reshape(k, -1).float()
    size = k // scales.shape[0]
    zero = 8.0 if zeros is None else nibbles(zeros).float().repeat_interleave(size, 0)
    return (codes - zero) * scales.float().repeat_interleave(size, 0)


def nibbles(words):
    import torch

    return ((words.unsqueeze(-1) >> (torch.arange(8, dtype=torch.int32) * 4)) & 15).flatten(-2)
