"""Small quantized checkpoints made by the tools that people use, for tests of what mlload did not write.

    AWQ_PYTHON    tools/independent_checkpoints.py autoawq OUT
    GPTQ_PYTHON   tools/independent_checkpoints.py gptq-4 OUT      (gptq-8, gptq-3, gptq-act-order, gptqmodel-awq)
    ROUND_PYTHON  tools/independent_checkpoints.py auto-round OUT  (auto-round-awq)
    LLMC_PYTHON   tools/independent_checkpoints.py llmc-W4A16 OUT  (or another preset scheme of compressed-tensors)
    GPTQ_PYTHON   tools/independent_checkpoints.py read OUT/NAME   (logits as transformers has them from these files)

Each line needs a Python with that tool: autoawq 0.2.9, gptqmodel 7.7.0, auto-round 0.16.1, llmcompressor 0.14.0.1, each
with torch and transformers. Everything happens on a CPU, on a random Llama of one layer, with words drawn by a fixed
seed. OUT/NAME holds the tool's config and weights as they are; `logits.npy` is added by `read`. What is committed of
them lies in tests/data/independent.
"""

# mypy: disable-error-code="no-untyped-call,import-untyped,import-not-found"
from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

VOCABULARY = 64
IDS = [[3, 17, 42, 5, 60, 9, 31], [8, 2, 55, 23, 11, 47, 30]]
GROUP = 32
KEPT = ("config.json", "quantize_config.json", "quantization_config.json", "recipe.yaml")


def source(folder: Path) -> None:
    """A tied Llama with random weights in float16 and a tokenizer of 64 words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).half()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if parameter.dim() == 1 else 0.15 * noise)
    model.save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", pad_token="w0", unk_token="w0"
    ).save_pretrained(folder)


def samples(count: int = 16, length: int = 64) -> list[list[int]]:
    import random

    draw = random.Random(7)
    return [[draw.randrange(3, VOCABULARY) for _ in range(length)] for _ in range(count)]


def autoawq(name: str, made: Path, out: Path) -> None:
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer

    model = AutoAWQForCausalLM.from_pretrained(str(made), device_map="cpu", safetensors=True)
    config = {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"}
    model.quantize(
        AutoTokenizer.from_pretrained(made), quant_config=config, calib_data=samples(), max_calib_samples=16,
        max_calib_seq_len=64, apply_clip=False,
    )  # fmt: skip
    model.save_quantized(str(out), safetensors=True)


def gptqmodel(name: str, made: Path, out: Path) -> None:
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    from gptqmodel import GPTQModel, QuantizeConfig

    fields: dict[str, Any] = {"bits": 4, "group_size": GROUP, "sym": True, "desc_act": False, "device": "cpu"}
    if name == "gptq-act-order":
        fields.update(desc_act=True, sym=False)
    elif name == "gptqmodel-awq":
        from gptqmodel.quantization import FORMAT, METHOD

        fields.update(method=METHOD.AWQ, format=FORMAT.GEMM, sym=False)
    else:
        fields["bits"] = int(name.rpartition("-")[2])
    model = GPTQModel.load(str(made), QuantizeConfig(**fields))
    model.quantize([{"input_ids": one, "attention_mask": [1] * len(one)} for one in samples()], batch_size=1)
    model.save(str(out))


def auto_round(name: str, made: Path, out: Path) -> None:
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(made)
    awq = name == "auto-round-awq"
    rounding = AutoRound(
        model, tokenizer, bits=4, group_size=GROUP, sym=not awq, iters=4, nsamples=16, seqlen=64,
        dataset=[torch.tensor([one]) for one in samples()], device_map="cpu", batch_size=4,
    )  # fmt: skip
    rounding.quantize_and_save(str(out), format="auto_awq" if awq else "auto_round")


def llmcompressor(name: str, made: Path, out: Path) -> None:
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    scheme = name.removeprefix("llmc-")
    weights: dict[str, Any] = {}
    if scheme in ("W4A16", "W4A16_ASYM", "W8A16"):
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        args = QuantizationArgs(
            num_bits=8 if "8" in scheme.split("A")[0] else 4, type="int", strategy="group", group_size=GROUP,
            symmetric="ASYM" not in scheme,
        )  # fmt: skip
        weights["config_groups"] = {"group_0": QuantizationScheme(targets=["Linear"], weights=args)}
    else:
        weights.update(targets="Linear", scheme=scheme)
    rows = samples()
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(one) for one in rows]})
    oneshot(
        model=model, dataset=data, recipe=QuantizationModifier(ignore=["lm_head"], **weights), max_seq_length=64,
        num_calibration_samples=16,
    )  # fmt: skip
    model.save_pretrained(out, save_compressed=True)


def read(folder: Path) -> None:
    """Logits of IDS [2, 7, vocabulary] in float32 from these files, as transformers and the tool's own layers have
    them."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map={"": "cpu"}).eval()
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor(IDS)).logits.float().numpy()
    np.save(folder / "logits.npy", logits)
    print(f"{folder.name}: {type(model.model.layers[0].mlp.down_proj).__name__}, {float(abs(logits).max()):.3f}")


def main() -> None:
    name, out = sys.argv[1], Path(sys.argv[2])
    if name == "read":
        read(out)
        return
    makers = {"autoawq": autoawq, "gptq": gptqmodel, "auto": auto_round, "llmc": llmcompressor}
    maker = makers.get(name) or (gptqmodel if name.startswith("gptq") else makers[name.partition("-")[0]])
    with tempfile.TemporaryDirectory() as scratch:
        source(Path(scratch) / "source")
        written = Path(scratch) / name
        maker(name, Path(scratch) / "source", written)
        files = [path for path in written.rglob("*") if path.suffix == ".safetensors" or path.name in KEPT]
        (out / name).mkdir(parents=True, exist_ok=True)
        for path in files:
            (out / name / path.name).write_bytes(path.read_bytes())
            print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
