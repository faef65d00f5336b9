"""The instrument of every quantity that has none of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cockpit.instruments.instrument import Readable
from cockpit.instruments.panel import Array, Color, Group, Heat, Mark, Panel, Scale
from cockpit.instruments.reading import Curve, latest, trend

__all__ = ["panel"]

COLORS: tuple[Color, ...] = ("blue", "orange", "green", "vermillion", "purple", "sky")


@dataclass(frozen=True)
class Words:
    """What is known about a quantity: where it belongs and how it is read."""

    group: Group
    how_to_read: str


KNOWN = {
    "HessMaxEV": Words(
        "CURVATURE", "Largest curvature of the loss; plain SGD is unstable once it exceeds 2/η."
    ),
    "PreconditionedSharpness": Words(
        "CURVATURE", "Sharpness as the optimizer feels it; above the stability bound steps diverge."
    ),
    "HessTrace": Words(
        "CURVATURE", "Sum of the curvature per parameter; falling values mean flatter surroundings."
    ),
    "DirectionalCurvature": Words(
        "CURVATURE", "Curvature along the gradient and along the update; negative along a ridge."
    ),
    "TICDiag": Words(
        "CURVATURE", "Noise relative to curvature; falling values go with better generalisation."
    ),
    "TICTrace": Words(
        "CURVATURE", "Noise relative to curvature; falling values go with better generalisation."
    ),
    "CABS": Words("GRADIENTS", "The batch size that the gradient noise asks for right now."),
    "EarlyStopping": Words(
        "GRADIENTS", "Above 0 the gradient is no more than noise, and training can stop."
    ),
    "MeanGSNR": Words(
        "GRADIENTS", "Signal-to-noise ratio of the gradient; higher means that samples agree."
    ),
    "GradientNoiseScale": Words(
        "GRADIENTS", "Batch sizes far above the noise scale waste samples, far below it waste time."
    ),
    "GradientAlignment": Words(
        "GRADIENTS", "How much individual gradients agree; a high negative share means conflict."
    ),
    "UpdateRatio": Words(
        "STEP SIZE", "Update relative to the weights; about 0.001 is typical in a healthy layer."
    ),
    "LostUpdates": Words(
        "STEP SIZE", "Share of entries that rounding left unmoved; should be close to 0."
    ),
    "AdamStaleness": Words(
        "STEP SIZE", "Gradient against Adam's memory of it; far above 1 the memory is stale."
    ),
    "ActivationStats": Words(
        "ACTIVATIONS", "Statistics per module; rows that change abruptly deserve a look."
    ),
}
HYPERPARAMETERS = re.compile(
    r"momentum|weight_decay|batch_size|learning_rate|dropout|(^|_)lr($|_)|beta"
)


def panel(run: Readable, quantity: str) -> Panel | None:
    """Return lines with a moving average, or a heat map where there are many values.

    Args:
        run: The run.
        quantity: Name of a quantity, or of a metric that the user logged.

    Returns:
        The panel, or `None` when the quantity has no scalars.
    """
    words = KNOWN.get(quantity) or Words(_group(quantity), "")
    if run.scalars(quantity).empty:
        return None
    read = run.series(quantity)
    frame = (read.to_frame() if isinstance(read, pd.Series) else read).select_dtypes("number")
    curves = {
        str(part): Curve(_steps(column), column.to_numpy(float)) for part, column in frame.items()
    }
    if not curves or frame.empty:
        return None
    if len(curves) == 1 or "" in curves:
        own = curves.get("") or next(iter(curves.values()))
        return _lines(quantity, words, trend(own, "moving average"), latest(own.values))
    if len(curves) <= 3 and not set(curves) <= set(run.parameters):
        pairs = zip(COLORS, curves.items(), strict=False)
        lines = [mark for color, (part, data) in pairs for mark in trend(data, part, color)]
        return _lines(quantity, words, tuple(lines), "")
    how = words.how_to_read or "Each row is one value; rows that differ or change stand out."
    values = frame.to_numpy(float).T
    heat = Heat(
        _steps(frame),
        values,
        "value",
        names=tuple(curves),
        scale="log" if _scale([values]) == "log" else "linear",
    )
    return Panel(_title(quantity), words.group, how, (heat,))


def _steps(frame: pd.Series | pd.DataFrame) -> Array:
    return frame.index.to_numpy(float)


def _lines(quantity: str, words: Words, marks: tuple[Mark, ...], headline: str) -> Panel:
    how = words.how_to_read or "Faint: every tracked step; strong: the moving average."
    scale = _scale([y for mark in marks if (y := getattr(mark, "y", None)) is not None])
    return Panel(_title(quantity), words.group, how, marks, scale=scale, headline=headline)


def _scale(values: list[Array]) -> Scale:
    """Return a logarithmic scale for values over two decades, symlog for both signs."""
    joined = np.concatenate([np.ravel(v) for v in values])
    size = np.abs(joined[np.isfinite(joined) & (joined != 0)])
    if not size.size or size.max() < 100 * np.quantile(size, 0.02):
        return "linear"
    return "symlog" if (joined < 0).any() else "log"


def _group(quantity: str) -> Group:
    if HYPERPARAMETERS.search(quantity):
        return "HYPERPARAMETERS"
    return "PERFORMANCE" if quantity.islower() else "GRADIENTS"


def _title(quantity: str) -> str:
    """Return a metric's name as words; the name of a quantity stays what it is."""
    return quantity.replace("_", " ").capitalize() if quantity.islower() else quantity
