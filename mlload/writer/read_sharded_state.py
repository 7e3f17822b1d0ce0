"""Per-rank files of vLLM's own names (`qkv_proj`, `gate_up_proj`, `w13_weight`) read back: whole tensors under their
usual names, each with the ranks' shares that it consists of.

The files say nothing of the checkpoint that they were made of. Its tensors follow from config.json, and which box of
which lies where from the same rules that write such files (`writer/sharded_state`); names, shapes and dtypes of every
tensor that is there must agree. Of quantized models they must say themselves that the values are the checkpoint's
(`LAYOUT` in their metadata): vLLM's own saver writes repacked ones under the same names.
"""

from __future__ import annotations

from dataclasses import replace

from mlload import profiles
from mlload.checkpoint.checkpoint import Checkpoint, Cut
from mlload.checkpoint.finding import MlloadError
from mlload.checkpoint.tensor import TensorRef
from mlload.plan.mesh import Mesh
from mlload.plan.model import Model, read_model
from mlload.plan.plan import make_plan
from mlload.plan.stored import nbytes
from mlload.quant import formats
from mlload.writer.holdings import Held, Holdings, Stored, fingerprint, whole_holdings
from mlload.writer.layout import OutputTensor, Take
from mlload.writer.sharded_quantized import reason_against
from mlload.writer.sharded_state import (
    LAYOUT,
    LAYOUT_VERSION,
    SCALES,
    refuse_quantized,
    refuse_unknown,
    vllm_tensors,
)

SHOWN = 4


class Untold(MlloadError):
    """The files may be sound, and what they hold cannot be told from them."""


def read_sharded_state(checkpoint: Checkpoint) -> tuple[Checkpoint, Holdings]:
    """A checkpoint of whole tensors under their usual names, and where their bytes lie. Raises MlloadError for
    quantized models whose files do not say that they are the checkpoint's, for classes whose state is not known, and
    where the files are not what the config says."""
    label = checkpoint.label
    for problem in checkpoint.problems:
        if problem.severity == "error" and problem.question == "starts":
            raise MlloadError(f"{label} is not whole: {problem.message}", exit_code=1)
    bare = replace(checkpoint, tensors={}, stray={}, format="none", index=None, problems=())
    quant, _ = formats.detect(bare)
    if quant is not None and not unrepacked(checkpoint):
        raise Untold(
            f"{label} is quantized ({quant.method}), and sharded_state does not survive that: vLLM's saver writes "
            "weights after they were repacked for a kernel, its loader fills the ones before, so which of the two "
            "these files hold cannot be told",
            hint="mlload shard ORIGINAL -o FOLDER --layout mlload keeps the format on disk and cuts it per rank",
            exit_code=1,
        )
    model = read_model(bare)
    by_rank = _by_rank(checkpoint)
    meshes = _meshes(tuple(by_rank), model)
    found: MlloadError | None = None
    for mesh in meshes:
        try:
            return _placed(checkpoint, bare, model, mesh, by_rank)
        except MlloadError as error:
            found = found or error
    assert found is not None
    raise found


def unrepacked(checkpoint: Checkpoint) -> bool:
    """Whether every file says that its values are the checkpoint's own."""
    return all(
        (checkpoint.metadata.get(file.name) or {}).get(LAYOUT) == LAYOUT_VERSION
        for file in checkpoint.files
        if file.used
    )


def cut_of(checkpoint: Checkpoint, mesh: Mesh | None = None) -> Cut:
    """The sizes that the files are for, by their names alone where no mesh was found to fit."""
    if mesh is None:
        (mesh, *_) = _meshes(tuple(_by_rank(checkpoint)), None)
        return Cut("sharded_state", mesh.tp, mesh.pp)
    return Cut("sharded_state", mesh.tp, mesh.pp, mesh.ep)


def _by_rank(checkpoint: Checkpoint) -> dict[str, dict[str, TensorRef]]:
    """Key of the rank ("rank0", "pp0-tp1") -> name of the state -> tensor."""
    found: dict[str, dict[str, TensorRef]] = {}
    for name, ref in checkpoint.tensors.items():
        key, _, own = name.partition("/")
        found.setdefault(key, {})[own] = ref
    return found


