"""Gradients, and the individual gradients' noise."""

from __future__ import annotations

import math

import numpy as np

from cockpit.instruments import Readable
from cockpit.instruments.gradient_noise_scale import smooth_scale
from cockpit.instruments.per_sample_outliers import OUTLIER
from cockpit.instruments.reading import curve, newest, number, stacked, table
from cockpit.summary.reading import (
    RECENT_LEAST,
    Bands,
    Line,
    Reader,
    listed,
    median_in,
    medians,
    names_of,
    percent,
    recent_of,
    total,
)

__all__ = ["READERS"]

NORM_TEST: Bands = (
    (0.5, "the gradient is well known: the batch is large enough"),
    (1.0, "the gradient is roughly known: its noise is nearly as large as itself"),
    (math.inf, "noise exceeds the gradient: a larger batch would give a better direction"),
)
"""The standard error of the mini-batch gradient relative to its norm: up to one half, two of them fit in."""

INNER_TEST: Bands = (
    (0.5, "the mini-batch gradient points downhill with high probability"),
    (1.0, "the mini-batch gradient probably points downhill"),
    (math.inf, "the mini-batch gradient may well point uphill: a larger batch would help"),
)
"""The same, along the mini-batch gradient."""

ORTHO_TEST: Bands = (
    (0.5, "the direction of the gradient is well known"),
    (1.0, "the direction of the gradient is roughly known"),
    (math.inf, "most of the direction is noise, as is common with many parameters"),
)
"""The same, orthogonal to the mini-batch gradient."""

OUTERMOST_MANY = 0.01
"""From this share of values in the outermost bins on, the scale of the inputs is in question."""

RATIO_LARGE = 1000.0
"""From this ratio of gradient norms on, parameters do not learn at the same pace."""

EARLY_STOPPING: Bands = (
    (0.0, "the gradient stands out from its noise: training makes progress"),
    (math.inf, "the gradient cannot be told from its noise: stopping is an option"),
)
"""One minus the gradient's square in units of its variance."""

OTHER_SIZE, FAR = 2.0, 10.0
"""From these ratios on, a suggested batch size is another one than that in use, and far from it."""

CONFLICT = 0.55
"""A share of negative cosines above one half, by more than the noise."""


def _grad_norm(run: Readable, name: str) -> Line | None:
    data = table(run, name)
    if data is None:
        return None
    value, last = total(data), data.values[:, -1]
    broken = names_of(data, ~np.isfinite(last))
    if broken:
        return value, f"not finite: {broken}"
    unmoved = names_of(data, last == 0)
    if unmoved:
        return value, f"no gradient reaches {unmoved}"
    norms = medians(data)
    low, high = int(np.nanargmin(norms)), int(np.nanargmax(norms))
    spread = (
        f"from {number(float(norms[low]))} in {data.names[low]} "
        f"to {number(float(norms[high]))} in {data.names[high]}"
    )
    if norms[high] > RATIO_LARGE * norms[low]:
        return value, f"{spread}: these do not learn at the same pace"
    return value, spread if low != high else f"the norm of {data.names[low]}"


def _histogram(run: Readable, name: str) -> Line | None:
    whole, edges = run.arrays(name, "hist"), run.arrays(name, "edges")
    if whole.empty or edges.empty:
        return None
    counts, bounds = whole["value"].iloc[-1], edges["value"].iloc[-1]
    share = float(counts[0] + counts[-1]) / max(1, int(counts.sum()))
    value = percent(share)
    nonfinite = curve(run, name, "nonfinite")
    if nonfinite is not None and nonfinite.values[-1] > 0:
        return value, f"{number(float(nonfinite.values[-1]))} elements of gradients are not finite"
    dead = _without_gradient(run, name, bounds)
    if dead:
        return value, f"no gradient: all elements of {dead} are in the bin of zero"
    judged = "many: check the scale of the inputs" if share > OUTERMOST_MANY else "few, as usual"
    return value, f"of the individual gradients' elements are in the outermost bins: {judged}"


def _without_gradient(run: Readable, name: str, bounds: np.ndarray) -> str:
    """Return the parameters whose elements all lie in one bin, and that with zero in it."""
    slack = 1e-6 * (bounds[-1] - bounds[0])  # zero may be the edge of two bins, up to rounding
    of_zero = np.flatnonzero((bounds[:-1] <= slack) & (bounds[1:] >= -slack))
    every = run.arrays(name)
    last = every[every["step"] == every["step"].max()]
    counts = {row.part.removeprefix("hist/"): row.value for row in last.itertuples()}
    peaks = {p: counts[p][of_zero].max(initial=0) for p in run.parameters if p in counts}
    return listed([p for p, peak in peaks.items() if peak and peak == counts[p].sum()])


