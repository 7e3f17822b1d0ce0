"""The output before a weight is read: every tensor's name, dtype, shape and place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from mlload.checkpoint.checkpoint import Checkpoint
from mlload.quantize.targets import Target, Targets
from mlload.quantize.weights import stored
from mlload.writer.holdings import fingerprint
from mlload.writer.layout import Layout, OutputTensor, index_of, whole_tensor
from mlload.writer.reshape import INDEX, numbered
from mlload.writer.sizes import weight_of


@dataclass(frozen=True, slots=True)
class Output:
    """layout: files and texts; places: tensor name -> (number of its file, offset); request: digest of all that decides
    the bytes"""

    layout: Layout
    places: dict[str, tuple[int, int]]
    request: str


def output_of(
    checkpoint: Checkpoint,
    targets: Targets,
    texts: Mapping[str, bytes],
    limit: int | None,
    recipe: str,
    more: Sequence[OutputTensor] = (),
) -> Output:
    """recipe: everything else that decides the bytes (method, data, seed), as text; more: tensors that stand for
    nothing of the source (scales of the KV cache)."""
    by_weight: dict[str, Target] = {target.weight: target for target in targets.targets}
    tensors: list[OutputTensor] = []
    for name, ref in checkpoint.tensors.items():
        target = by_weight.get(name)
        if target is None:
            tensors.append(whole_tensor(name, ref.dtype, ref.shape))
            continue
        tensors += [
            OutputTensor(f"{target.path}.{part.suffix}", part.dtype, part.shape, ())
            for part in stored(target.scheme, target.n, target.k, target.dtype)
        ]
    tensors += more
    files = numbered(tensors, limit, weight_of)
    all_texts = dict(texts)
    if len(files) > 1:
        all_texts[INDEX] = index_of(files)
    places = {tensor.name: (number, offset) for number, file in enumerate(files) for tensor, offset in file.places()}
    digest = blake2b(fingerprint(checkpoint).encode() + recipe.encode(), digest_size=16)
    for file in files:
        digest.update(file.name.encode("utf-8", "surrogatepass") + file.header)
    for name, text in all_texts.items():
        digest.update(name.encode("utf-8", "surrogatepass") + text)
    return Output(Layout(files, all_texts), places, digest.hexdigest())
