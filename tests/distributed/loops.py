"""One training as several processes run it, and as one process runs it on the joined batch.

Both are the same functions, so that a worker and the test beside it cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training import MODELS, OPTIMIZERS

from cockpit import Cockpit, quantities
from cockpit.quantities import Quantity
from cockpit.transforms import Dense

PUBLIC = [
    kind
    for name in quantities.__all__
    if isinstance(kind := getattr(quantities, name), type)
    and issubclass(kind, Quantity)
    and kind is not Quantity
]


@dataclass(frozen=True)
class LargestSample(Quantity):
    """What a user may write: a transform of one's own, here of the dense gradients."""

    gradients = Dense()

    def compute(self, step: Any) -> Tensor:
        return torch.stack([g.flatten(1).norm(dim=1) for g in step[self.gradients].values()]).amax()


def everything() -> list[Quantity]:
    """Every public quantity but the time, with a few settings that go other ways.

    The numbers of bins are odd: an edge at 0 would put gradients that vanish on either side of it.
    """
    histograms = [
        quantities.GradHist1d(bins=99, samples=None),
        quantities.GradHist2d(bins=(39, 49), samples=None),
    ]
    left_out = {quantities.Time, *map(type, histograms)}
    special = [
        *histograms,
        quantities.HessTrace(curvature="hutchinson"),
        quantities.HessMaxEV(matrix="ggn"),
        quantities.KroneckerSpectrum(approximation="kflr"),
        quantities.GradHist1d(bins=9, adapt=quantities.bin_adaptation.GradAbsMax()),
        LargestSample(),
    ]
    return [*(kind() for kind in PUBLIC if kind not in left_out), *special]


def most() -> list[Quantity]:
    """The same without those that take the longest, by products as others do."""
    longest = (quantities.HessianSpectrum, quantities.DirectionalCurvature)
    return [quantity for quantity in everything() if not isinstance(quantity, longest)]


class Branches(nn.Module):
    """Sends every sample through one of two layers, and calls a layer only if a sample needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        to_a = x[:, :1] > 0
        if to_a.all():
            return self.head(self.a(x).tanh())
        if not to_a.any():
            return self.head(self.b(x).tanh())
        return self.head(torch.where(to_a, self.a(x), self.b(x)).tanh())


def branches() -> tuple[nn.Module, Callable[[int], Tensor]]:
    def inputs(n: int) -> Tensor:
        x = torch.randn(n, 6, dtype=torch.float64)
        x[:, 0] = torch.where(torch.arange(n) < n // 2, 1.0, -1.0)  # the first process needs a
        return x

    return Branches(), inputs


@dataclass(frozen=True)
class Case:
    """A training.

    Args:
        kind: The model.
        sizes: Number of samples of each process.
        make: Makes the quantities.
        passes: Number of micro-batches; all but the last one without synchronisation.
        reduction: Of the loss of every process.
        factor: On the loss in the backward pass, as a gradient scaler puts it there.
        wrapping: Arguments of `DistributedDataParallel`.
        known: Whether the cockpit knows the optimizer.
        settings: Further arguments of the cockpit.
    """

    kind: str
    sizes: tuple[int, ...] = (4, 4)
    make: Callable[[], list[Quantity]] = everything
    optimizer: str = "sgd"
    steps: int = 3
    passes: int = 1
    reduction: str = "mean"
    factor: float = 1.0
    wrapping: dict[str, Any] = field(default_factory=dict)
    known: bool = True
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "mlp": Case("mlp", optimizer="adamw"),
    "cnn, unequal": Case("cnn", (5, 3), optimizer="momentum"),
    "transformer": Case("transformer", (3, 3)),
    "sums, unequal": Case("mlp", (1, 5), most, reduction="sum"),
    "micro-batches": Case(
        "cnn", (4, 6), most, passes=2, wrapping={"gradient_as_bucket_view": True}
    ),
    "scaled": Case("mlp", make=most, factor=64.0, known=False),
    "unused": Case("branches", make=most, wrapping={"find_unused_parameters": True}),
    "static": Case("mlp", make=most, wrapping={"static_graph": True}),
    "little memory": Case("cnn", (3, 4), most, settings={"memory_budget": 600}),
}


def model_of(case: Case) -> tuple[nn.Module, Callable[[int], Tensor]]:
    torch.manual_seed(0)
    model, inputs = branches() if case.kind == "branches" else MODELS[case.kind]()
    return model.double(), inputs


def batches(case: Case, inputs: Callable[[int], Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield the joined batches."""
    torch.manual_seed(1)
    n = sum(case.sizes)
    return [(inputs(n), torch.randint(3, (n,))) for _ in range(case.steps)]


