"""What only data can tell: one forward pass, and backward passes compared with brute force.

The loss of sample i is a function of the outputs of sample i alone. Its gradient by autograd, on the
graph of the whole batch, is compared with what the layers' rules make of one backward pass for all
samples. On that graph random numbers (dropout) are the same for both. Where the gradient of one sample's
loss arrives at the outputs of a layer for other samples as well, the samples are coupled behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.coverage.coverage import Coverage
from cockpit.coverage.rows import (
    EXACT,
    GRAPH,
    REPLAYED,
    SHARE,
    UNDECIDED,
    UNUSED,
    ParameterCoverage,
)
from cockpit.coverage.undisturbed import undisturbed
from cockpit.coverage.ways_out import explained
from cockpit.curvature.products import Hessian
from cockpit.engine import LossScale, Result
from cockpit.engine.audit import Audit
from cockpit.engine.gathering import Gathered, Gathering
from cockpit.errors import InvalidArgument, Unsupported
from cockpit.gradients import MEMORY_BUDGET, Call, IndividualGradients, Recorder
from cockpit.gradients.rules.rerun import tensors_in

WRONG = "its individual gradients are not those that autograd gives sample by sample"
APART = "its individual gradients miss its gradient by {:.2g} of its norm: a part comes another way"
NOT_USED = "it has no part in the outputs for these inputs, so its gradients are zero"


class _Heard:
    """Takes what the engine reports of a pass: why a parameter is refused."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def results(self, results: list[Result]) -> None:
        """Ignore them: there are none."""

    def untracked(self, global_step: int, parameter: str, reason: str) -> None:
        """Note a parameter that cannot be had."""
        self.refused.setdefault(parameter, reason)

    def mismatch(self, global_step: int, parameter: str, layer: str, apart: float) -> None:
        """Note a parameter whose individual gradients do not add up."""
        self.refused.setdefault(parameter, APART.format(apart))

    def doubt(self, global_step: int, times: float) -> None:
        """Ignore it: the loss is a sum."""

    def drawn(self, global_step: int, count: int, size: int) -> None:
        """Ignore it: all samples are looked at."""

    def layout(self, global_step: int, subject: str, reason: str) -> None:
        """Ignore it: the losses are known."""


@dataclass
class _Findings:
    """What the passes have shown, by the names of the parameters."""

    handles: dict[str, IndividualGradients] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)
    coupled: set[Tensor] = field(default_factory=set)  # the parameters themselves
    wrong: set[str] = field(default_factory=set)  # differ from brute force
    errors: dict[str, float] = field(default_factory=dict)
    digits: float = 0.0  # spacing of the coarsest numbers that reached a layer


def check(
    coverage: Coverage,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    batch_dim: int | None,
) -> Coverage:
    """Return the report with what one batch shows; the model is left as it is.

    Raises:
        InvalidArgument: if the inputs or outputs do not let samples be told apart.
        Unsupported: if the backward pass cannot be run by itself.
    """
    size = _batch_size(args, kwargs, batch_dim or 0)
    if size < 2:
        raise InvalidArgument(
            f"inspect got a batch of {size} sample. Give two samples or more: with one, nothing tells "
            "whether samples are kept apart."
        )
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with ExitStack() as stack:
        stack.enter_context(undisturbed(model))
        recorder = Recorder(model, batch_dim)
        stack.callback(recorder.close)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        losses = _losses(model(*args, **kwargs), size, batch_dim)
        try:
            found = _all_at_once(model, named, recorder, losses, batch_dim)
            for sample in (0, size - 1):
                _one_alone(found, named, recorder, losses[sample], sample, size)
        except RuntimeError as error:
            raise Unsupported(
                f"the backward pass of {type(model).__name__} cannot be run by torch.autograd.grad: "
                f"{error}"
            ) from error
        curvature = _second_derivative(
            losses, [named[name] for name in named.keys() - found.unused]
        )
    rows = [_with(row, named.get(row.name), found) for row in coverage.rows]
    notes = coverage.notes if curvature is None else (*coverage.notes, curvature)
    return replace(coverage, rows=tuple(rows), notes=notes, samples=size)


def _batch_size(args: tuple[Any, ...], kwargs: Mapping[str, Any], dim: int) -> int:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.dim() > dim:
            return value.shape[dim]
    raise InvalidArgument(
        f"inspect got no tensor with samples in dimension {dim}. Give it the model's inputs for a "
        "small batch, as the model takes them: cockpit.inspect(model, *args, **kwargs)."
    )


def _losses(outputs: Any, size: int, batch_dim: int | None) -> Tensor:
    """Return a loss for each sample, `[N]`, that is not linear and differs between any two outputs."""
    total: Tensor | None = None
    generator = torch.Generator().manual_seed(0)
    tensors = tensors_in(outputs)
    for tensor in tensors:
        dim = _dim_of_samples(tensor, size, batch_dim)
        if tensor.grad_fn is None or dim is None:
            continue
        of_sample = tensor.movedim(dim, 0).reshape(size, -1)
        of_sample = of_sample.to(torch.promote_types(of_sample.dtype, torch.float32))
        target = torch.randn(of_sample.shape, generator=generator).to(of_sample)
        losses = (of_sample - target).square().mean(1)
        total = losses if total is None else total + losses.to(total.device)
    if total is None:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensor"
        raise InvalidArgument(
            f"The model's outputs do not have the {size} samples in a dimension of theirs (got "
            f"{shapes}), so their losses cannot be told apart. Inspect the part that returns "
            "predictions; a model that returns the mean loss does so where it gets no labels."
        )
    return total


