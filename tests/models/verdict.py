"""Judges what a cockpit said of a training: a cell for every quantity, and why there is no value, if so."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from models.brute import Twin
from models.study import EVERY_PARAMETER, ROWS, Keep, Study
from models.zoo import Specimen, build

from cockpit import Cockpit, CockpitWarning
from cockpit.engine.curvature import diagonal

EXACT, APPROXIMATE, PARTIAL, REFUSED, WRONG = "exact", "approximate", "partial", "refused", "wrong"


@dataclass(frozen=True)
class Cell:
    """What came out for one quantity of one model.

    Args:
        outcome: One of the constants above.
        note: How it is approximate, why it is refused, or what is wrong.
    """

    outcome: str
    note: str = ""


HOW = {
    "CriticalSharpness": (
        "from 8 evaluations of the loss along the update: between a point where this is lower than at the "
        "start and one where it is higher, which are logged with it"
    ),
    "HessianSpectrum": (
        "stochastic Lanczos quadrature: a density of mass 1 whose ends are within 2 % of the spectrum's"
    ),
    "HessTrace": "one draw of the sampled GGN a step, whose mean over draws is within its standard error",
    "TICDiag": "exact but for the sampled GGN's diagonal that it is divided by",
    "TICTrace": "exact but for the sampled GGN's trace that it is divided by",
}
"""In what sense a quantity is approximate."""

SECOND_DERIVATIVES = ("DirectionalCurvature", "HessMaxEV", "PreconditionedSharpness")
SPACED = "of a parameter with more than 4096 elements: equal to brute force on 4096 or less, evenly spaced"
DIFFERENCES = "the model has no second derivative in PyTorch: differences of its gradient"


def close(actual: Any, expected: Any, tolerance: float, rounding: float) -> bool:
    """Compare numbers, arrays, and lists and dictionaries of them."""
    if isinstance(expected, dict):
        pairs = [(actual.get(key), value) for key, value in expected.items()]
        return set(actual) == set(expected) and all(
            close(a, e, tolerance, rounding) for a, e in pairs
        )
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(
            close(a, e, tolerance, rounding) for a, e in zip(actual, expected, strict=True)
        )
    actual, expected = np.asarray(actual), np.asarray(expected)
    return actual.shape == expected.shape and np.allclose(
        actual, expected, tolerance, rounding, equal_nan=True
    )


def agrees(row: str, actual: Any, expected: Any, specimen: Specimen) -> bool:
    """Whether a value is what it should be."""
    tolerance = specimen.tolerance
    if row == "Time":
        return expected[0] <= actual <= expected[1]
    if row == EVERY_PARAMETER:
        total = sum(float(norms.sum()) for norms in expected.values())
        return close(actual, expected, tolerance, tolerance**2 * total)
    if row in ("GradHist1d", "GradHist2d"):
        return bool((np.asarray(actual["hist"]) == np.asarray(expected)).all())
    if row == "CriticalSharpness":
        (low, high), place = actual["bracket"], 2 / (actual["value"] * specimen.learning_rate)
        return low <= place <= high and not expected(low) and expected(high)
    if row == "KroneckerSpectrum":
        return spectra_agree(actual, expected, max(tolerance, 1e-5))
    if row == "HessianSpectrum":
        grid, density = np.asarray(actual["eigenvalues"]), np.asarray(actual["density"])
        ends = {key: actual[key] for key in ("smallest", "largest")}
        extent = expected["largest"] - expected["smallest"]
        mass = density.sum() * (grid[1] - grid[0])
        return close(ends, expected, 0, 0.02 * extent) and bool(abs(mass - 1) < 0.02)
    if row in SECOND_DERIVATIVES:
        tolerance = max(tolerance, 1e-5 if specimen.smooth else 1e-3)
    if row == "NonFinite":  # samples are told apart where they come first
        expected = {key: value for key, value in expected.items() if key in {"modules", *actual}}
    if row in ("ActivationStats", "AttentionStats"):
        return close(actual, expected, max(tolerance, 1e-5), 1e-7)
    return close(actual, expected, tolerance, 1e-14)


def spectra_agree(actual: Any, expected: Any, tolerance: float) -> bool:
    """Compare the statistics of spectra, but for blocks that vanish up to rounding, as that of a key's bias."""
    if set(actual) != set(expected) or len(actual["trace"]) != len(expected["trace"]):
        return False
    traces = np.array(expected["trace"])
    there = traces > 1e-12 * traces.max()
    vanish = np.array(actual["trace"])[~there] <= 1e-12 * traces.max()
    return bool(vanish.all()) and all(
        close(np.array(actual[key])[there], np.array(expected[key])[there], tolerance, 0)
        for key in expected
    )


def cell(study: Study, row: str) -> Cell:
    """Judge one quantity by all steps that it was expected at."""
    reasons = [message for subject, message in study.events("not-checked") if subject == row]
    refused, last = False, study.specimen.steps - 1
    for step in range(study.specimen.steps):
        if (step, row) not in study.expected:
            continue
        expected, actual = study.expected[step, row], study.output[step].get(row)
        if actual is None and (reasons or expected is None):
            refused |= step < last or row not in study.looking_ahead
        elif actual is None:
            return Cell(WRONG, f"step {step}: neither a value nor a reason")
        elif expected is None:
            return Cell(WRONG, f"step {step}: got {actual}, where nothing can be known")
        elif not agrees(row, actual, expected, study.specimen):
            return Cell(WRONG, f"step {step}: got {actual}, expected {expected}")
    if refused:
        return Cell(REFUSED, reasons[0] if reasons else "")
    missing = study.missing(row)
    if missing:
        return Cell(PARTIAL, f"without {', '.join(missing)}")
    if row in HOW:
        return Cell(APPROXIMATE, HOW[row])
    if row in SECOND_DERIVATIVES and not study.specimen.smooth:
        return Cell(APPROXIMATE, DIFFERENCES)
    if row == "Shrinkage" and any(p.numel() > 4096 for p in study.start.values()):
        return Cell(APPROXIMATE, SPACED)
    return Cell(EXACT)


def unbiased(name: str) -> bool:
    """Whether the mean of several draws of the sampled GGN's traces is the exact one, within its error."""
    specimen, diagonals = build(name), Keep(need=diagonal("auto"))
    torch.manual_seed(2)
    batch, state = specimen.draw(), torch.get_rng_state()
    traces = Twin(name, specimen.model, batch, state).ggn().traces
    watch = Cockpit(specimen.model, [diagonals])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CockpitWarning)  # of parameters that it goes without
        for step in range(specimen.draws):
            torch.set_rng_state(state)
            loss, z = specimen.call(specimen.model, batch)
            losses = specimen.losses(z, batch)
            loss = losses.mean() if loss is None else loss
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
        watch.close()
    kept = list(diagonals.kept.values())
    drawn = torch.tensor([[values.sum() for values in of_step.values()] for of_step in kept])
    expected = torch.tensor([trace for name, trace in traces.items() if name in kept[0]])
    difference = (drawn.mean(0) - expected).double()
    error, of_total = (x.std(0) / specimen.draws**0.5 for x in (drawn, drawn.sum(1)))
    of_each = difference.abs() <= 6 * error + 1e-6 * expected.sum()
    return bool(of_each.all()) and bool(difference.sum().abs() <= 4 * of_total)


@cache
def cells(name: str) -> dict[str, Cell]:
    """Return the column of a model."""
    study = Study(name)
    return {row: cell(study, row) for row in ROWS}
