"""What others publish: rules with fixed thresholds, and a look at the loss.

Each is a few lines made from the description of the original; none of their code is used. They read the
same runs at the same tracked steps as the doctor, and the loss at every step.

Sources:
    SageMaker Debugger: Amazon SageMaker AI Developer Guide, "List of Debugger built-in rules", with the
    default values of the parameters that it gives.
    Lightning: documentation of ``lightning.pytorch.callbacks.SpikeDetection`` with its default arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cockpit.doctor import Curve, Record

QUANTITY = "BaselineStatistics"

VANISHED = 1e-7
LARGE_RATIO, SMALL_RATIO = 10.0, 1e-8
INACTIVE_LAYER = 0.5
LOSS_STEPS, LOSS_DECREASE = 10, 0.001
UNCHANGED_STEPS = 3
SPIKE_WINDOW, SPIKE_TIMES = 10, 2.0
SMOOTHED = 5
"""Losses of which a plain look at the curve takes the mean: single ones are noisy."""


@dataclass(frozen=True)
class Alarm:
    """What a rule of a baseline says.

    Args:
        rule: Its name.
        step: When.
        subjects: The parameters or modules concerned.
    """

    rule: str
    step: int
    subjects: tuple[str, ...] = ()


Check = Callable[[Record, Sequence[float]], Alarm | None]
"""Looks at what was tracked, and at the loss of every step."""


def first_hit(
    rule: str, curves: Mapping[str, Curve], bad: Callable[[np.ndarray], np.ndarray]
) -> Alarm | None:
    """Return the first step at which a value is bad, and what is bad then."""
    hits = {name: curve.steps[bad(curve.values)] for name, curve in curves.items()}
    hits = {name: steps for name, steps in hits.items() if len(steps)}
    if not hits:
        return None
    step = min(int(steps[0]) for steps in hits.values())
    return Alarm(rule, step, tuple(name for name, steps in hits.items() if steps[0] == step))


def vanishing_gradient(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if the mean of |g| of a parameter is below 1e-7."""
    curves = run.curves(QUANTITY, "gradient")
    return first_hit("VanishingGradient", curves, lambda mean: mean < VANISHED)


def exploding_tensor(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if a gradient has an entry that is not finite."""
    curves = run.curves(QUANTITY, "gradient")
    return first_hit("ExplodingTensor", curves, lambda mean: ~np.isfinite(mean))


def weight_update_ratio(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if updates are more than 10 times as large as the weights, or less than 1e-8 times."""
    curves = run.curves(QUANTITY, "ratio")
    return first_hit(
        "WeightUpdateRatio", curves, lambda ratio: (ratio > LARGE_RATIO) | (ratio < SMALL_RATIO)
    )


def dead_relu(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if more than half of the units of a ReLU are active on less than 1 % of the values."""
    return _inactive(run, "DeadRelu", "dead")


def saturated_activation(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if more than half of the units of a tanh or sigmoid are saturated on 99 % of the values."""
    return _inactive(run, "SaturatedActivation", "saturated")


def _inactive(run: Record, rule: str, key: str) -> Alarm | None:
    return first_hit(rule, run.curves(QUANTITY, key), lambda share: share > INACTIVE_LAYER)


def unchanged_tensor(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if a parameter stays the same, as ``numpy.allclose`` has it, at three tracked steps in turn."""
    return first_hit("UnchangedTensor", run.curves(QUANTITY, "unchanged"), _three_in_turn)


def _three_in_turn(same: np.ndarray) -> np.ndarray:
    found = np.zeros(len(same), bool)
    for last in range(UNCHANGED_STEPS - 1, len(same)):
        found[last] = (same[last - UNCHANGED_STEPS + 1 : last + 1] == 1).all()
    return found


def loss_not_decreasing(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if the loss is not lower by 0.1 % than ten steps before; looked at every ten steps."""
    for step in range(LOSS_STEPS, len(loss), LOSS_STEPS):
        before, now = loss[step - LOSS_STEPS], loss[step]
        if not before - now >= LOSS_DECREASE * abs(before):
            return Alarm("LossNotDecreasing", step)
    return None


def spike_detection(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if the loss is not finite, or has risen and is off the mean of the last ten by twice that."""
    for step in range(1, len(loss)):
        now, mean = loss[step], float(np.mean(loss[max(0, step - SPIKE_WINDOW) : step]))
        if not np.isfinite(now):
            return Alarm("SpikeDetection", step)
        if now > loss[step - 1] and abs(now - mean) >= SPIKE_TIMES * abs(mean):
            return Alarm("SpikeDetection", step)
    return None


def not_finite_or_above_start(run: Record, loss: Sequence[float]) -> Alarm | None:
    """Return an alarm if the loss is not finite, or the mean of the last five above the first one."""
    for step in range(len(loss)):
        if not np.isfinite(loss[step]):
            return Alarm("NonFiniteLoss", step)
        if step >= SMOOTHED and np.mean(loss[step - SMOOTHED + 1 : step + 1]) > loss[0]:
            return Alarm("LossAboveStart", step)
    return None


BASELINES: dict[str, tuple[Check, ...]] = {
    "SageMaker Debugger": (
        vanishing_gradient,
        exploding_tensor,
        weight_update_ratio,
        dead_relu,
        saturated_activation,
        loss_not_decreasing,
        unchanged_tensor,
    ),
    "Lightning SpikeDetection": (spike_detection,),
    "NaN or above its start": (not_finite_or_above_start,),
}
"""The rules by baseline."""


def alarms(name: str, run: Record, loss: Sequence[float]) -> list[Alarm]:
    """Return what a baseline says of a run, the earliest first."""
    found = [check(run, loss) for check in BASELINES[name]]
    return sorted((alarm for alarm in found if alarm), key=lambda alarm: alarm.step)