def _dim_of_samples(tensor: Tensor, size: int, batch_dim: int | None) -> int | None:
    for dim in (batch_dim or 0, *range(tensor.dim())):
        if dim < tensor.dim() and tensor.shape[dim] == size:
            return dim
    return None


# -- the passes -----------------------------------------------------------------------------------


def _all_at_once(
    model: nn.Module,
    named: dict[str, nn.Parameter],
    recorder: Recorder,
    losses: Tensor,
    batch_dim: int | None,
) -> _Findings:
    """Get the individual gradients of one backward pass as a watched step does."""
    found, heard, loss = _Findings(), _Heard(), losses.sum()
    audit = Audit(named, model, True)
    gathering = Gathering(named, recorder, MEMORY_BUDGET, 0, heard, audit, batch_dim)
    gathering.audit(0, loss, losses)
    gathered = Gathered(0, LossScale(loss, losses, "sum"), len(losses))

    def keep(handle: IndividualGradients) -> None:
        found.handles[handle.name] = handle

    try:
        gathering.begin(gathered, (), keep, [loss])
        arrived = _pull_back(loss, named)
        assert gathered.collector is not None
        for parameter, gradient in zip(named.values(), arrived, strict=True):
            if gradient is not None:
                gathered.collector.note_accumulated(parameter)
    except BaseException:
        gathered.cleanup.close()
        raise
    gathering.finish(gathered)
    if gathered.fault is not None:
        raise RuntimeError(gathered.fault)
    found.refused = heard.refused
    found.unused = {name for name, g in zip(named, arrived, strict=True) if g is None}
    return found


def _pull_back(loss: Tensor, named: dict[str, nn.Parameter]) -> list[Tensor | None]:
    return list(
        torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
    )


def _one_alone(
    found: _Findings,
    named: dict[str, nn.Parameter],
    recorder: Recorder,
    loss: Tensor,
    sample: int,
    size: int,
) -> None:
    """Compare with the gradient of one sample's loss, and see where that reaches other samples."""

    def take(call: Call, grads: tuple[Tensor | None, ...]) -> None:
        for grad in (grad for grad in grads if grad is not None):
            found.digits = max(found.digits, torch.finfo(grad.dtype).eps)
            if _reaches_others(grad, sample, size):
                found.coupled.update(call.module.parameters())

    recorder.listen(take)
    try:
        expected = _pull_back(loss, named)
    finally:
        recorder.stop()
    for (name, parameter), gradient in zip(named.items(), expected, strict=True):
        handle = found.handles.get(name)
        if handle is None or name in found.refused:
            continue
        reference = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
        reference = reference.detach().to(handle.dtype)
        difference, norm = (
            _norm(handle.piece(slice(sample, sample + 1))[0] - reference),
            _norm(reference),
        )
        # The coarsest precision on the way decides what is rounding; where values cancel, it is
        # relative to these.
        digits = max(found.digits, torch.finfo(parameter.dtype).eps)
        allowed = 10 * digits**0.5 * norm + 1e3 * digits * float(
            handle.square_norms().mean().sqrt()
        )
        if not difference <= allowed:
            found.wrong.add(name)
        error = difference / norm if norm else difference
        found.errors[name] = max(found.errors.get(name, 0.0), error)


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def _reaches_others(grad: Tensor, sample: int, size: int) -> bool:
    dim = _dim_of_samples(grad, size, None)
    if dim is None:
        return False
    norms = grad.detach().movedim(dim, 0).reshape(size, -1).float().norm(dim=1)
    others = torch.cat([norms[:sample], norms[sample + 1 :]]).max()
    return bool(others > 100 * torch.finfo(grad.dtype).eps * norms[sample])


def _second_derivative(losses: Tensor, parameters: list[nn.Parameter]) -> str | None:
    """Return why quantities of curvature cannot be had, or None where they can."""
    if not parameters:
        return None
    try:
        Hessian(losses.mean(), parameters).times([torch.ones_like(p) for p in parameters])
    except (Unsupported, RuntimeError) as error:
        return f"quantities of curvature cannot be had: {str(error).splitlines()[0].rstrip('.')}"
    return None


# -- what it means --------------------------------------------------------------------------------


def _with(row: ParameterCoverage, parameter: Tensor | None, found: _Findings) -> ParameterCoverage:
    """Return what is known of a parameter with what was found."""
    if not row.trained or row.gap is not None or parameter is None:
        return row
    handle = found.handles.get(row.name)
    calls = 0 if handle is None else len(handle.calls)
    used = row.name not in found.unused
    # Outside of layers it is not seen what reaches other samples, only that something does.
    coupled = parameter in found.coupled or (calls == 0 and bool(found.coupled))
    reason = found.refused.get(row.name)
    if reason is None and row.name in found.wrong and not coupled:
        reason = WRONG
    if reason is not None or handle is None:
        found_out = explained(reason or "nothing delivered its individual gradients")
        return replace(row, gap=found_out.why, way_out=found_out.way_out)
    served_by, notes = row.served_by, row.notes
    if served_by == UNDECIDED and used:
        served_by = REPLAYED if calls else GRAPH
    if not used:
        notes = (*notes, NOT_USED)
    if calls > 1:
        notes = (*notes, f"called {calls} times: the parts of its gradients are added up")
    row = replace(row, served_by=served_by, notes=notes, calls=calls)
    if not used:
        return replace(row, seen=UNUSED)
    if row.name in found.wrong or parameter in found.coupled:
        return replace(row, seen=SHARE)
    return replace(row, seen=EXACT, error=found.errors[row.name])