def _meshes(keys: tuple[str, ...], model: Model | None) -> tuple[Mesh, ...]:
    """Sizes that the files may have been cut for: names do not tell whether experts were dealt out or cut."""
    stages = {int(key[2:].partition("-")[0]) for key in keys if key.startswith("pp")}
    mesh = Mesh(tp=len(keys) // max(1, len(stages)), pp=max(1, len(stages)))
    routed = model is not None and any(param.expert_total for param in model.params)
    return (mesh, mesh._replace(ep=True)) if routed and mesh.tp > 1 else (mesh,)


def _placed(
    checkpoint: Checkpoint, bare: Checkpoint, model: Model, mesh: Mesh, by_rank: dict[str, dict[str, TensorRef]]
) -> tuple[Checkpoint, Holdings]:
    label = checkpoint.label
    plan = make_plan(model, profiles.load("vllm", None), mesh)
    for finding in plan.violations:
        if finding.severity == "error":
            raise MlloadError(f"{label} cannot have been cut for {mesh.label()}: {finding.message}", exit_code=1)
    try:
        refuse_unknown(plan)
        refuse_quantized(plan, reason_against(plan))
    except MlloadError as error:
        raise Untold(error.message, hint=error.hint, exit_code=error.exit_code) from None
    expected = whole_holdings(replace(bare, tensors=_expected(model)))
    dtypes: dict[str, str] = {}
    stored: dict[str, list[Stored]] = {}
    for rank in mesh.ranks:
        key = f"pp{mesh.pp_rank(rank)}-tp{mesh.tp_rank(rank)}" if mesh.pp > 1 else f"rank{rank}"
        held = dict(by_rank.get(key, {}))
        missing: list[str] = []
        for tensor in vllm_tensors(plan, rank, expected):
            ref = held.pop(tensor.name, None)
            if ref is None:
                missing.append(tensor.name)
                continue
            _fits(label, key, tensor, ref)
            file = checkpoint.files[ref.file].name
            for take in tensor.takes:
                if dtypes.setdefault(take.tensor, ref.dtype) != ref.dtype:
                    raise MlloadError(
                        f"{label}: {tensor.name} is {ref.dtype} in {file}, and {dtypes[take.tensor]} in another",
                        exit_code=1,
                    )
                stored.setdefault(take.tensor, []).append(_share(file, ref, take))
        _all_there(label, key, [name for name in missing if not _scale(name)], [n for n in held if not _scale(n)])
    tensors = {name: Held(dtypes[name], expected[name].shape, tuple(shares)) for name, shares in stored.items()}
    refs = {
        name: TensorRef(name, held.dtype, held.shape, 0, 0, nbytes(held.dtype, held.shape))
        for name, held in tensors.items()
    }
    return (
        replace(checkpoint, tensors=refs, format="safetensors", cut=cut_of(checkpoint, mesh)),
        Holdings(checkpoint.source, tensors, fingerprint(checkpoint)),
    )


def _share(file: str, ref: TensorRef, take: Take) -> Stored:
    """Where a take lies. Of experts stacked in one tensor each is a matrix of its own, some bytes further on."""
    offset, shape, to = ref.offset, ref.shape, take.to
    while len(to) > len(take.box):
        shape, (slot, _) = shape[1:], to[0]
        offset, to = offset + slot * nbytes(ref.dtype, shape), to[1:]
    return Stored(file, offset, shape, ((take.box, to),))


def _expected(model: Model) -> dict[str, TensorRef]:
    """The tensors that the model's checkpoint has, by its config alone."""
    return {
        path + tensor.suffix: TensorRef(path + tensor.suffix, tensor.dtype, tensor.shape, 0, 0, tensor.nbytes)
        for param in model.params
        for path in param.modules()
        for tensor in param.stored
    }


def _fits(label: str, key: str, tensor: OutputTensor, ref: TensorRef) -> None:
    if ref.shape != tensor.shape:
        raise MlloadError(
            f"{label}: {tensor.name} of {key} is {list(ref.shape)}, and by config.json it is {list(tensor.shape)}: "
            "the files are of another model, or were saved after a kernel repacked them",
            exit_code=1,
        )


def _all_there(label: str, key: str, missing: list[str], unexpected: list[str]) -> None:
    said = []
    for names, what in ((missing, "lacks"), (unexpected, "has, which the class of the config has not,")):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            said.append(f"{what} {', '.join(names[:SHOWN])}{more}")
    if said:
        raise MlloadError(f"{label}: {key} {'; '.join(said)}", exit_code=1)


def _scale(name: str) -> bool:
    """Scalars of the attention layers, all 1 where nothing is quantized."""
    return name.rpartition(".")[2] in SCALES
