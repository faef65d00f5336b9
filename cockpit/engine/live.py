"""The loss and what it came from while their graph is alive, before the user's backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from cockpit.curvature import (
    GGN,
    Curvature,
    Differences,
    FirstPossible,
    Hessian,
    Reevaluation,
    Send,
    Source,
    other_leaves,
)
from cockpit.engine.scale import LossScale
from cockpit.errors import Unsupported
from cockpit.gradients.randomness import RandomState, accelerators

if TYPE_CHECKING:
    from cockpit.engine.shares import JoinedCurvature, Shares
    from cockpit.engine.step import PerParameter
    from cockpit.gradients import IndividualGradients

MATRICES = ("hessian", "ggn")
"""Curvatures that are known by their products with vectors."""

NO_OUTPUTS = (
    "the GGN needs the outputs of the model that the loss is computed from, and these are not known; "
    "give them as info={'outputs': ...}"
)

NO_CLOSURE = (
    "max_samples={} needs info['closure'], a function that computes the loss of a part of the "
    "mini-batch: def closure(samples=slice(None)): return loss_fn(model(x[samples]), y[samples])"
)

NO_SIZE = "the number of samples is not known; give it as info={'batch_size': ...}"

NO_PART = (
    "max_samples takes the first samples of the mini-batch, which with several processes are those of "
    "the first ones; leave max_samples=None, each process has only its part anyway"
)

Pass = Callable[["Sequence[GradientEdge] | None"], "Sequence[Tensor | None]"]
"""Runs a backward pass that ends at some outputs of layers; or at the tracked parameters, where it is given None.
Returns what arrives there."""


class Reduce(Protocol):
    """Runs a backward pass of ours, and reduces the individual gradients that it brings."""

    def __call__(
        self, run: Pass, reduction: Callable[[IndividualGradients], Any], report: bool = True
    ) -> PerParameter:
        """Return what the reduction makes of them.

        Args:
            run: Runs the pass.
            reduction: What to keep of the handle of each parameter.
            report: Whether to report the parameters that have no individual gradients.
        """


@dataclass(frozen=True, eq=False)
class Live:
    """The loss and what it came from, in their graph.

    Everything in here that is differentiated keeps the graph; nobody holds on to it after entry.

    Args:
        loss: The tensor on which ``backward()`` will be called.
        individual_losses: The losses of the samples, `[N]`, where they were given.
        model: The model, where it was given.
        inputs: What the model was called with in its last forward pass, where some quantity asked
            for its outputs.
        outputs: What the model returned then, or what the user says it did.
        parameters: The tracked parameters by name.
        batch_size: Number of samples N; 0 where it is not known.
        said: What the user says of the loss, ``"mean"`` or ``"sum"``.
        seed: Of the random numbers of this step.
        closure: The user's function that computes the loss of the same mini-batch anew, if there is
            one.
        start: The global random state that the forward pass began in, where it is known.
        micro_batches: In how many parts the mini-batch comes, of which this is the first one.
        reduce: Runs a backward pass, and reduces the individual gradients that it brings.
        shares: What part of the loss this is, where several processes train together.
        postponed: Why the graph must not be differentiated now, if so.
    """

    loss: Tensor
    individual_losses: Tensor | None
    model: nn.Module | None
    inputs: tuple[Any, ...]
    outputs: Any
    parameters: Mapping[str, nn.Parameter]
    batch_size: int
    said: str | None
    seed: int
    closure: Callable[..., Tensor] | None
    start: RandomState | None
    micro_batches: int
    reduce: Reduce
    shares: Shares | None = None
    postponed: str | None = None
    _matrices: dict[tuple[str, int | None], FirstPossible | JoinedCurvature] = field(
        default_factory=dict
    )

    @cached_property
    def reduction(self) -> Tensor | float:
        """r, what the loss is divided by to be the mean loss: 1 for a mean, N for a sum.

        Raises:
            Unsupported: if it is a sum of nobody knows how many.
        """
        if self.said == "sum" and not self.batch_size:
            raise Unsupported(NO_SIZE)
        scale = LossScale(self.loss, self.individual_losses, self.said)
        losses = self.individual_losses
        try:
            if losses is not None and losses.requires_grad and self.loss.requires_grad:
                torch.autograd.grad(self.loss, losses, retain_graph=True, allow_unused=True)
        finally:
            scale.close()
        return scale.reduction(max(1, self.batch_size))

    def part(self, max_samples: int | None) -> slice | None:
        """Return the samples that are left of the mini-batch, or None where that is all of it.

        Raises:
            Unsupported: if it cannot be said, or there is no closure for it.
        """
        if max_samples is None:
            return None
        if not self.batch_size:
            raise Unsupported(NO_SIZE)
        if self.shares is not None and self.shares.size > max_samples:
            raise Unsupported(NO_PART)
        if self.batch_size <= max_samples:
            return None
        if self.closure is None:
            raise Unsupported(NO_CLOSURE.format(max_samples))
        return slice(0, max_samples)

    def matrix(
        self, kind: str = "hessian", max_samples: int | None = None
    ) -> FirstPossible | JoinedCurvature:
        """Return a curvature of the mean loss with respect to the tracked parameters, by its products.

        From the graph; or, where that lacks a second derivative and there is a closure, from the
        loss computed anew with the mathematical kernels, and from differences of its gradient. That
        of a part of the mini-batch is always computed anew.

        Args:
            kind: One of `MATRICES`.
            max_samples: Number of samples to restrict it to.
        """
        part = self.part(max_samples)
        key = kind, None if part is None else max_samples
        if key not in self._matrices:
            own = FirstPossible(self._ways(kind, part), list(self.parameters.values()))
            joined = own if self.shares is None else self.shares.matrix(own, self.reduction)
            self._matrices[key] = joined
        return self._matrices[key]

    def _ways(self, kind: str, part: slice | None) -> dict[str, Callable[[], Curvature]]:
        # No way may refer to this object, which keeps them, or the graph would await the collector.
        loss, outputs, parameters = self.loss, self.outputs, list(self.parameters.values())
        make = partial(_curvature, kind, parameters, 1 / self._reduction_of(part))
        ways: dict[str, Callable[[], Curvature]] = {}
        if part is None:
            ways["graph"] = lambda: make(loss, outputs)
        if self.evaluations is not None:
            again = self.evaluations
            ways["closure"] = lambda: make(*again.with_outputs(part))
            if kind == "hessian":
                plain = partial(again, part, differentiable=False)
                scale = 1 / self._reduction_of(part)
                ways["differences"] = lambda: Differences(plain, parameters, scale)
        return ways

    def _reduction_of(self, part: slice | None) -> Tensor | float:
        r = self.reduction
        if part is None:
            return r
        # There are fewer samples than N, and so N > 1.
        if isinstance(r, Tensor):
            return torch.where(r == 1, 1.0, float(part.stop))
        return 1.0 if r == 1 else float(part.stop)

    @cached_property
    def evaluations(self) -> Reevaluation | None:
        """Evaluations of the closure, if there is one."""
        if self.closure is None:
            return None
        devices = accelerators(self.parameters.values())
        otherwise = RandomState.seeded(self.seed, *devices)
        return Reevaluation(self.closure, self.model, self.loss, self.start, otherwise)

    def pass_of(self, send: Send) -> Pass:
        """Make a backward pass of a function that sends something to the given ends of the graph."""
        parameters = list(self.parameters.values())
        # Without the model it is BackPACK's hooks that listen, on their way to the inputs.
        more = other_leaves(self.loss, parameters) if self.model is None else []

        def run(layers: Sequence[GradientEdge] | None) -> Sequence[Tensor | None]:
            with torch.enable_grad():
                if layers is not None:
                    return send(layers)
                return send([*parameters, *more])[: len(parameters)]

        return run

    def basis(self, curvature: str, source: str, max_samples: int | None = None) -> Basis:
        """Return what a curvature was computed from.

        Args:
            curvature: Which one it is.
            source: How it was had.
            max_samples: Number of samples that it was restricted to.
        """
        size = self.batch_size if self.shares is None else self.shares.size
        if max_samples is not None:
            size = min(size or max_samples, max_samples)
        return Basis(curvature, source, size, self.micro_batches)

    def generator(self) -> torch.Generator:
        """Return a generator of our own on the parameters' device, in the same state at every call."""
        device = next(iter(self.parameters.values())).device
        return torch.Generator(device=device).manual_seed(self.seed)

    def sample_source(self) -> Source:
        """Return where random numbers come from that belong to samples."""
        return self.generator() if self.shares is None else self.shares.portion(self.generator())

    def of_mean(self, diagonals: Mapping[str, Tensor]) -> PerParameter:
        """Turn the diagonals of the loss's curvature, which nobody else has, into those of the mean loss's."""
        from cockpit.engine.step import PerParameter

        value = PerParameter((name, d.div_(self.reduction)) for name, d in diagonals.items())
        return value if self.shares is None else self.shares.diagonals(value, self.reduction)


