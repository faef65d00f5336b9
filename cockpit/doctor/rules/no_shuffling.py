"""CP108: batches that differ from each other more than chance allows."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned, first

LEAST = 5
"""Batches that are compared."""

SHARE = 0.3
"""Of what can be known of a target, what the number of its batch tells: 0 if they are drawn at random, 1 if every
batch has a class of its own. Half-sorted data are at about 0.5, and text in its order below 0.05."""

CHANCE = 0.15
"""What small batches differ by if they are drawn at random; above it, they are too small to tell."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the targets of the batches with those of all batches so far."""
    seen = run.curve("Targets", "seen")
    if seen is None or len(seen.steps) < LEAST:
        return NotKnown("the targets of five batches were not seen; track configuration('health')")
    size = float(seen.values[0])
    found = _of_classes(run, size) if run.curve("Targets", "entropy") else _of_values(run, size)
    if isinstance(found, NotKnown):
        return found
    steps, between = found
    place = first((between > SHARE) & (np.arange(len(steps)) >= LEAST - 1))
    if place is None:
        return None
    evidence = {
        "share of the targets' variety that lies between batches": float(between[place:].max()),
        "batches": len(steps),
    }
    return Sign(int(steps[place]), (), evidence, 0.95)


def _of_classes(run: Record, size: float) -> tuple[np.ndarray, np.ndarray] | NotKnown:
    """Return the mutual information between the class and the batch over the entropy of the classes."""
    of_all, of_batch = run.curve("Targets", "entropy"), run.curve("Targets", "batch_entropy")
    classes = run.curve("Targets", "classes")
    if of_all is None or of_batch is None or classes is None:
        return NotKnown("the targets were not seen")
    steps, (total, own) = aligned(of_all, of_batch)
    mean = np.cumsum(own) / np.arange(1, len(own) + 1)
    chance = (float(classes.values[0]) - 1) / (2 * size)  # by which a sample has too little entropy
    if not total[-1] > 0:
        return NotKnown("all targets seen so far are of one class")
    if chance > CHANCE * total[-1]:
        return NotKnown("the batches are too small for their number of classes to be compared")
    return steps, np.where(total > 0, (total - mean - chance) / total, 0.0)


def _of_values(run: Record, size: float) -> tuple[np.ndarray, np.ndarray] | NotKnown:
    """Return the share of the variance that lies between the means of the batches."""
    of_all, of_means = run.curve("Targets", "variance"), run.curve("Targets", "batch_variance")
    if of_all is None or of_means is None or size * CHANCE < 1:
        return NotKnown("the batches are too small to be compared")
    steps, (total, between) = aligned(of_all, of_means)
    return steps, between / np.where(total > 0, total, np.inf) - 1 / size


RULE = Rule(
    code="CP108",
    name="no-shuffling",
    severity="warning",
    title="The batches differ: the samples come in an order",
    why="Samples drawn at random make every batch a small copy of the data. Where a batch has a few kinds "
    "of samples only, each step unlearns the others, and the statistics of batch normalisation are off.",
    action="Draw the samples in a new random order every epoch: DataLoader(..., shuffle=True), or a sampler "
    "that mixes the sources.",
    source="Bengio (2012), arXiv:1206.5533, section 3.1: shuffled samples; mutual information by definition",
    needs=("Targets",),
    check=check,
    least=LEAST,
    explains=(
        "class-imbalance",
        "labels-shuffled",
        "loss-spikes",
        "overfitting",
        "stalled",
        "underfitting",
        "batch-needlessly-large",
        "dead-units",
        "learning-rate-too-high",
        "labels-partly-wrong",
        "learning-rate-too-low",
    ),
)
