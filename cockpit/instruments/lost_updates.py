"""The share of each parameter that rounding keeps from changing."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import medians, percent, table

__all__ = ["panel"]


@instrument("LostUpdates", name="lost-updates")
def panel(run: Readable) -> Panel | None:
    """Return the share as a heat map, parameter × step."""
    shares = table(run, "LostUpdates")
    if shares is None:
        return None
    now = medians(shares)
    return Panel(
        title="Lost updates",
        group="STEP SIZE",
        how_to_read="0 is right; in half precision, tens of per cent mean that updates are smaller "
        "than what rounding keeps.",
        marks=(
            Heat(
                shares.steps,
                100 * shares.values,
                "elements [%]",
                names=shares.names,
                limits=(0.0, 100.0),
            ),
        ),
        headline=f"~{percent(float(np.nanmax(now)))}" if np.isfinite(now).any() else "",
    )
