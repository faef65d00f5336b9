"""Every quantity against a formula of a few lines on gradients by brute force, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from math import ceil, gcd
from typing import Any

import numpy as np
import pytest
import torch
from training import MODELS, OPTIMIZERS, Outputs, Truth, train

from cockpit import CockpitWarning, quantities
from cockpit.quantities import GradHist1d, Quantity

TOLERANCE = 1e-6
BINS = (
    99  # an odd number: no edge at 0, on whose either side rounding would put gradients that vanish
)
BINS_2D = (39, 49)


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


def cosines(G: torch.Tensor) -> torch.Tensor:
    unit = G / G.norm(dim=1, keepdim=True)
    return (unit @ unit.T)[~torch.eye(len(G), dtype=torch.bool)]


def outliers(norms: np.ndarray, k: int) -> dict[str, list[float]]:
    deviation = norms - np.median(norms)
    scores = deviation / (1.4826 * np.median(abs(deviation)))
    largest = np.argsort(-scores)[:k]
    return {"indices": largest, "norms": norms[largest], "scores": scores[largest]}


def activations(outputs: Outputs) -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for kind, h in outputs.values():
        if kind == "Flatten":
            continue
        x, units = h.numpy().ravel(), h.movedim(1 if h.dim() == 4 else -1, 0).flatten(1)
        activity = units.abs().mean(1)
        of_one = {
            "mean": x.mean(),
            "std": x.std(ddof=0),
            "rms": (x**2).mean() ** 0.5,
            "kurtosis": ((x - x.mean()) ** 4).mean() / x.var() ** 2 - 3,
            "zeros": (x == 0).mean(),
            "dormant": (activity <= 0.025 * activity.mean()).double().mean(),
            "dead": (activity == 0).double().mean(),
        }
        if kind == "Tanh":
            of_one["saturated"] = (abs(x) > 0.95).mean()
        for key, value in of_one.items():
            rows.setdefault(key, []).append(float(value))
    return rows


def histogram(values: torch.Tensor, bins: int, low: float, high: float) -> list[int]:
    edges = np.linspace(low, high, bins + 1)
    return np.histogram(values.numpy().clip(low, high), edges)[0].tolist()


def attention(logits: torch.Tensor, weights: torch.Tensor) -> dict[str, list[Any]]:
    entropy = -(weights * weights.log()).sum(-1).mean(2).mean(0)
    return {
        "entropy": [entropy],
        "spread": [entropy.mean() / np.log(weights.shape[-1])],
        "largest_logit": [logits.abs().max()],
    }


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b / (a.norm() * b.norm())


def spaced(values: torch.Tensor) -> torch.Tensor:
    """Every k-th element, 4096 at most, with the smallest k that meets all columns."""
    steps = count(ceil(values.numel() / 4096))
    return values.flatten()[:: next(k for k in steps if gcd(k, *values.shape[-1:]) == 1)]


def along(grad: dict[str, torch.Tensor], s: Truth) -> torch.Tensor:
    """The slope along the update of a step, of some gradient."""
    return torch.cat([grad[p].flatten() for p in s.names]) @ s.d


REFERENCE: dict[str, Callable[[Truth], Any]] = {
    "ActivationStats": lambda s: activations(s.outputs),
    "Alpha": alpha,
    "AdamStaleness": lambda s: (
        s.adam
        and s.per_parameter(lambda p: (s.grad[p] ** 2 / s.adam[p].clamp(min=1e-16)).mean().sqrt())
    ),
    "AttentionStats": lambda s: attention(*s.attention["block.self_attn"]),
    "CABS": lambda s: s.lr * ((s.G**2).sum(0) - s.n * s.g**2).sum() / (s.n * s.losses.mean()),
    "Distance": lambda s: s.per_parameter(lambda p: (s.before[p] - s.start[p]).norm()),
    "EarlyStopping": lambda s: 1 - s.n * (s.g**2 / (s.G.var(0) + 1e-5)).mean(),
    "GradHist1d": lambda s: histogram(s.G, BINS, -2, 2),
    "GradHist2d": lambda s: np.histogram2d(
        s.G.numpy().clip(-1, 1).ravel(),
        np.tile(torch.cat([s.before[p].flatten() for p in s.names]).numpy().clip(-2, 2), s.n),
        [np.linspace(-1, 1, BINS_2D[0] + 1), np.linspace(-2, 2, BINS_2D[1] + 1)],
    )[0],
    "GradNorm": lambda s: s.per_parameter(lambda p: s.grad[p].norm()),
    "GradientAlignment": lambda s: {
        "mean_cosine": (c := cosines(s.G)).mean(),
        "negative_share": (c < 0).double().mean(),
    },
    "GradientNoiseScale": lambda s: {
        "squared_norm": (g2 := (s.n * s.g @ s.g - (s.G**2).sum() / s.n) / (s.n - 1)),
        "trace": (t := s.G.var(0).sum()),
        "noise_scale": t / g2,
        "noise_share": t / (s.n * s.g @ s.g),
    },
    "InnerTest": lambda s: (
        (((s.G @ s.g) ** 2).sum() - s.n * (s.g @ s.g) ** 2) / ((s.n - 1) * s.n * (s.g @ s.g) ** 2)
    ).sqrt(),
    "Loss": lambda s: s.loss,
    "LostUpdates": lambda s: s.per_parameter(
        lambda p: ((s.grad[p] != 0) & (s.after[p] == s.before[p])).sum() / (s.grad[p] != 0).sum()
    ),
    "MeanGSNR": lambda s: (s.g**2 / (s.G.var(0, correction=0) + 1e-5)).mean(),
    "NonFinite": lambda s: {"modules": 0, "gradients": 0, "samples": 0},
    "NormTest": lambda s: (
        ((s.G**2).sum() - s.n * s.g @ s.g) / ((s.n - 1) * s.n * s.g @ s.g)
    ).sqrt(),
    "OrthoTest": lambda s: (
        ((s.G**2).sum() - ((s.G @ s.g) ** 2).sum() / (s.g @ s.g)) / ((s.n - 1) * s.n * s.g @ s.g)
    ).sqrt(),
    "ParameterStats": lambda s: {
        name: s.per_parameter(lambda p, f=f: f(s.before[p]))
        for name, f in {
            "norm": torch.norm,
            "mean": torch.mean,
            "std": lambda t: t.var(correction=0).sqrt(),
            "min": torch.min,
            "max": torch.max,
        }.items()
    },
    "Parameters": lambda s: [s.before[p].tolist() for p in s.names],
    "PerSampleOutliers": lambda s: outliers(s.G.norm(dim=1).numpy(), 3),
    "Shrinkage": lambda s: s.per_parameter(
        lambda p: cosine(spaced(s.before[p] - s.after[p]), spaced(s.before[p]))
    ),
    "UpdateRatio": lambda s: s.per_parameter(
        lambda p: (s.after[p] - s.before[p]).norm() / s.before[p].norm()
    ),
    "UpdateSize": lambda s: s.per_parameter(lambda p: (s.after[p] - s.before[p]).norm()),
    "UpdateSlopes": lambda s: (
        s.next
        and {
            "start": (start := along(s.grad, s)),
            "end": (end := along(s.next.grad, s)),
            "ratio": -end / start,
        }
    ),
}
"""From the truth of a step to the value; None where there is none."""

UNPREDICTABLE = {"Time"}
"""Quantities whose value no formula gives; they have a test of their own."""

OPTIMIZERS_OF = {"AdamStaleness": ["adamw"]}
"""Quantities that are defined for some of the optimizers only."""

MODELS_OF = {"AttentionStats": ["transformer"]}
"""Quantities that are defined for some of the models only; at the others there is none, without a warning."""

CURVATURE = {
    "CriticalSharpness",
    "DirectionalCurvature",
    "HessMaxEV",
    "HessTrace",
    "HessianSpectrum",
    "KroneckerSpectrum",
    "PreconditionedSharpness",
    "TICDiag",
    "TICTrace",
}
"""Quantities that are compared with dense matrices in tests/curvature."""

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
    if name == "GradHist2d":
        return kind(bins=BINS_2D, samples=None)
    if name == "PerSampleOutliers":
        return kind(k=3)
    return kind(bins=BINS, samples=None) if kind is GradHist1d else kind()


def assert_equals(actual: Any, expected: Any, name: str) -> None:
    if name == "GradHist1d":
        assert actual["hist"].tolist() == expected
        np.testing.assert_allclose(actual["edges"], np.linspace(-2, 2, BINS + 1))
        return
    if name == "GradHist2d":
        np.testing.assert_array_equal(actual["hist"], expected)
        for edges, bins, limit in zip(actual["edges"], BINS_2D, (1, 2), strict=True):
            np.testing.assert_allclose(edges, np.linspace(-limit, limit, bins + 1))
        return
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        rounding = 1e-14 if name.endswith("Stats") else 0  # of means that vanish
        for key, value in expected.items():
            np.testing.assert_allclose(actual[key], value, rtol=TOLERANCE, atol=rounding)
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=0)
    else:
        np.testing.assert_allclose(actual, float(expected), rtol=TOLERANCE, atol=0)


@cache
def together(
    kind: str, reduction: str, optimizer: str
) -> tuple[list[Truth], dict[int, dict[str, Any]]]:
    everything = [
        settings(name)
        for name in PUBLIC
        if name in REFERENCE and optimizer in OPTIMIZERS_OF.get(name, OPTIMIZERS)
    ]
    return train(kind, everything, optimizer=optimizer, reduction=reduction)[:2]


@pytest.mark.parametrize("name", sorted(REFERENCE))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", MODELS)
def test_reference(kind: str, reduction: str, optimizer: str, name: str) -> None:
    if optimizer not in OPTIMIZERS_OF.get(name, OPTIMIZERS):
        with pytest.warns(CockpitWarning, match="no optimizer keeps second moments as Adam does"):
            assert not train(kind, [settings(name)], optimizer=optimizer, steps=1)[1]
        return
    truths, output = together(kind, reduction, optimizer)
    if kind not in MODELS_OF.get(name, MODELS):
        assert not any(name in of_step for of_step in output.values())
        return
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
    optimizer = OPTIMIZERS_OF.get(name, ["momentum"])[0]
    truths, output, _ = train(kind, [settings(name)], optimizer=optimizer, steps=3)
    if kind not in MODELS_OF.get(name, MODELS):
        assert not any(name in of_step for of_step in output.values())
        return
    for step, truth in enumerate(truths):
        expected = REFERENCE[name](truth)
        if expected is not None:
            assert_equals(output[step][name], expected, name)


def test_every_quantity_has_a_reference() -> None:
    assert set(PUBLIC) == set(REFERENCE) | UNPREDICTABLE | CURVATURE


@pytest.mark.parametrize("name", PUBLIC)
def test_every_quantity_teaches(name: str) -> None:
    text = getattr(quantities, name).__doc__
    for part in ("Formula:", "How to read it:", "Source:", "With accumulation:"):
        assert part in text, f"the docstring of {name} has no {part!r}"


def test_norm_test_is_the_hypotenuse() -> None:
    _, output = together("mlp", "mean", "sgd")
    for values in output.values():
        inner, ortho = values["InnerTest"], values["OrthoTest"]
        assert values["NormTest"] == pytest.approx((inner**2 + ortho**2) ** 0.5, rel=1e-9)
