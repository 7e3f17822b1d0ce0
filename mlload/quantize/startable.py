"""Whether an engine would start what is written: asked of the headers before any work, and of the files after it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.checkpoint.finding import Finding, MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import Plan, make_plan, on_gpu
from mlload.profiles import load
from mlload.profiles.gpus import Gpu, generations, judged_by_default
from mlload.quantize.layout import Output
from mlload.validators.context import Request
from mlload.validators.verdict import judge, of_gpu

STALE = ("config.json", "quant_config.json", "quantize_config.json", "hf_quant_config.json")


class Answer(NamedTuple):
    """errors: what keeps an engine from starting it, and the source did not have; warnings: sentences"""

    errors: tuple[tuple[int, Finding], ...]
    warnings: tuple[str, ...]

    def sentences(self) -> list[str]:
        return [_sentence(size, finding) for size, finding in self.errors]


def refuse_what_cannot_start(checkpoint: Checkpoint, source: Model, output: Output, sizes: tuple[int, ...]) -> None:
    """Raises MlloadError where no generation of GPUs has a kernel for the output, or anything else forbids it."""
    answer = asked(read_model(as_written(checkpoint, output)), source, sizes)
    if answer.errors:
        size, finding = answer.errors[0]
        raise MlloadError(
            f"what this would write does not start: {_sentence(size, finding)}",
            hint=f"another --scheme, --sym or --asym, --group-size or --tp; mlload rules {finding.code} explains",
            exit_code=1,
        )


def as_written(checkpoint: Checkpoint, output: Output) -> Checkpoint:
    """The output as its headers and config will say, with nothing behind them."""
    tensors = {
        tensor.name: TensorRef(tensor.name, tensor.dtype, tensor.shape, number, offset, tensor.nbytes)
        for number, file in enumerate(output.layout.files)
        for tensor, offset in file.places()
    }
    config = json.loads(output.layout.texts["config.json"].decode("utf-8", "surrogatepass"))
    return replace(checkpoint, tensors=tensors, config=config, json_files=_without_old(checkpoint.json_files))


def _without_old(files: dict[str, Any]) -> dict[str, Any]:
    """A source's own words on quantization are not carried over."""
    return {name: value for name, value in files.items() if name not in STALE}


def asked(model: Model, source: Model, sizes: tuple[int, ...]) -> Answer:
    """Judged as `mlload validate` does when no GPU is named, at each tensor-parallel size. A kernel that this one
    generation lacks is an error only where all others lack one too."""
    profile, gpu = load("vllm", None), judged_by_default()
    errors: list[tuple[int, Finding]] = []
    warnings: list[str] = []
    for size in sizes:
        request = _on(gpu, Request())
        plan = make_plan(model, profile, Mesh(size), capability=gpu.capability)
        here = {(finding.code, finding.where) for finding in of_gpu(plan, request)}
        before = judge(make_plan(source, profile, Mesh(size), capability=gpu.capability), request)
        # What was so before is not this run's doing (a folder without a tokenizer).
        known = {finding.code for finding in before.findings}
        for finding in judge(plan, request).findings:
            if finding.severity not in ("error", "warning"):
                continue
            if finding.severity == "error" and finding.code not in known:
                elsewhere = _starts_on(plan) if (finding.code, finding.where) in here else ""
                if not elsewhere:
                    errors.append((size, finding))
                    continue
                warnings.append(f"{_sentence(size, finding)} (it starts on {elsewhere})")
            else:
                warnings.append(_sentence(size, finding))
    return Answer(tuple(errors), tuple(dict.fromkeys(warnings)))


def _starts_on(plan: Plan) -> str:
    """A generation of GPUs whose kernels do run it, by the name of one of them; "" for none."""
    for gpu in generations():
        if gpu.capability is not None:
            there = on_gpu(plan, gpu.capability)
            if all(finding.severity != "error" for finding in of_gpu(there, _on(gpu, Request()))):
                return gpu.name
    return ""


def _on(gpu: Gpu, request: Request) -> Request:
    capability = None if gpu.capability is None else ".".join(map(str, gpu.capability))
    return replace(request, capability=capability, gpu=gpu.key)


def _sentence(size: int, finding: Finding) -> str:
    return f"tp {size}: {finding.code} {finding.where}: {finding.message}"
