"""Which curve stands for a quantity where there is room for one only."""

from __future__ import annotations

import re

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.reading import curve, table

__all__ = ["trend_of"]

PARTS = {
    "CriticalSharpness": "",
    "DirectionalCurvature": "gradient",
    "GradientAlignment": "mean_cosine",
    "GradientNoiseScale": "noise_scale",
    "HessianSpectrum": "largest",
    "NonFinite": "modules",
    "PreconditionedSharpness": "sharpness",
}
"""The part that is read of a quantity with several."""


def trend_of(run: Readable, quantity: str) -> np.ndarray:
    """Return the curve of a quantity, `[n]`: its value, or the norm over all parameters.

    It is empty for what no single curve stands for, such as a histogram.
    """
    kind = re.sub(r"-\d+$", "", quantity)  # the second of its kind is called "NormTest-2"
    data = curve(run, quantity, PARTS.get(kind, ""))
    if data is None:
        of_parameters = table(run, quantity)
        return np.zeros(0) if of_parameters is None else of_parameters.total.values
    if kind == "Time" and len(data.values) > 1:
        return np.diff(data.values) / np.diff(data.steps)  # a clock: what counts is its pace
    return data.values
