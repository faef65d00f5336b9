"""The share of each parameter that rounding keeps from changing."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import number, table

__all__ = ["panel"]


@instrument("LostUpdates", name="lost-updates")
def panel(run: Readable) -> Panel | None:
    """Return the share as a heat map, parameter × step."""
    shares = table(run, "LostUpdates")
    if shares is None:
        return None
    last = shares.values[np.isfinite(shares.values[:, -1]), -1]
    return Panel(
        title="Lost updates",
        group="STEP SIZE",
        how_to_read="0 is right; in half precision, tens of per cent mean that updates are smaller "
        "than what rounding keeps.",
        marks=(Heat(shares.steps, shares.values, "share", names=shares.names, limits=(0.0, 1.0)),),
        headline=f"at most {number(100 * float(last.max()))} %" if last.size else "",
    )
