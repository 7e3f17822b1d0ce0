"""A layer with routed experts: each expert is measured on the tokens that chose it, quantized, and let go.

An expert that too few tokens chose is measured on tokens of all kinds instead: a second moment of a handful of tokens
says nothing of the directions that they do not have. Its count is reported and warned of.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mlload.checkpoint.finding import MlloadError
from mlload.engine import calibrate_awq
from mlload.engine.calibrate_inputs import Input, measured
from mlload.engine.calibrate_rounding import smooth
from mlload.engine.layerwise_experts import Expert, RoutedExperts
from mlload.plan.cutting import parts_of
from mlload.quant.algorithms import moment
from mlload.quantize.recipe import Recipe
from mlload.quantize.targets import Target

if TYPE_CHECKING:
    from mlload.engine.calibrate import Layer, State

FEW = 32  # tokens, with fewer of its own an expert is measured on tokens of all kinds
BORROWED = 1024  # of those
JUDGED = 64  # tokens that prove a fold
SAMPLED = 16  # experts whose weights judge the scale that all share
ROWS = 1 << 16  # tokens moved to the device together
KEPT = "mlload-samples.experts"

Quantize = Callable[[Input], None]


def quantize_layer(
    layer: Layer, hidden: Tensor, outputs: Tensor, state: State, folder: str, quantize: Quantize, *, recipe: Recipe
) -> None:
    """quantize: writes the targets that see an input, and leaves what they became in their modules; folder: for what
    the experts see. What the next layer sees goes to `outputs`: of the original layer, or if sequential the
    quantized."""
    experts = layer.runner.experts[layer.number]
    experts.seen = _mapped(folder, (hidden.shape[0] * hidden.shape[1], hidden.shape[2]))
    experts.outputs = outputs.view(-1, outputs.shape[-1])
    with experts.as_mode("keep"):
        inputs = measured(layer.runner, layer.number, hidden, outputs)
    if recipe.method == "awq":
        with experts.as_mode("probe"):
            state.notes += _fold_all(layer, experts, inputs, hidden[:1], state)
    if recipe.smooth is not None:
        with experts.as_mode("probe"):
            smooth(layer, inputs, recipe.smooth, hidden[:1], next(layer.runner.run(layer.number, hidden[:1])), state)
    if recipe.sequential:
        while inputs:
            quantize(inputs.pop(0))  # its moment is let go
        # The experts see what the quantized attention makes, and tokens may choose others than before.
        with experts.as_mode("keep"):
            for _ in layer.runner.run(layer.number, hidden):
                pass
    _each_expert(layer, experts, state, quantize, recipe)
    with experts.as_mode("replay"):
        for at, output in enumerate(layer.runner.run(layer.number, hidden)):
            outputs[at] = output[0]
    experts.forget()
    while inputs:
        quantize(inputs.pop(0))


def _each_expert(layer: Layer, experts: RoutedExperts, state: State, quantize: Quantize, recipe: Recipe) -> None:
    outputs, counts, few = experts.outputs, [], []
    scale = experts.weight[0].cpu().numpy() if bool((experts.weight != 1).any()) else None
    outputs.zero_()
    for number in experts.linears:
        token, share = experts.routed(number)
        expert = experts.expert(number)
        x = experts.seen[token]
        counts.append(len(token))
        if len(token) < FEW:
            few.append(number)
            every = max(1, len(experts.seen) // BORROWED)
            x = torch.cat([x, experts.seen[::every]])
        if not recipe.sequential and len(token):
            experts.add_outputs(expert, token, share)
        x = x.to(layer.runner.device)
        _quantize_expert(layer, experts, expert, x, scale, state, quantize, folded=recipe.method == "awq")
        if recipe.sequential and len(token):
            experts.add_outputs(expert, token, share)
    state.experts[_common_path(experts)] = {"tokens": counts, "borrowed": few}


def _quantize_expert(
    layer: Layer,
    experts: RoutedExperts,
    expert: Expert,
    x: Tensor,
    scale: Any,
    state: State,
    quantize: Quantize,
    *,
    folded: bool,
) -> None:
    """scale: what the columns of gate and up were multiplied by, [H], or None."""
    mine: dict[nn.Module, Target] = {
        linear: layer.by_weight[name] for linear, name in expert.names.items() if name in layer.by_weight
    }
    layer.targets.update(mine)
    first = Input(list(expert.first))
    first.add(x)
    moment.mirror(first.moment)
    if scale is not None:
        state.scales |= {f"in/{mine[linear].path}": scale for linear in expert.first if linear in mine}
    if not folded:
        quantize(first)
    down = Input([expert.down])
    down.add(experts.gated(expert, x))
    moment.mirror(down.moment)
    if folded:
        _fold_down(layer, experts, expert, down, x[:JUDGED], state)
        quantize(first)
    quantize(down)
    for linear in mine:
        del layer.targets[linear]


def _fold_all(layer: Layer, experts: RoutedExperts, inputs: list[Input], sample: Tensor, state: State) -> list[str]:
    """Scales folded into the layer's norms and linears; the experts' input takes one with the router and the shared
    expert, and is divided by it. Gives notes."""
    before = next(layer.runner.run(layer.number, sample))
    firsts = [name for roles in experts.linears.values() for role, name in roles.items() if role != "down"]
    targets = [layer.by_weight.get(name) for name in firsts]
    head = targets[0]
    if head is None or any(target is None or target.scheme != head.scheme for target in targets):
        return calibrate_awq.fold_scales(layer, inputs, sample, before, state.scales)
    wiring = head.param.spec.wiring
    together = next((seen for seen in inputs if wiring in _wirings(layer, seen)), None)
    if together is None:
        together = Input([])
        for rows in torch.split(experts.seen, ROWS):
            together.add(rows.to(layer.runner.device))
        moment.mirror(together.moment)
        inputs.append(together)
    judge = _weights_of_some(experts)
    layer.targets[judge] = head
    routers = [layer.by_disk[path] for path in _routers(layer) if path in layer.by_disk]
    added = [module for module in (*routers, experts, judge) if module not in together.modules]
    together.modules += added
    notes = calibrate_awq.fold_scales(layer, inputs, sample, before, state.scales)
    together.modules = [module for module in together.modules if module not in added]
    del layer.targets[judge]
    experts.seen.div_(experts.weight.cpu())
    return notes


def _fold_down(layer: Layer, experts: RoutedExperts, expert: Expert, seen: Input, x: Tensor, state: State) -> None:
    """The scale of what `down` sees, folded into the rows of `up`; taken back where the expert's output changes."""
    up, down = expert.first[-1], expert.down
    if up not in layer.targets or down not in layer.targets:
        return
    target, made = layer.targets[down], layer.targets[up]
    scale = calibrate_awq.best_scale([down], seen, target, None)
    if scale is None:
        return
    at, rows = 0, slice(0, up.weight.shape[0])
    for part in parts_of(made.param.spec):
        if part.role == "up":
            rows = slice(at, at + part.length)
        at += part.length
    before = experts.output(expert, x)
    own, below = up.weight.data, down.weight.data
    divisor = own.new_ones(own.shape[0])
    divisor[rows] = scale
    up.weight.data, down.weight.data = own / divisor[:, None], below * scale
    if float((experts.output(expert, x) - before).norm()) > calibrate_awq.CLOSE * float(before.norm()):
        up.weight.data, down.weight.data = own, below
        return
    seen.scaled(scale)
    state.scales[f"in/{target.path}"] = into = scale.cpu().numpy()
    state.scales[f"out/{made.path}"] = into if len(divisor) == len(scale) else divisor.cpu().numpy()


