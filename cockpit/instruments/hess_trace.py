"""The trace of the curvature, over all parameters."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.curvature import matrix_of
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import Curve, medians, number, scale_of, table, trend

__all__ = ["panel"]


@instrument("HessTrace", name="hess-trace")
def panel(run: Readable) -> Panel | None:
    """Return the sum of the traces with its moving average."""
    traces = table(run, "HessTrace")
    if traces is None:
        return None
    total, now = Curve(traces.steps, _sum(traces.values)), medians(traces)
    return Panel(
        title=f"Trace of the {matrix_of(run, 'HessTrace')}",
        group="CURVATURE",
        how_to_read="The mean curvature times the number of weights; it falls where the loss is "
        "getting flatter.",
        marks=trend(total, "moving average", "purple"),
        y_label="trace",
        scale="log" if (total.values > 0).all() else scale_of(total.values),
        headline=f"~{number(float(np.nansum(now)))}" if np.isfinite(now).any() else "",
    )


def _sum(values: np.ndarray) -> np.ndarray:
    """Sum over the parameters that a step has: `[parameters, n]` to `[n]`."""
    missing = np.isnan(values).all(0)
    with np.errstate(invalid="ignore"):  # infinities of both signs have no sum
        return np.where(missing, np.nan, np.nansum(values, 0))
