"""The stand-in of vllm_operator.py beside the operator itself, where this CPU's vLLM has it. Runs under vLLM's python.

Prints JSON: {"has": whether the build has it, "error": the greatest relative difference over the cases}.
"""

import json

import torch
import vllm._custom_ops  # noqa: F401
import vllm_operator


def case(generator, n, k, group, zeros, bias):
    """Arguments of the operator: random words are random codes."""

    def words(*shape):
        return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).to(torch.int32)

    def values(*shape):
        return torch.randn(shape, generator=generator).bfloat16()

    return (
        values(5, k),
        words(n // 16, 2 * k),
        torch.empty(5, n, dtype=torch.bfloat16),
        values(k // group, n).abs() + 0.1,
        words(k // group, n // 8) if zeros else None,
        values(n) if bias else None,
    )


def main():
    has = vllm_operator.supply() is None
    worst = 0.0
    generator = torch.Generator().manual_seed(0)
    for zeros in (False, True) if has else ():
        for bias in (False, True):
            arguments = case(generator, 64, 128, 32, zeros, bias)
            torch.ops._C.cpu_gemm_wna16(*arguments, 8, "vec")
            real = arguments[2].float()
            vllm_operator.KEPT.clear()
            vllm_operator.product(*arguments, 8, "vec")
            worst = max(worst, float((arguments[2].float() - real).norm() / real.norm()))
    print(json.dumps({"has": has, "error": worst}))


if __name__ == "__main__":
    main()
