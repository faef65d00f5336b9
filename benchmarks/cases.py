"""What is tracked on which network, and what it should cost at most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from benchmarks.costs import Case, Group, Tracked
from benchmarks.networks import gpt2, mlp, resnet18, three_c_three_d
from cockpit import configuration
from cockpit.quantities import (
    GradHist1d,
    HessMaxEV,
    HessTrace,
    InnerTest,
    NormTest,
    OrthoTest,
    Quantity,
    TICDiag,
)
from cockpit.schedules import at, linear

ECONOMY = "economy"
WITHOUT = "economy without GradHist1d"
PERIOD = 10
"""Steps from one tracked step to the next, of the set that is not tracked on every step."""
SELDOM = f"economy, every {PERIOD}th step"
IDLE = "nothing due"
EXACT = "economy, samples=None"


def preset(label: str, time: float | None = None, **more: Any) -> Tracked:
    """Return a set by its label."""
    return Tracked(lambda: configuration(label), time, **more)


def exact_curvature(label: str) -> Tracked:
    """Return a set whose diagonals are BackPACK's exact ones of the Hessian, as Cockpit 1.0 has them."""
    kinds = (HessTrace, TICDiag)
    return Tracked(
        lambda: [
            replace(q, curvature="diag_h") if isinstance(q, kinds) else q
            for q in configuration(label)
        ],
        backpack=True,
    )


def without_histogram() -> list[Quantity]:
    """Return the economy set without its histogram."""
    return [q for q in configuration(ECONOMY) if not isinstance(q, GradHist1d)]


def every_value() -> list[Quantity]:
    """Return the economy set with a histogram that counts every value."""
    return [*without_histogram(), GradHist1d(samples=None)]


def seldom(repeats: int) -> Group:
    """Return economy at an interval: a period of steps is timed as a whole."""
    sets = {SELDOM: Tracked(lambda: configuration(ECONOMY, linear(PERIOD)), 1.15, every=PERIOD)}
    return Group(sets, repeats, warmup=1, steps=PERIOD, with_memory=False)


def idle(repeats: int) -> Group:
    """Return a cockpit that has nothing to do."""
    sets = {IDLE: Tracked(lambda: configuration(ECONOMY, at([])), 1.01, every=math.inf)}
    return Group(sets, repeats)


def exact(repeats: int) -> Group:
    """Return histograms of every value, and the same set without a histogram."""
    sets = {
        WITHOUT: Tracked(without_histogram),
        EXACT: Tracked(every_value, nanoseconds=12, over=WITHOUT),
    }
    return Group(sets, repeats, warmup=1)


CASES = {
    "mlp": Case(
        "MLP 784-1000-500-100-10",
        mlp,
        (
            Group(
                {
                    "three gradient tests": Tracked(
                        lambda: [NormTest(), InnerTest(), OrthoTest()], 2.5
                    ),
                    ECONOMY: preset(ECONOMY, 3.5, memory=1.5, earlier=228),
                    "business": preset("business", 5, earlier=245),
                    "full": preset("full", 15, earlier=1257),
                    "business, diag_h": exact_curvature("business"),
                    "full, diag_h": exact_curvature("full"),
                },
                repeats=40,
                warmup=8,
            ),
            seldom(30),
            idle(200),
            exact(3),
        ),
    ),
    "3c3d": Case(
        "3c3d (three convolutions, three dense layers, 32 x 32 x 3)",
        three_c_three_d,
        (
            Group(
                {
                    "HessTrace": Tracked(lambda: [HessTrace(curvature="auto")], 4),
                    "HessMaxEV": Tracked(lambda: [HessMaxEV()], 10, products=8),
                    ECONOMY: preset(ECONOMY, 2, earlier=10.3),
                    "business": preset("business", 3.5, earlier=21.2),
                    "full": preset("full", 10, earlier=97.7),
                },
                repeats=10,
                warmup=4,
            ),
            Group(
                {
                    "business, diag_h": exact_curvature("business"),
                    "full, diag_h": exact_curvature("full"),
                },
                repeats=3,
                warmup=2,
            ),
            seldom(8),
            idle(50),
            exact(3),
        ),
    ),
    "transformer": Case(
        "char transformer (GPT-2 of Hugging Face, 4 layers, width 128, context 128)",
        gpt2,
        (
            Group({ECONOMY: preset(ECONOMY, 2.5), "business": preset("business", 4)}, repeats=6),
            Group({"full": preset("full", 15)}, repeats=3, warmup=2),
            seldom(3),
            idle(16),
            exact(3),
        ),
        batch_size=32,
        notes=(
            "diag_h is not to be had here: BackPACK knows neither attention nor models that return more "
            "than a tensor.",
        ),
    ),
    "resnet18": Case(
        "ResNet-18 of torchvision, 64 x 64 x 3",
        resnet18,
        (Group({ECONOMY: preset(ECONOMY)}, repeats=8),),
        batch_size=32,
    ),
}