@dataclass(frozen=True)
class Basis:
    """What a curvature was computed from.

    Args:
        curvature: Which one it is, such as ``"hessian"`` or ``"ggn, sampled"``.
        source: How it was had: from the ``"graph"`` of the loss, from the ``"closure"``, from
            ``"differences"`` of the closure's gradient, from ``"backpack"``.
        samples: How many samples there were; 0 where that is not known.
        micro_batches: In how many parts the mini-batch came, of which these are the first one.
        lacking: Parameters that it has nothing of.
    """

    curvature: str
    source: str
    samples: int
    micro_batches: int = 1
    lacking: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"curvature: {self.curvature}; source: {self.source}"
        if self.micro_batches > 1:
            text += f"; samples: those of the first of {self.micro_batches} micro-batches"
        if self.lacking:
            text += f"; without: {', '.join(self.lacking)}"
        return text


def find_outputs(outputs: Any) -> Tensor | None:
    """Return the tensor that the loss is computed from: the output itself, or its logits."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    elif hasattr(outputs, "logits"):
        outputs = outputs.logits
    elif isinstance(outputs, tuple | list) and len(outputs) == 1:
        outputs = outputs[0]
    return outputs if isinstance(outputs, Tensor) and outputs.requires_grad else None


def _curvature(
    kind: str, parameters: Sequence[Tensor], scale: Tensor | float, loss: Tensor, outputs: Any
) -> Curvature:
    if kind == "hessian":
        return Hessian(loss, parameters, scale)
    z = find_outputs(outputs)
    if z is None:
        raise Unsupported(NO_OUTPUTS)
    return GGN(loss, z, parameters, scale)
