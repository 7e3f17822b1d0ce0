"""One tool, one method, one draw: quantizes a folder. Runs under that tool's own python and imports it alone.

    python quantize_peers_tool.py TOOL METHOD SOURCE OUT SAMPLES.json GROUP_SIZE

TOOL is mlload, autoawq, llmcompressor or gptqmodel; METHOD one of its functions below. SAMPLES.json holds token ids,
one list a sample: every tool gets the same. The last line printed is JSON: {"seconds": of the quantization without
imports, "version": of the tool}. What had to be changed for a tool to run on a CPU is said where it is done.
"""

import inspect
import json
import os
import sys
import textwrap
import time
from importlib.metadata import version


def autoawq(method, source, out, samples, group):
    """Asymmetric, without its clip search (which takes seven times as long as the rest); computed in fp32."""
    import torch
    from awq import AutoAWQForCausalLM
    from awq.quantize.quantizer import AwqQuantizer
    from transformers import AutoTokenizer

    assert method == "awq-asym"
    # On a CPU `.cpu()` copies nothing: the kept "original" weights are then scaled along with the layer. A real copy.
    own = textwrap.dedent(inspect.getsource(AwqQuantizer._compute_best_scale))
    assert own.count("v.cpu()") == 1
    names = dict(sys.modules[AwqQuantizer.__module__].__dict__)
    exec(own.replace("v.cpu()", "v.cpu().clone()"), names)
    AwqQuantizer._compute_best_scale = names["_compute_best_scale"]
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoAWQForCausalLM.from_pretrained(source, device_map="cpu", safetensors=True, torch_dtype=torch.float32)
    began = time.monotonic()
    model.quantize(
        tokenizer,
        quant_config={"zero_point": True, "q_group_size": group, "w_bit": 4, "version": "GEMM"},
        apply_clip=False,
        calib_data=samples,
        max_calib_samples=len(samples),
        max_calib_seq_len=len(samples[0]),
    )
    model.save_quantized(out, safetensors=True, shard_size="5GB")
    return time.monotonic() - began, version("autoawq")


def llmcompressor(method, source, out, samples, group):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.awq import AWQModifier
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from llmcompressor.pipelines.cache import IntermediatesCache
    from transformers import AutoModelForCausalLM

    kind, _, symmetry = method.partition("-")
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": symmetry == "sym"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    modifier = {"gptq": GPTQModifier, "awq": AWQModifier, "rtn": QuantizationModifier}[kind]
    # Its cache pins memory, which needs an accelerator.
    IntermediatesCache.pin_memory = lambda self, *_words, **_options: None
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    words = {"model": model, "recipe": modifier(config_groups=groups, ignore=["lm_head"])}
    if kind != "rtn":
        masks = [[1] * len(sample) for sample in samples]
        words["dataset"] = Dataset.from_dict({"input_ids": samples, "attention_mask": masks})
        words |= {"max_seq_length": len(samples[0]), "num_calibration_samples": len(samples)}
    began = time.monotonic()
    oneshot(**words)
    model.save_pretrained(out, save_compressed=True)
    return time.monotonic() - began, version("llmcompressor")


def gptqmodel(method, source, out, samples, group):
    # With two cores or fewer it plans no worker at all and stops.
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    from gptqmodel import GPTQModel, QuantizeConfig

    assert method in ("gptq-sym", "gptq-asym")
    config = QuantizeConfig(bits=4, group_size=group, sym=method == "gptq-sym", desc_act=False, device="cpu")
    model = GPTQModel.load(source, config)
    began = time.monotonic()
    model.quantize([{"input_ids": sample, "attention_mask": [1] * len(sample)} for sample in samples], batch_size=1)
    model.save(out)
    return time.monotonic() - began, version("gptqmodel")


def mlload(method, source, out, samples, group):
    import torch

    import mlload
    from mlload.checkpoint.checkpoint import Checkpoint
    from mlload.engine.calibrate_text import Calibration
    from mlload.quantize.recipe import make_recipe
    from mlload.quantize.run import Options, run

    kind, _, symmetry = method.partition("-")
    asym = symmetry == "asym"
    # GPTQ's own layout is written without zero points.
    save_as = "compressed-tensors" if kind == "gptq" and asym else None
    recipe = make_recipe(kind, group_size=group, symmetric=not asym, save_as=save_as)
    tokens = torch.tensor(samples)
    calibration = Calibration(tokens, tokens[:1], "given samples", "", 0)
    began = time.monotonic()
    options = Options(output=out, checked=False, calibration=calibration if recipe.calibrated else None)
    run(Checkpoint.open(source), recipe, options)
    return time.monotonic() - began, mlload.__version__


def main():
    tool, method, source, out, samples, group = sys.argv[1:]
    with open(samples) as handle:
        ids = json.load(handle)
    tools = {"autoawq": autoawq, "llmcompressor": llmcompressor, "gptqmodel": gptqmodel, "mlload": mlload}
    seconds, found = tools[tool](method, source, out, ids, int(group))
    print(json.dumps({"seconds": round(seconds, 1), "version": found}))


if __name__ == "__main__":
    main()
