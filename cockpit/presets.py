"""Sets of quantities by label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cockpit import quantities
from cockpit.errors import InvalidArgument
from cockpit.quantities import Quantity
from cockpit.quantities.clipping import Clipping
from cockpit.quantities.loss_peaks import LossPeaks
from cockpit.quantities.targets import Targets
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
    quantities.GradientNoiseScale,
    quantities.ActivationStats,
    quantities.AttentionStats,
    quantities.NonFinite,
    quantities.LostUpdates,
    quantities.UpdateSlopes,
    quantities.Shrinkage,
    LossPeaks,
    Clipping,
    Targets,
    Wiring,
)
"""What the doctor reads: tracked at every tenth step, it is meant to take a tenth of the training's time at most."""

PRESETS: dict[str, tuple[type[Quantity], ...]] = {
    "economy": ECONOMY,
    "business": BUSINESS,
    "full": FULL,
    "health": HEALTH,
}

SETTINGS: dict[str, dict[type[Quantity], dict[str, Any]]] = {
    "health": {quantities.GradientNoiseScale: {"samples": 16}},
}
"""What is not as it is by default, by label."""


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
    kinds, settings = quantities_cls_for_configuration(label), SETTINGS.get(label, {})
    return [kind(schedule, verbose, **settings.get(kind, {})) for kind in kinds]


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