def micro_batches(case: Case) -> list[list[int]]:
    """Return the samples of every micro-batch, those of all processes together."""
    starts = [0, *accumulate(case.sizes)]
    return [
        [
            start + k * size // case.passes + i
            for start, size in zip(starts, case.sizes, strict=False)
            for i in range(size // case.passes)
        ]
        for k in range(case.passes)
    ]


def joined(case: Case, **arguments: Any) -> dict[int, dict[str, Any]]:
    """Train in one process, in which the loss is the mean (or the sum) of those of the processes.

    Every micro-batch is made of those of all processes.
    """
    model, inputs = model_of(case)
    opt = OPTIMIZERS[case.optimizer](model.parameters())
    watch = Cockpit(model, case.make(), optimizer=opt, **case.settings, **arguments)
    world = len(case.sizes)
    sizes = [n // case.passes for n in case.sizes]
    weights = torch.cat([torch.full((n,), 1 / (world * n), dtype=torch.float64) for n in sizes])
    for step, (x, y) in enumerate(batches(case, inputs)):
        opt.zero_grad()
        for k, samples in enumerate(micro_batches(case)):

            def loss_of(x: Tensor = x[samples], y: Tensor = y[samples]) -> tuple[Tensor, Tensor]:
                losses = F.cross_entropy(model(x), y, reduction="none")
                mean = case.reduction == "mean"
                return losses, (losses * weights).sum() if mean else losses.sum()

            losses, loss = loss_of()
            info = {"closure": lambda f=loss_of: f()[1], "micro_batch": (k, case.passes)}
            with watch(step, loss=loss, individual_losses=losses, info=info):
                (loss / case.passes / (1 if case.reduction == "mean" else world)).backward()
        opt.step()
    watch.close()
    return watch.get_output()


def spread(
    case: Case, rank: int, watched: bool = True, **arguments: Any
) -> tuple[dict[int, dict[str, Any]], list[Tensor], Cockpit | None]:
    """Train as one of the processes; return the output, the parameters at the end, and the cockpit."""
    model, inputs = model_of(case)
    net = DistributedDataParallel(model, **case.wrapping)
    opt = OPTIMIZERS[case.optimizer](net.parameters())
    watch = None
    if watched:
        known = opt if case.known else None
        watch = Cockpit(net, case.make(), optimizer=known, **case.settings, **arguments)
    start = [0, *accumulate(case.sizes)][rank]
    for step, (x, y) in enumerate(batches(case, inputs)):
        own = slice(start, start + case.sizes[rank])
        train_step(case, net, opt, watch, step, x[own], y[own])
    if watch is not None:
        watch.close()
    output = {} if watch is None else watch.get_output()
    return output, [p.detach().clone() for p in model.parameters()], watch


def train_step(
    case: Case,
    net: DistributedDataParallel,
    opt: torch.optim.Optimizer,
    watch: Cockpit | None,
    step: int,
    x: Tensor,
    y: Tensor,
) -> None:
    """Make one step on this process's samples."""
    opt.zero_grad()
    for k, (some_x, some_y) in enumerate(
        zip(x.chunk(case.passes), y.chunk(case.passes), strict=True)
    ):
        last = k == case.passes - 1
        with nullcontext() if last else net.no_sync():

            def loss_of(x: Tensor = some_x, y: Tensor = some_y) -> tuple[Tensor, Tensor]:
                losses = F.cross_entropy(net(x), y, reduction="none")
                return losses, losses.mean() if case.reduction == "mean" else losses.sum()

            losses, loss = loss_of()
            context: Any = nullcontext()
            if watch is not None:
                context = watch(
                    step,
                    loss=loss,
                    individual_losses=losses,
                    closure=lambda f=loss_of: f()[1],
                    micro_batch=(k, case.passes),
                )
            with context:
                (loss * case.factor / case.passes).backward()
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad /= case.factor
    opt.step()
