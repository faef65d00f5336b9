"""Faults of the learning rate and its schedule."""

from __future__ import annotations

import math

from torch import Tensor

from benchmarks.faults.fault import Injected
from benchmarks.faults.training import Setup


def diverging(setup: Setup) -> None:
    """Train with a rate that is far too high from the first step on."""
    setup.rate = 10 * setup.edge


def growing(setup: Setup) -> Injected:
    """Multiply the rate at every step by a factor that was meant for an epoch."""
    setup.schedule = lambda step: 1.04**step  # 10 at step 59, 100 at step 118
    return Injected(step=60)


def second_stage(setup: Setup) -> Injected:
    """Begin a second stage at step 70, with a rate that was meant for another model."""
    at, factor = 70, 4 * setup.edge / setup.rate
    setup.schedule = lambda step: factor if step >= at else 1.0
    return Injected(step=at)


def one_cycle(setup: Setup) -> Injected:
    """Let the rate go up and down once, with a peak at step 60 that a test of rates has shown to be too high."""
    setup.rate, peak = 4 * setup.edge, 60

    def schedule(step: int) -> float:
        turn = (step + 1) / peak if step < peak else 1 + (step - peak) / (setup.steps - peak)
        return (1 - math.cos(math.pi * turn)) / 2  # up from 0 in the first turn, down in the second

    setup.schedule = schedule
    return Injected(step=20)


def edge(setup: Setup) -> None:
    """Train with a rate that is a little too high."""
    setup.rate = setup.edge


def warmed_up_too_far(setup: Setup) -> Injected:
    """Warm up within 60 steps, to a rate that is too high."""
    setup.rate = 3 * setup.edge
    setup.schedule = lambda step: min(1.0, (step + 1) / 60)
    return Injected(step=10)


def restarts(setup: Setup) -> None:
    """Lower the rate along a cosine, with a restart every 40 steps at a rate that is too high."""
    setup.rate = 2 * setup.edge
    setup.schedule = lambda step: (1 + math.cos(math.pi * (step % 40) / 40)) / 2


def multiplied_by_ten(setup: Setup) -> Injected:
    """Multiply the rate by 10 at step 80, where it was to be divided by 10."""
    at = 80
    setup.schedule = lambda step: 10.0 if step >= at else 1.0
    return Injected(step=at)


def too_low(setup: Setup) -> None:
    """Train with a 300th of the rate."""
    setup.rate /= 300


def far_too_low(setup: Setup) -> None:
    """Train with a 1000th of the rate."""
    setup.rate /= 1000


def warming_up(setup: Setup) -> None:
    """Warm up for 10,000 steps, as many as a large model needs."""
    setup.schedule = lambda step: (step + 1) / 10_000


def rate_of_fine_tuning(setup: Setup) -> None:
    """Train from scratch with 2e-5, a rate with which large models are fine-tuned."""
    setup.rate = 2e-5


def rate_of_zero(setup: Setup) -> None:
    """Train with a rate of 0."""
    setup.schedule = lambda step: 0.0


def rate_divided_to_zero(setup: Setup) -> None:
    """Compute the share of a warm-up with an integer division."""
    setup.schedule = lambda step: float(min(1, step // 1000))


def decayed_to_zero(setup: Setup) -> Injected:
    """Lower the rate to 0 within 40 steps, the length of another training."""
    at = 40
    setup.schedule = lambda step: max(0.0, 1 - step / at)
    return Injected(step=at)


def warming_up_by_epochs(setup: Setup) -> None:
    """Warm up over five epochs, with a scheduler that counts epochs: in the first one the rate is 0."""
    epoch = len(setup.data.x) // setup.batch_size
    setup.schedule = lambda step: min(1.0, step // epoch / 5)


def stopped_early(setup: Setup) -> Injected:
    """Divide the rate by 10 every 20 steps, which were meant to be epochs."""
    setup.schedule = lambda step: 0.1 ** (step // 20)
    return Injected(step=40)


def decayed_at_once(setup: Setup) -> Injected:
    """Multiply the rate by 0.9 at every step, not at every epoch."""
    setup.schedule = lambda step: 0.9**step
    return Injected(step=30)


def inverse_decay(setup: Setup) -> Injected:
    """Divide the rate by the number of the step, as proofs of convergence do."""
    setup.schedule = lambda step: 1 / (1 + step)
    return Injected(step=20)


class Plateau:
    """Halves the rate where a loss is not a new low, nor any of the two before it."""

    def __init__(self) -> None:
        self.factor, self.best, self.waited = 1.0, math.inf, 0

    def seen(self, losses: Tensor) -> Tensor:
        """Return the mean of the losses, and count it."""
        loss = losses.mean()
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, float(loss.detach()))
        if self.waited == 3:
            self.factor, self.waited = self.factor / 2, 0
        return loss


def plateau_of_steps(setup: Setup) -> Injected:
    """Halve the rate where the loss is at no new low for three steps, which were meant to be epochs."""
    plateau = Plateau()
    setup.reduce = plateau.seen
    setup.schedule = lambda step: plateau.factor
    return Injected(step=30)