def _cabs(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    recent = np.zeros(0) if data is None else recent_of(data.values)
    if not recent.size:
        return None
    size = float(np.median(recent))
    return f"~{number(size)}", f"suggested batch size: {_against_used(run, size)}"


def _against_used(run: Readable, size: float) -> str:
    """Return how a suggested batch size compares with the one in use, and what follows."""
    logged = curve(run, "batch_size")
    used = np.nan if logged is None else float(logged.values[-1])
    if not used > 0:
        return "if it is far above the one in use, use larger batches or a smaller rate"
    ratio = size / used
    far = "far " if not 1 / FAR < ratio < FAR else ""
    if ratio >= OTHER_SIZE:
        return f"{far}above the {number(used)} in use, use larger batches or a smaller rate"
    if ratio <= 1 / OTHER_SIZE:
        return f"{far}below the {number(used)} in use, smaller batches would do at this rate"
    return f"about the {number(used)} in use"


def _signal_to_noise(run: Readable, name: str) -> Line | None:
    data = curve(run, name)
    recent = np.zeros(0) if data is None else recent_of(data.values)
    if data is None or not recent.size:
        return None
    now, start = float(np.median(recent)), float(data.values[0])
    if len(data.values) < 2 * RECENT_LEAST:
        return f"~{number(now)}", "signal to noise of an element of the gradient; falling is usual"
    change = "falling, as is usual" if now < start else "not falling"
    return f"~{number(now)}", f"{change}; it was {number(start)} at step {data.steps[0]:.0f}"


def _noise_scale(run: Readable, name: str) -> Line | None:
    trace, signal = curve(run, name, "trace"), curve(run, name, "squared_norm")
    if trace is None or signal is None or len(trace.steps) != len(signal.steps):
        return None
    scale = float(smooth_scale(trace.values, signal.values)[-1])
    if not math.isfinite(scale):
        return number(scale), "not known: the noise hides the gradient, look at longer averages"
    return (
        f"~{number(scale)}",
        "a batch much smaller than this wastes steps, a much larger one samples",
    )


def _alignment(run: Readable, name: str) -> Line | None:
    cosine, negative = curve(run, name, "mean_cosine"), curve(run, name, "negative_share")
    if cosine is None or negative is None:
        return None
    cosines, shares = recent_of(cosine.values), recent_of(negative.values)
    if not cosines.size or not shares.size:
        return number(float(cosine.values[-1])), "not defined: no two samples with a gradient"
    share = float(np.median(shares))
    pairs = f"{percent(share)} of the pairs of samples have a negative cosine"
    judged = ": they work against each other" if share > CONFLICT else ""
    return f"~{number(float(np.median(cosines)))}", f"mean cosine; {pairs}{judged}"


def _outliers(run: Readable, name: str) -> Line | None:
    scores, indices = stacked(run, name, "scores"), newest(run, name)
    if scores is None or indices is None:
        return None
    recent = scores[1][-max(RECENT_LEAST, len(scores[0]) // 10) :, 0]
    recent = recent[~np.isnan(recent)]
    if not recent.size:
        return None
    value = f"~{number(float(np.median(recent)))}"
    last = scores[1][-1]
    samples = indices[1].get("indices", np.zeros(0))[: len(last)].astype(int).tolist()
    far = [str(i) for i, score in zip(samples, last.tolist(), strict=False) if score > OUTLIER]
    if far:
        return value, f"largest score of a batch; outliers in the last one: samples {listed(far)}"
    usual = float(np.median(recent)) <= OUTLIER
    return value, f"largest score of a batch{', as usual' if usual else ': outliers are common'}"


def _joint_histogram(run: Readable, name: str) -> Line | None:
    found = newest(run, name)
    counts = None if found is None else found[1].get("hist")
    if counts is None or counts.ndim != 2:
        return None
    inside = float(counts[1:-1, 1:-1].sum())
    share = 1 - inside / max(1.0, float(counts.sum()))
    nonfinite = curve(run, name, "nonfinite")
    if nonfinite is not None and nonfinite.values[-1] > 0:
        return percent(share), f"{number(float(nonfinite.values[-1]))} pairs are not finite"
    judged = "many: adapt the range" if share > OUTERMOST_MANY else "few, as usual"
    return percent(share), f"of the pairs of gradient and parameter are in outermost bins: {judged}"


READERS: dict[str, Reader] = {
    "CABS": _cabs,
    "EarlyStopping": median_in(EARLY_STOPPING, "not defined: batches of one sample"),
    "GradHist1d": _histogram,
    "GradHist2d": _joint_histogram,
    "GradNorm": _grad_norm,
    "GradientAlignment": _alignment,
    "GradientNoiseScale": _noise_scale,
    "InnerTest": median_in(INNER_TEST, "not defined: batches of one sample, or no gradient"),
    "MeanGSNR": _signal_to_noise,
    "NormTest": median_in(NORM_TEST, "not defined: batches of one sample, or no gradient"),
    "OrthoTest": median_in(ORTHO_TEST, "not defined: batches of one sample, or no gradient"),
    "PerSampleOutliers": _outliers,
}
