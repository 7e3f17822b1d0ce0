"""Rules about --nodes: whether the ranks share the machines equally, and what of one rank group crosses the network."""

from __future__ import annotations

from collections.abc import Iterator

from mlload.checkpoint.finding import Finding, Hint
from mlload.plan.mesh import Mesh
from mlload.validators.context import Context
from mlload.validators.rules import rule


@rule("TP031", "ranks do not share the machines equally")
def equal_share(context: Context) -> Iterator[Finding]:
    """All ranks (tp x pp x dp) are dealt to the machines in equal, contiguous blocks; the engine refuses --nnodes that
    does not divide their number (vLLM engine/arg_utils.py:2406)."""
    mesh, nodes = context.plan.mesh, context.request.nodes
    world = mesh.tp * mesh.pp * mesh.dp
    if world % nodes:
        yield Finding(
            "TP031",
            "error",
            "starts",
            f"--nodes {nodes}",
            f"{mesh.label()} is {ranks(world)}, and {world} % {nodes} = {world % nodes}: "
            f"{nodes} machines cannot hold equally many",
            {"nodes": nodes, "world_size": world, "remainder": world % nodes},
            tuple(divisors(world, nodes)),
        )


def divisors(world: int, nodes: int) -> Iterator[Hint]:
    """The nearest number of machines that divides, and the flag for it."""
    fine = max(count for count in range(1, nodes) if world % count == 0)
    yield Hint(f"{world} ranks share {fine} machine{'s' if fine > 1 else ''}", f"--nodes {fine}")


@rule("TP032", "a tensor-parallel group spans machines")
def crossing(context: Context) -> Iterator[Finding]:
    """The ranks that cut one layer exchange its output twice a layer and token. Where they sit on several machines,
    each of those all-reduces waits for the network; pipeline stages exchange one activation per stage instead. The
    engine starts either way."""
    mesh, nodes = context.plan.mesh, context.request.nodes
    world = mesh.tp * mesh.pp * mesh.dp
    if nodes < 2 or world % nodes:
        return
    here = world // nodes
    if not spanning(mesh, here):
        return
    stages = (here, mesh.tp * mesh.pp // here) if mesh.tp * mesh.pp % here == 0 else None
    kept = stages is not None and mesh.tp > here
    command = f"--tp {stages[0]} --pp {stages[1]} --nodes {nodes}" if kept and stages is not None else None
    yield Finding(
        "TP032",
        "warning",
        "right",
        mesh.label(),
        f"a group of {mesh.tp} ranks that cut a layer does not lie on one machine of {here}: "
        "two all-reduces a layer cross the network for every token",
        {"tp": mesh.tp, "ranks_per_node": here, "nodes": nodes},
        (Hint("as many ranks a group as a machine has, and stages across machines", command),) if command else (),
    )


def spanning(mesh: Mesh, here: int) -> bool:
    """Whether any block of tp neighbouring ranks lies on two machines of `here` ranks each."""
    return any(at // here != (at + mesh.tp - 1) // here for at in range(0, mesh.tp * mesh.pp * mesh.dp, mesh.tp))


def ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"
