"""The share of zeros in the outputs of the modules."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["SOME", "panel"]

SOME = 0.01
"""Share up to which zeros are there by chance, as they may be in the output of any layer."""


@instrument("ActivationStats", name="activation-zeros")
def panel(run: Readable) -> Panel | None:
    """Return the share as a heat map, module × step, of the modules that ever return zeros."""
    shares = table(run, "ActivationStats", "zeros")
    if shares is None:
        return None
    some = np.fmax.reduce(shares.values, axis=1) > SOME
    if not some.any():
        some[:] = True
    values = shares.values[some]
    names = tuple(name for name, has in zip(shares.names, some, strict=True) if has)
    return Panel(
        title="Zeros in the activations",
        group="ACTIVATIONS",
        how_to_read="About a half is usual after a ReLU; close to 1 a layer is dying, often by too "
        "large a step.",
        marks=(Heat(shares.steps, values, "share", names=names, limits=(0.0, 1.0)),),
    )
