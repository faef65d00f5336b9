"""Histograms: ranges that adapt, counts that are sampled, values that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from training import train

from cockpit import Cockpit, schedules
from cockpit.quantities import GradHist1d, GradHist2d
from cockpit.quantities.bin_adaptation import (
    BinAdaptation,
    GradAbsMax,
    GradMinMax,
    NoAdaptation,
    ParamAbsMax,
    ParamMinMax,
)

STEPS = 5


def expected_range(adaptation: BinAdaptation, values: torch.Tensor) -> tuple[float, float]:
    low, high = values.min().item(), values.max().item()
    if isinstance(adaptation, GradAbsMax | ParamAbsMax):
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    center, half = (low + high) / 2, max(adaptation.min_size / 2, (high - low) / 2)
    half *= 1 + adaptation.padding
    return center - half, center + half


@pytest.mark.parametrize("kind", [GradAbsMax, GradMinMax, ParamAbsMax, ParamMinMax])
@pytest.mark.parametrize("padding", [0.0, 0.25])
def test_the_range_adapts_from_the_next_histogram_on(
    kind: type[BinAdaptation], padding: float
) -> None:
    """The range of a step follows from the extremes of the latest step on which the adaptation was due."""
    adaptation = kind(schedules.at([1, 3]), padding=padding)
    truths, output, _ = train(
        "mlp", [GradHist1d(bins=9, adapt=adaptation, samples=None)], steps=STEPS
    )
    limits = (-2.0, 2.0)
    for step, truth in enumerate(truths):
        edges, hist = output[step]["GradHist1d"]["edges"], output[step]["GradHist1d"]["hist"]
        np.testing.assert_allclose((edges[0], edges[-1]), limits, rtol=1e-12)
        clipped = truth.G.numpy().clip(edges[0], edges[-1])
        np.testing.assert_array_equal(hist, np.histogram(clipped, edges)[0])
        if step in (1, 3):
            values = (
                truth.G
                if "Grad" in kind.__name__
                else torch.cat([p.flatten() for p in truth.before.values()])
            )
            limits = expected_range(adaptation, values)


def test_both_ranges_of_the_joint_histogram_adapt() -> None:
    quantity = GradHist2d(bins=(9, 7), adapt=(GradAbsMax(), ParamMinMax(padding=0.1)), samples=None)
    truths, output, _ = train("mlp", [quantity], steps=3)
    limits: tuple = ((-1.0, 1.0), (-2.0, 2.0))
    for step, truth in enumerate(truths):
        x_edges, y_edges = output[step]["GradHist2d"]["edges"]
        np.testing.assert_allclose([x_edges[[0, -1]], y_edges[[0, -1]]], limits, rtol=1e-12)
        assert output[step]["GradHist2d"]["hist"].sum() == truth.G.numel()
        theta = torch.cat([p.flatten() for p in truth.before.values()])
        limits = (
            expected_range(GradAbsMax(), truth.G),
            expected_range(ParamMinMax(padding=0.1), theta),
        )


def test_a_least_size_of_the_range() -> None:
    """Where all gradients are zero the range is as small as it may be, and still a range."""
    model = nn.Linear(3, 2)
    watch = Cockpit(model, [GradHist1d(bins=3, adapt=GradAbsMax(min_size=0.5))])
    for step in range(2):
        loss = (model(torch.randn(4, 3)) * 0).sum(1).mean()
        with watch(step, loss=loss):
            loss.backward()
    edges = watch.get_output()[1]["GradHist1d"]["edges"]
    np.testing.assert_allclose(edges, [-0.25, -0.25 / 3, 0.25 / 3, 0.25])


def test_extremes_that_are_not_finite_leave_the_range() -> None:
    model = nn.Linear(3, 2)
    watch = Cockpit(model, [GradHist1d(bins=3, adapt=GradAbsMax())])
    for step in range(2):
        loss = (model(torch.randn(4, 3)) * math.inf).sum(1).mean()
        with watch(step, loss=loss):
            loss.backward()
    assert watch.get_output()[1]["GradHist1d"]["edges"][0] == -2


@pytest.mark.parametrize("arguments", [{"padding": -1}, {"min_size": 0}])
def test_settings_of_an_adaptation(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs padding >= 0 and min_size > 0"):
        GradAbsMax(**arguments)
    with pytest.raises(ValueError, match="adapts its range by an adaptation of"):
        GradHist1d(adapt="GradAbsMax")
    assert GradHist1d(adapt=NoAdaptation()).needs_at(0, None) == GradHist1d().needs()


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_sampled_counts_are_those_of_the_whole_on_average(kind: str) -> None:
    """Over many draws the shares come close to the exact ones, and every draw sums to the total."""
    exact: dict[str, np.ndarray] = {}
    sums: dict[str, list[np.ndarray]] = {"GradHist1d": [], "GradHist2d": []}
    everything = [
        GradHist1d(bins=9, range=(-0.3, 0.3)),
        GradHist2d(bins=(5, 5), range=((-0.3, 0.3), (-1, 1))),
    ]
    for samples in [None] + [400] * 30:
        quantities = [type(q)(bins=q.bins, range=q.range, samples=samples) for q in everything]
        _, output, watch = train(
            kind, quantities, steps=1, seed_of_samples=1000 * len(sums["GradHist1d"])
        )
        for name, value in output[0].items():
            if samples is None:
                exact[name] = value["hist"]
            else:
                assert value["hist"].sum() == exact[name].sum()
                sums[name].append(value["hist"])
        if samples:
            drawn = watch.run().series("GradHist1d", "drawn")[0]
            assert drawn < exact["GradHist1d"].sum()
    for name, hists in sums.items():
        draws = np.stack(hists)
        error = draws.std(0, ddof=1) / len(draws) ** 0.5
        # A bin that was never hit has no spread: allow for about one value a draw.
        allowed = 4.5 * np.maximum(error, exact[name].sum() / 400 / len(draws) ** 0.5)
        assert (abs(draws.mean(0) - exact[name]) <= allowed).all(), name


def test_non_finite_values_are_in_no_bin() -> None:
    model = nn.Linear(4, 3, bias=False)
    x = torch.randn(6, 4)
    x[1, 2], x[4, 0], x[5, 1] = math.inf, math.nan, -math.inf
    watch = Cockpit(model, [GradHist1d(samples=None), GradHist2d(samples=None)])
    losses = model(x).nan_to_num().sum(1) * 0 + model(x).sum(1)
    loss = losses.mean()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    run, output = watch.run(), watch.get_output()[0]
    for name in ("GradHist1d", "GradHist2d"):
        assert run.series(name, "nonfinite")[0] == 9  # three inputs, each with three outputs
        assert output[name]["hist"].sum() == 6 * 12 - 9


def test_histograms_by_parameter() -> None:
    truths, _, watch = train(
        "mlp",
        [
            GradHist1d(bins=9, samples=None),
            GradHist2d(bins=(5, 5), keep_individual=True, samples=None),
        ],
        steps=1,
    )
    run = watch.run()
    for name in truths[0].names:
        counts = run.series("GradHist1d", f"hist/{name}")[0]
        assert (
            counts.tolist()
            == np.histogram(truths[0].gradients[name].numpy().clip(-2, 2), np.linspace(-2, 2, 10))[
                0
            ].tolist()
        )
        assert (
            run.series("GradHist2d", f"hist/{name}")[0].sum() == truths[0].gradients[name].numel()
        )
