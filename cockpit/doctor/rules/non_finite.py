"""CP501: NaN or infinity."""

from __future__ import annotations

import numpy as np

from cockpit.doctor.record import Record
from cockpit.doctor.rule import NotKnown, Rule, Sign


def check(run: Record) -> Sign | NotKnown | None:
    """Find the first step at which the loss or an output was not finite, and where that came from.

    Gradients alone are no sign: where a loss is scaled for half precision they are infinite now and
    then, and such a step is skipped.
    """
    steps = [_first_loss(run), _first_output(run)]
    known = [step for step in steps if step is not None]
    if not known:
        return None
    step = min(known)
    if not run.has("NonFinite"):
        return Sign(step, (), {"quantity": "Loss"}, 1.0)
    cause = _gradients_before(run, step)
    if cause is not None:
        earlier, names = cause
        evidence = {
            "first": "gradients",
            "parameters": len(names),
            "loss or outputs from step": step,
        }
        title = "NaN or infinity, first in the gradients"
        return Sign(earlier, names, evidence, 0.9, title)
    modules = _modules(run, step)
    evidence = {"first": "outputs" if modules else "loss", "modules": len(modules)}
    samples = _samples(run, step) if modules else []
    if samples:
        evidence |= {"samples": samples[:20], "number of samples": len(samples)}
    where = f"NaN or infinity, first in the output of {modules[0]}" if modules else None
    return Sign(step, tuple(modules[:1]), evidence, 1.0, where)


def _first_loss(run: Record) -> int | None:
    loss = run.curve("Loss")
    if loss is None or np.isfinite(loss.values).all():
        return None
    return int(loss.steps[~np.isfinite(loss.values)][0])


def _first_output(run: Record) -> int | None:
    modules = run.curve("NonFinite", "modules")
    if modules is None or not (modules.values > 0).any():
        return None
    return int(modules.steps[modules.values > 0][0])


def _gradients_before(run: Record, step: int) -> tuple[int, tuple[str, ...]] | None:
    """Return the tracked step right before, and whose gradients were not finite then; the first hit first."""
    counts = run.curve("NonFinite", "gradients")
    if counts is None or not (counts.steps < step).any():
        return None
    before = int(counts.steps[counts.steps < step][-1])
    hits = run.curves("NonFinite", "hit")
    names = [name for name, curve in hits.items() if _at(curve, before) > 0]
    # Gradients flow from the end of the model to its beginning.
    return (before, tuple(reversed(names))) if names else None


def _modules(run: Record, step: int) -> list[str]:
    """Return the modules whose output was not finite, in the order in which they returned."""
    values, order = run.curves("NonFinite", "values"), run.curves("NonFinite", "order")
    hit = [name for name, curve in values.items() if _at(curve, step) > 0 and name in order]
    return sorted(hit, key=lambda name: _at(order[name], step))


def _samples(run: Record, step: int) -> list[int]:
    flags = run.flags("NonFinite", "by_sample", step)
    return [] if flags is None else [int(place) for place in np.nonzero(flags)[0]]


def _at(curve: tuple[np.ndarray, np.ndarray], step: int) -> float:
    steps, values = curve
    found = values[steps == step]
    return float(found[0]) if len(found) else 0.0


RULE = Rule(
    code="CP501",
    name="non-finite",
    severity="error",
    title="The loss is NaN or infinite",
    why="From then on every gradient is NaN, and after the next update every parameter: the training is "
    "over, whatever the loop does.",
    action="Go back to a checkpoint from before. If a few samples are hit, look at these data. If all are, "
    "lower the learning rate, clip gradients, or compute that layer in higher precision; look for "
    "logarithms, roots and divisions near 0.",
    source="IEEE 754",
    needs=("Loss",),
    check=check,
    explains=("no-update", "stalled", "underfitting", "learning-rate-too-low"),
    instrument="non-finite",
)
