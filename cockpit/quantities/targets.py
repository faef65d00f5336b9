"""What a batch is trained on, and how well the model does on it: read from the graph of the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cockpit.engine.needs import Moment, Observation
from cockpit.engine.step import NotChecked, Step
from cockpit.quantities.loss_graph import compared
from cockpit.quantities.quantity import Outcome, Quantity

LOOKED_AT = 2048
"""Targets that are looked up in their predictions: of more, so many, evenly spaced."""


@dataclass(frozen=True)
class Given:
    """What a loss function was given.

    Args:
        outputs: Log-probabilities `[n, C]`, or predictions `[n, D]`.
        targets: Classes `[n]`, or what is to be predicted `[n, D]`.
        counts: Which of the classes count, `[n]`; None for predictions.
    """

    outputs: Tensor
    targets: Tensor
    counts: Tensor | None = None

    @property
    def of_classes(self) -> bool:
        """Whether the targets are classes."""
        return self.counts is not None


@dataclass(frozen=True)
class LossInputs(Observation):
    """What the one loss function at the end of the graph was given, a `Given`."""

    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Step) -> Given:
        """Return it."""
        if step.live is None or step.live.postponed is not None:
            raise NotChecked("the graph of the loss cannot be looked at", usual=True)
        nodes = compared(step.live.loss)
        if len(nodes) != 1:
            reason = "the loss is not one cross-entropy or mean squared error of torch's own"
            raise NotChecked(reason, usual=True)
        outputs, targets = nodes[0]._saved_self.detach(), nodes[0]._saved_target.detach()
        if targets.is_floating_point():
            if outputs.shape != targets.shape or not targets.dim():
                raise NotChecked("outputs and targets differ in shape", usual=True)
            return Given(outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1))
        outputs = outputs.movedim(1, -1) if outputs.dim() > 1 else outputs
        outputs, targets = outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
        counts = targets != _signed(nodes[0]._saved_ignore_index)
        return Given(outputs, torch.where(counts, targets, 0), counts)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@dataclass(frozen=True)
class Targets(Quantity):
    r"""What the loss function compares: the distribution of the targets, and where the model puts them.

    Formula: of a negative log-likelihood, with the rank of the target among the C classes (0 for the most
    probable one): ``classes``, ``loss``, the mean of :math:`-\log p(y)` without any weights; ``accuracy``, the
    share of rank 0; ``lower_half``, that of ranks of C / 2 and more; ``entropy``, that of the targets of
    all steps looked at so far, and ``batch_entropy``, that of this batch alone; ``most`` and ``least``, the
    shares of the most and the least frequent class, of those that occur; ``seen``, the number of
    targets so far. Of a squared error: ``loss``, its mean over samples and elements;
    ``variance`` of the targets so far, the mean over their elements, and ``batch_variance``, the part of
    it that lies between the batches; ``seen``. By target, ``doubtful``: the model is surer of another class
    than of all others together, and has the target in the lower half of the ranks; ``doubt``, the share of these.
    ``suspected``: of those that the model is so sure of, the ones with the label that most of them have; ``suspect``,
    their share; ``suspects_alike``, the share of pairs of them that look like the same class.
    ``sample_ids``, where ``info["sample_ids"]`` names them. Of more than 2048 targets, so many are looked at, and
    they are not told apart.

    How to read it: leave that to the doctor.

    Source: Northcutt, Jiang & Chuang (2021), arXiv:1911.00068, for labels that a model is sure are others.

    With accumulation: those of the first micro-batch.
    """

    given = LossInputs()

    def remember(self, step: Step) -> Any:
        """Add the targets of this step to those so far."""
        given = step.values[self.given]
        return _counted(given, step.memory) if isinstance(given, Given) else step.memory

    def compute(self, step: Step) -> Outcome:
        """Return the statistics."""
        given: Given = step[self.given]
        counted = _counted(given, step.memory)
        if not given.of_classes:
            return Outcome({}, _of_values(given, counted))
        details = _of_classes(given, counted)
        ids = step.info.get("sample_ids")
        if "doubtful" in details and ids is not None:
            details["sample_ids"] = torch.as_tensor(ids)
        return Outcome({}, details)


def _counted(given: Given, before: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return sums over the targets so far and those of this step."""
    now = _sums(given)
    if before is None or any(before[key].shape != value.shape for key, value in now.items()):
        return now  # the first ones, or those of another loss
    return {key: before[key].to(value) + value for key, value in now.items()}


