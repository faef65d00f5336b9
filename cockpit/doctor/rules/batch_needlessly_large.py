"""CP107: batches that are larger than they need be."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Curve, Record
from cockpit.doctor.rule import NotKnown, Rule, Sign
from cockpit.doctor.rules.of_course import aligned

LEAST = 10
"""Tracked steps of which the sums of signal and noise are taken."""

SHARE = 1 / 4
"""Noise scale over batch size: at four times the noise scale a training takes 1.6 times fewer steps than at the noise
scale itself, and 2.5 times the samples."""


def check(run: Record) -> Sign | NotKnown | None:
    """Compare the batch size with the noise scale, at the first step and in the middle of the steps so far.

    The first step knows nothing of the learning rate, which may later make the gradients swing in unison.
    """
    trace, signal = (
        run.curve("GradientNoiseScale", "trace"),
        run.curve("GradientNoiseScale", "squared_norm"),
    )
    share = noise_share(run)
    if trace is None or signal is None or share is None:
        return NotKnown("there is no noise scale; track configuration('health')")
    steps, (noise, square, part) = aligned(trace, signal, share)
    if len(steps) < LEAST:
        return NotKnown(f"it takes the noise scale of {LEAST} steps, and there are {len(steps)}")
    noise, square, part = noise[:LEAST], square[:LEAST], part[:LEAST]
    known = (noise > 0) & (square > 0) & (part > 0) & (part < 1)  # the others were mostly noise
    # B / N, as part = (tr Σ / N) / ‖g‖² and ‖g‖² = ‖G‖² + tr Σ / N
    over_size = np.where(known, part / (1 - part), np.inf)
    if not max(over_size[0], np.median(over_size)) <= SHARE:
        return None
    evidence = {
        "batch size": round(float(np.median((noise / (square * over_size))[known]))),
        "noise scale": float(np.median((noise / square)[known])),
    }
    return Sign(int(steps[LEAST - 1]), (), evidence, 0.6)


def noise_share(run: Record) -> Curve | None:
    """Return the share of noise in the squared norm of the gradient."""
    share, test = run.curve("GradientNoiseScale", "noise_share"), run.curve("NormTest")
    if share is not None or test is None:
        return share
    return Curve(test.steps, np.square(test.values))


RULE = Rule(
    code="CP107",
    name="batch-needlessly-large",
    severity="note",
    title="The batches are larger than they need be",
    why="The gradient is known so well that a batch of a fraction of the size would give nearly the same step: the "
    "training could take more steps on the same samples.",
    action="Use smaller batches and more steps, unless hardware makes the large ones free.",
    source="McCandlish, Kaplan, Amodei et al. (2018), arXiv:1812.06162, section 2",
    needs=("GradientNoiseScale",),
    check=check,
    least=LEAST,
    instrument="gradient-noise-scale",
)