def _wirings(layer: Layer, seen: Input) -> set[str | None]:
    return {layer.targets[module].param.spec.wiring for module in seen.modules if module in layer.targets}


def _routers(layer: Layer) -> list[str]:
    """Their disk paths."""
    found = []
    for param in layer.runner.model.params:
        if param.spec.component == "router" and param.spec.axes == ("N", "K"):
            found.append(param.spec.module.replace("{layer}", str(layer.number)))
    return found


def _weights_of_some(experts: RoutedExperts) -> nn.Linear:
    """Rows of a few experts' gate and up, to judge by the scale that all of them share."""
    numbers = list(experts.linears)
    rows: list[Tensor] = []
    for number in numbers[:: max(1, len(numbers) // SAMPLED)][:SAMPLED]:
        for linear in experts.expert(number).first:
            rows.append(linear.weight[:: max(1, len(linear.weight) // JUDGED)])
    weight = torch.cat(rows)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def _common_path(experts: RoutedExperts) -> str:
    """`model.layers.3.mlp.experts`, on disk."""
    number, roles = next(iter(experts.linears.items()))
    head, _, _ = next(iter(roles.values())).rpartition(f".{number}.")
    return head


def _mapped(folder: str, shape: tuple[int, int]) -> Tensor:
    """float32 in a file that has no name any more: the kernel may write it out, and it is gone with the process."""
    path, count = os.path.join(folder, KEPT), shape[0] * shape[1]
    try:
        with open(path, "wb") as handle:
            # A hole that cannot be filled would be a signal in the middle of a store.
            os.posix_fallocate(handle.fileno(), 0, 4 * count)
        made = torch.from_file(path, shared=True, size=count)
        os.unlink(path)
    except OSError as error:
        raise MlloadError(
            f"{path} cannot hold what the experts see ({4 * count:,} bytes): {error.strerror}",
            hint="make room, then the same command with --resume; or take fewer --samples",
            exit_code=1,
        ) from error
    return made.reshape(shape)
