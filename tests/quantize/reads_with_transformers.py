"""A quantized folder as transformers reads it, under the python of an environment that has the layers for its format.

    python reads_with_transformers.py FOLDER IDS.json LOGITS.npy

Imports nothing of mlload. Prints the class of the first layer's down_proj: what really computed.
"""

import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main():
    folder, ids, out = sys.argv[1:]
    with open(ids) as handle:
        tokens = torch.tensor(json.load(handle))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map={"": "cpu"}).eval()
    with torch.inference_mode():
        np.save(out, model(input_ids=tokens).logits.float().numpy())
    print(type(model.model.layers[0].mlp.down_proj).__name__)


if __name__ == "__main__":
    main()
