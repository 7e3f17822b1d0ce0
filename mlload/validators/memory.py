"""Rules about memory: whether weights, cache and everything else fit the GPU that was named."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.memory import MemoryAnswer, judge_memory
from mlload.plan.memory.settings import GIB, SAFE_UTILIZATION, settings
from mlload.plan.memory.startup import start_up
from mlload.plan.plan import Plan
from mlload.validators.context import Context, Request
from mlload.validators.lengths import derived_max_model_len
from mlload.validators.rules import rule

MORE = Hint("use more GPUs, or larger ones, or a quantized checkpoint")


def memory_of(plan: Plan, request: Request) -> MemoryAnswer | None:
    """What fits; None where no memory size was named, or the engine's arithmetic is not known here."""
    if request.memory_gib is None or plan.profile.engine != "vllm":
        return None
    derived = derived_max_model_len(plan.model.checkpoint, plan.model.config)
    limit = derived.length if derived else None
    wanted = settings(
        int(request.memory_gib * GIB),
        request.gpu or "",
        derived.default if derived else None,
        utilization=request.gpu_memory_utilization or plan.profile.value("gpu_memory_utilization"),
        max_model_len=request.max_model_len,
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        enforce_eager=request.enforce_eager,
    )
    return judge_memory(plan, wanted, limit)


def gib(nbytes: float) -> str:
    return f"{nbytes / GIB:.2f}"


@rule("ME001", "does not fit the GPU")
def does_not_fit(context: Context) -> Iterator[Finding]:
    """Even if activations, graphs and libraries turn out as small as they ever do, the weights and the cache of one
    request of the context length do not fit into what the engine may take of the GPU. vLLM profiles itself at
    start-up and stops there. The rank that decides is the fullest one: the stages of a pipeline differ."""
    memory = context.memory
    if memory is None or memory.fits != "no":
        return
    peak, budget = memory.peak, memory.settings.budget
    held = peak.weight_bytes + peak.buffer_bytes
    limit = f"{memory.settings.utilization:g} x {gib(memory.settings.memory)} = {gib(budget)} GiB"
    numbers = {
        "weight_bytes": peak.weight_bytes,
        "budget_bytes": budget,
        "beside_bytes": list(peak.beside),
        "cache_bytes": list(peak.cache),
        "max_model_len": memory.max_model_len,
    }
    where = f"rank {peak.rank}"
    if peak.cache.high <= 0:
        message = (
            f"{gib(held)} GiB of weights and at least {gib(peak.beside.low)} GiB beside them are more than {limit}"
        )
        yield Finding("ME001", "error", "fits", where, message, numbers, (MORE,))
        return
    need = memory.cache.request_blocks(memory.request, memory.settings.in_flight(context.plan.mesh.pp))
    message = (
        f"one request of {memory.request} tokens needs {gib(need * peak.block_bytes)} GiB of cache; of {limit}, "
        f"weights leave at most {gib(peak.cache.high)} GiB"
    )
    hints = [MORE]
    if memory.max_model_len:
        shorter = Hint(f"serve at most {memory.max_model_len} tokens", f"--max-model-len {memory.max_model_len}")
        hints.insert(0, shorter)
    yield Finding("ME001", "error", "fits", where, message, numbers, tuple(hints))


@rule("ME002", "fits only if everything else stays small")
def tight(context: Context) -> Iterator[Finding]:
    """Whether it fits depends on memory that nobody knows before the engine runs: the peak of activations, CUDA
    graphs, communication buffers. It fits if they come out small, not if they come out large."""
    memory = context.memory
    if memory is None or memory.fits != "tight" or memory.settings.utilization > SAFE_UTILIZATION:
        return
    low, high = memory.peak.beside
    hints = [Hint("measure it", "mlload load-test")]
    if memory.max_model_len and memory.max_model_len < memory.request:
        length = memory.max_model_len
        hints.insert(0, Hint(f"serve at most {length} tokens, which surely fit", f"--max-model-len {length}"))
    yield Finding(
        "ME002",
        "warning",
        "fits",
        f"rank {memory.peak.rank}",
        f"it fits if activations, graphs and libraries take {gib(low)} GiB, and not if they take {gib(high)} GiB",
        {"beside_bytes": [low, high], "cache_bytes": list(memory.peak.cache), "max_model_len": memory.max_model_len},
        tuple(hints),
    )


