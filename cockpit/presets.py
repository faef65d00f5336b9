"""Sets of quantities by label."""

from __future__ import annotations

from collections.abc import Callable

from cockpit import quantities
from cockpit.errors import InvalidArgument
from cockpit.quantities import Quantity
from cockpit.quantities.wiring import Wiring
from cockpit.schedules import default

ECONOMY: tuple[type[Quantity], ...] = (
    quantities.Alpha,
    quantities.Distance,
    quantities.GradHist1d,
    quantities.GradNorm,
    quantities.InnerTest,
    quantities.Loss,
    quantities.NormTest,
    quantities.OrthoTest,
    quantities.UpdateSize,
)

BUSINESS: tuple[type[Quantity], ...] = (*ECONOMY, quantities.TICDiag, quantities.HessTrace)

FULL: tuple[type[Quantity], ...] = (*BUSINESS, quantities.HessMaxEV, quantities.GradHist2d)

HEALTH: tuple[type[Quantity], ...] = (
    quantities.Loss,
    quantities.GradNorm,
    quantities.UpdateRatio,
    quantities.NormTest,
    quantities.GradientNoiseScale,
    quantities.ActivationStats,
    quantities.NonFinite,
    quantities.LostUpdates,
    quantities.Alpha,
    Wiring,
)
"""What the doctor reads."""

PRESETS: dict[str, tuple[type[Quantity], ...]] = {
    "economy": ECONOMY,
    "business": BUSINESS,
    "full": FULL,
    "health": HEALTH,
}


def configuration(
    label: str, track_schedule: Callable[[int], bool] | None = None, verbose: bool = False
) -> list[Quantity]:
    """Return a set of quantities with their default settings.

    Args:
        label: ``"economy"``: what can be left on in every training. ``"business"``: and curvature
            from one more backward pass. ``"full"``: and the largest eigenvalue of the Hessian, from
            several. ``"health"``: what the doctor reads, ``Cockpit(..., doctor=True)``.
        track_schedule: On which steps they are tracked; every step unless told otherwise.
        verbose: Whether they print their values.

    Raises:
        InvalidArgument: if there is no set of that label.
    """
    schedule = default() if track_schedule is None else track_schedule
    return [kind(schedule, verbose) for kind in quantities_cls_for_configuration(label)]


def quantities_cls_for_configuration(label: str) -> list[type[Quantity]]:
    """Return the classes of a set of quantities.

    Raises:
        InvalidArgument: if there is no set of that label.
    """
    if label not in PRESETS:
        raise InvalidArgument(
            f"There is no configuration {label!r}. Choose from {', '.join(map(repr, PRESETS))}."
        )
    return list(PRESETS[label])