def _sums(given: Given) -> dict[str, Tensor]:
    if given.counts is not None:
        of_class = given.counts.new_zeros(given.outputs.shape[1], dtype=torch.float32)
        return {"of_class": of_class.index_add_(0, given.targets, given.counts.float())}
    y = given.targets if given.targets.device.type == "mps" else given.targets.double()
    mean = y.mean(0)
    return {
        "targets": y.new_tensor(len(y)),
        "batches": y.new_ones(()),
        "sum": y.sum(0),
        "squares": y.square().sum(0),
        "means": mean,
        "squares_of_means": mean.square(),
    }


def _entropy(counts: Tensor) -> Tensor:
    """Return the entropy of shares that are in proportion to counts, in nats, `[]`."""
    shares = counts / counts.sum()
    return -torch.special.xlogy(shares, shares).sum()


def _of_classes(given: Given, counted: Mapping[str, Tensor]) -> dict[str, Any]:
    every = max(1, len(given.targets) // LOOKED_AT)
    outputs, y = given.outputs[::every], given.targets[::every]
    assert given.counts is not None
    counts = given.counts[::every]
    classes = outputs.shape[1]
    own = outputs.gather(1, y[:, None])
    rank = (outputs > own).sum(1)
    share = counts.float() / counts.sum()
    lower = (rank >= classes / 2) & counts
    of_class = counted["of_class"]
    shares = of_class / of_class.sum()
    details: dict[str, Any] = {
        "classes": classes,
        "loss": -(own[:, 0].float() * share).sum(),
        "accuracy": ((rank == 0) * share).sum(),
        "lower_half": (lower * share).sum(),
        "entropy": _entropy(of_class),
        "batch_entropy": _entropy(_sums(given)["of_class"]),
        "most": shares.amax(),
        "least": torch.where(shares > 0, shares, 1.0).amin(),
        "seen": of_class.sum(),
    }
    doubtful = lower & (outputs.amax(1) > math.log(0.5))
    details["doubt"] = (doubtful * share).sum()
    suspected, details["suspects_alike"] = _of_one_label(outputs, y, (rank > 0) & counts)
    details["suspect"] = (suspected * share).sum()
    if every == 1:
        details |= {"doubtful": doubtful, "suspected": suspected}
    return details


def _of_one_label(outputs: Tensor, y: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples of one label that the model is sure are of other classes, `[n]`, and how alike they are, `[]`.

    It is the label of most of the samples that the model is surer about than about all other classes together. Alike
    are two whose most probable class is the same.
    """
    most, looks_like = outputs.max(1)
    sure = wrong & (most > math.log(0.5))
    of_class = outputs.new_zeros(outputs.shape[1], dtype=torch.float32)
    label = of_class.index_add(0, y, sure.float()).argmax()
    suspected = sure & (y == label)
    found = of_class.index_add(0, looks_like, suspected.float())
    number = found.sum()
    pairs = (number * (number - 1)).clamp(min=1)
    return suspected, torch.where(number > 1, (found * (found - 1)).sum() / pairs, 1.0)


def _of_values(given: Given, counted: Mapping[str, Tensor]) -> dict[str, Any]:
    n, batches = counted["targets"], counted["batches"]
    square_of_mean = (counted["sum"] / n).square()
    of_means = counted["squares_of_means"] / batches - (counted["means"] / batches).square()
    return {
        "loss": (given.outputs - given.targets).square().mean(),
        "variance": (counted["squares"] / n - square_of_mean).mean(),
        "batch_variance": of_means.mean(),
        "seen": n,
    }