@rule("ME003", "gpu-memory-utilization too high to promise anything")
def utilization(context: Context) -> Iterator[Finding]:
    """The engine fills what it may take after it has measured itself. The driver's context, fragments, and peaks of
    unbalanced experts lie outside that measure: with little left they end in out-of-memory errors, at the start or
    under load. It also refuses to start where less than the share is free."""
    asked = context.request.gpu_memory_utilization
    if asked is None or asked <= SAFE_UTILIZATION:
        return
    left = ""
    if context.memory is not None:
        left = f", {gib(context.memory.settings.memory - context.memory.settings.budget)} GiB, "
    yield Finding(
        "ME003",
        "warning",
        "fits",
        f"--gpu-memory-utilization {asked:g}",
        f"{asked:g} leaves too little{left}to the driver and to peaks that the engine does not measure",
        {"gpu_memory_utilization": asked, "safe": SAFE_UTILIZATION},
        (Hint(f"use at most {SAFE_UTILIZATION:g}", f"--gpu-memory-utilization {SAFE_UTILIZATION:g}"),),
    )


@rule("ME004", "cache blocks as large as a recurrent state")
def aligned_blocks(context: Context) -> Iterator[Finding]:
    """Layers with a recurrent state keep a fixed number of bytes a sequence, attention layers some a token. vLLM
    keeps both in pages of one size, so it makes attention's blocks long enough to cover a state. Short requests then
    take whole long blocks: fewer of them run at once than the tokens suggest."""
    memory = context.memory
    if memory is None or not memory.cache.aligned:
        return
    states = sum(len(group.pages) for group in memory.cache.groups if group.kind == "state")
    yield Finding(
        "ME004",
        "info",
        "fits",
        "the KV cache",
        f"{states} recurrent layers make the attention block {memory.cache.block_size} tokens long",
        {"block_size": memory.cache.block_size, "recurrent_layers": states},
    )


@rule("ME005", "start-up from the storage that was named")
def storage(context: Context) -> Iterator[Finding]:
    """Every rank reads the whole checkpoint and keeps its part. On a local disk the ranks share what the system has
    cached; from a network file system or a bucket each of them reads it again. Weights cut per rank beforehand are
    read once in total."""
    named = context.request.storage
    whole = sum(context.model.bytes_by_component.values())
    if named is None or not whole:
        return
    nodes = context.request.nodes
    ranks = max(1, context.plan.mesh.tp * context.plan.mesh.pp // nodes)  # of one machine, which reads at that speed
    found = start_up(named, whole, ranks)
    times = f"{ranks} ranks x {gib(whole)} GiB" if found.read_bytes != whole else f"{gib(whole)} GiB"
    cut = sum(rank.disk_bytes for rank in context.plan.ranks()) / nodes / named.speed
    hints: tuple[Hint, ...] = ()
    if found.read_bytes != whole and ranks > 1:
        hints = (
            Hint(
                f"cut it per rank beforehand: about {cut:.0f} s",
                shard_command(context),
            ),
        )
    yield Finding(
        "ME005",
        "info",
        "fits",
        f"--storage {named.kind}",
        f"reading {times} at {named.speed / 1e9:g} GB/s takes about {found.seconds:.0f} s; a page cache that holds "
        f"the files takes {gib(found.host_bytes)} GiB of host memory",
        {"read_bytes": found.read_bytes, "seconds": round(found.seconds, 1), "host_bytes": found.host_bytes},
        hints,
    )


def shard_command(context: Context) -> str:
    """What cuts the files for the mesh that was asked about."""
    mesh = context.plan.mesh
    sizes = f"--tp {mesh.tp}" + (f" --pp {mesh.pp}" if mesh.pp > 1 else "") + (" --ep" if mesh.ep else "")
    return f"mlload shard {context.checkpoint.label} -o OUT {sizes}"
