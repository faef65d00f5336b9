"""Every quantity against a formula of a few lines on gradients by brute force, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from training import MODELS, OPTIMIZERS, Truth, train

from cockpit import quantities
from cockpit.quantities import GradHist1d, Quantity

TOLERANCE = 1e-6
BINS = (
    99  # an odd number: no edge at 0, on whose either side rounding would put gradients that vanish
)


def alpha(s: Truth) -> float | None:
    """Weighted least squares with numpy, on the four observations."""
    if s.next is None:
        return None
    d = s.d.numpy()
    tau = np.linalg.norm(d)
    f = [np.array([t.losses.numpy(), t.G.numpy() @ d / tau]) for t in (s, s.next)]  # values, slopes
    rows = np.array([[1, 0, 0], [1, tau, tau**2], [0, 1, 0], [0, 1, 2 * tau]])
    observed = np.array([f[0][0].mean(), f[1][0].mean(), f[0][1].mean(), f[1][1].mean()])
    variance = np.array([v.var(ddof=1) for v in (f[0][0], f[1][0], f[0][1], f[1][1])])
    weight = 1 / np.sqrt(variance)
    _, w1, w2 = np.linalg.lstsq(rows * weight[:, None], observed * weight, rcond=None)[0]
    return -1.0 if w2 <= 0 else 2 * tau / (-w1 / w2) - 1


def histogram(values: torch.Tensor, bins: int, low: float, high: float) -> list[int]:
    edges = np.linspace(low, high, bins + 1)
    return np.histogram(values.numpy().clip(low, high), edges)[0].tolist()


REFERENCE: dict[str, Callable[[Truth], Any]] = {
    "Alpha": alpha,
    "Distance": lambda s: s.per_parameter(lambda p: (s.before[p] - s.start[p]).norm()),
    "GradHist1d": lambda s: histogram(s.G, BINS, -2, 2),
    "GradNorm": lambda s: s.per_parameter(lambda p: s.grad[p].norm()),
    "InnerTest": lambda s: (
        (((s.G @ s.g) ** 2).sum() - s.n * (s.g @ s.g) ** 2) / ((s.n - 1) * s.n * (s.g @ s.g) ** 2)
    ).sqrt(),
    "Loss": lambda s: s.loss,
    "NormTest": lambda s: (
        ((s.G**2).sum() - s.n * s.g @ s.g) / ((s.n - 1) * s.n * s.g @ s.g)
    ).sqrt(),
    "OrthoTest": lambda s: (
        ((s.G**2).sum() - ((s.G @ s.g) ** 2).sum() / (s.g @ s.g)) / ((s.n - 1) * s.n * s.g @ s.g)
    ).sqrt(),
    "Parameters": lambda s: [s.before[p].tolist() for p in s.names],
    "UpdateSize": lambda s: s.per_parameter(lambda p: (s.after[p] - s.before[p]).norm()),
}
"""From the truth of a step to the value; None where there is none."""

UNPREDICTABLE = {"Time"}
"""Quantities whose value no formula gives; they have a test of their own."""

PUBLIC = [
    name
    for name in quantities.__all__
    if isinstance(kind := getattr(quantities, name), type)
    and issubclass(kind, Quantity)
    and kind is not Quantity
]


def settings(name: str) -> Quantity:
    """Return the quantity with its sampling off: the references are exact."""
    kind = getattr(quantities, name)
    return kind(bins=BINS, samples=None) if kind is GradHist1d else kind()


def assert_equals(actual: Any, expected: Any, name: str) -> None:
    if name == "GradHist1d":
        assert actual["hist"].tolist() == expected
        np.testing.assert_allclose(actual["edges"], np.linspace(-2, 2, BINS + 1))
        return
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=0)
    else:
        np.testing.assert_allclose(actual, float(expected), rtol=TOLERANCE, atol=0)


@cache
def together(
    kind: str, reduction: str, optimizer: str
) -> tuple[list[Truth], dict[int, dict[str, Any]]]:
    everything = [settings(name) for name in PUBLIC]
    return train(kind, everything, optimizer=optimizer, reduction=reduction)[:2]


@pytest.mark.parametrize("name", sorted(REFERENCE))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", MODELS)
def test_reference(kind: str, reduction: str, optimizer: str, name: str) -> None:
    truths, output = together(kind, reduction, optimizer)
    compared = 0
    for step, truth in enumerate(truths):
        expected = REFERENCE[name](truth)
        if expected is None:
            assert name not in output[step]
        else:
            assert_equals(output[step][name], expected, name)
            compared += 1
    assert compared >= len(truths) - 1


@pytest.mark.parametrize("name", sorted(REFERENCE))
@pytest.mark.parametrize("kind", MODELS)
def test_reference_alone(kind: str, name: str) -> None:
    truths, output, _ = train(kind, [settings(name)], optimizer="momentum", steps=3)
    for step, truth in enumerate(truths):
        expected = REFERENCE[name](truth)
        if expected is not None:
            assert_equals(output[step][name], expected, name)


def test_every_quantity_has_a_reference() -> None:
    assert set(PUBLIC) == set(REFERENCE) | UNPREDICTABLE


@pytest.mark.parametrize("name", PUBLIC)
def test_every_quantity_teaches(name: str) -> None:
    text = getattr(quantities, name).__doc__
    for part in ("Formula:", "How to read it:", "Source:"):
        assert part in text, f"the docstring of {name} has no {part!r}"


def test_norm_test_is_the_hypotenuse() -> None:
    _, output = together("mlp", "mean", "sgd")
    for values in output.values():
        inner, ortho = values["InnerTest"], values["OrthoTest"]
        assert values["NormTest"] == pytest.approx((inner**2 + ortho**2) ** 0.5, rel=1e-9)
