"""The edge of stability: where the sharpness goes in gradient descent, and what the learning rate says.

Run it with ``python examples/06_edge_of_stability.py``. It trains a small network on 1,000 images by
gradient descent without mini-batches, with two learning rates η, and draws the largest eigenvalue
of the Hessian beside the bound 2/η, the loss, and where on the local parabola the steps end. It
takes less than a minute, and writes a run file per learning rate and the picture,
``runs/edge_of_stability.png``; ``--help`` lists the options.

Source: Cohen, Kaur, Li, Kolter & Talwalkar (2021), arXiv:2103.00065.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from cockpit import Cockpit, open_run
from cockpit.demo import fashion_mnist
from cockpit.instruments.alpha import MEANINGS
from cockpit.instruments.panel import Color, Line, Panel, Reference
from cockpit.plotting import draw
from cockpit.quantities import Alpha, HessMaxEV, Loss
from cockpit.schedules import linear

IMAGES = 1000
EVERY = 10
"""The sharpness and the steps are looked at on every tenth step."""

COLORS: tuple[Color, ...] = ("blue", "orange", "green", "purple")


class Result(NamedTuple):
    """What one training has shown, each by step."""

    lr: float
    sharpness: pd.Series
    loss: pd.Series
    alpha: pd.Series

    @property
    def bound(self) -> float:
        """Below this sharpness a step of gradient descent is stable: 2/η."""
        return 2 / self.lr

    @property
    def reached(self) -> int | None:
        """The first step at which the sharpness was seen at the bound; None if it never was."""
        there = self.sharpness.index[self.sharpness >= self.bound]
        return int(there[0]) if len(there) else None

    @property
    def late(self) -> float:
        """The median sharpness of the last quarter, in units of the bound."""
        quarter = max(1, len(self.sharpness) // 4)
        return float(self.sharpness.tail(quarter).median() / self.bound)


def network() -> nn.Sequential:
    """Return a small network that is smooth, so that it has a Hessian everywhere."""
    return nn.Sequential(
        nn.AvgPool2d(2),
        nn.Flatten(),
        *(nn.Linear(14 * 14, 50), nn.Tanh()),
        *(nn.Linear(50, 50), nn.Tanh()),
        *(nn.Linear(50, 50), nn.Tanh()),
        nn.Linear(50, 10),
    )


def train(lr: float, steps: int, path: Path) -> Result:
    """Train by full-batch gradient descent on squared errors, and watch it."""
    images = fashion_mnist()
    x = images.x_train[:IMAGES]
    x = x - x.mean(0)
    targets = nn.functional.one_hot(images.y_train[:IMAGES], 10).float()  # [N, 10]

    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    quantities = [HessMaxEV(linear(EVERY)), Alpha(linear(EVERY)), Loss()]
    with Cockpit(model, quantities, optimizer=optimizer, log=path) as watch:
        for step in range(steps):
            optimizer.zero_grad()
            losses = (model(x) - targets).square().sum(1) / 2  # [N]
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()
            watch.log(step, learning_rate=lr)  # so that `cockpit plot` draws 2/η, too
            if step % max(EVERY, steps // 4) == 0 or step == steps - 1:
                print(f"  learning rate {lr:g}, step {step:>5}: loss {loss.item():.3f}", flush=True)

    run = open_run(path)
    return Result(lr, run.series("HessMaxEV"), run.series("Loss"), run.series("Alpha"))


def answer(result: Result) -> str:
    """Return in a sentence what the sharpness did."""
    start = (
        f"learning rate {result.lr:g}: the sharpness starts at {result.sharpness.iloc[0]:.1f}; "
        f"the bound is 2/η = {result.bound:.1f}. "
    )
    if result.reached is None:
        return start + (
            f"It has not come there in these steps: {result.late:.2f} times the bound in the last "
            "quarter. More steps may show it."
        )
    rises = result.loss.diff().iloc[1:] > 0
    before, after = rises.loc[: result.reached], rises.loc[result.reached + 1 :]
    return start + (
        f"It is there at step {result.reached}, and in the last quarter its median is "
        f"{result.late:.2f} times the bound. The loss rose in {before.sum()} of {len(before)} steps "
        f"until then, and in {after.sum()} of {len(after)} afterwards."
    )


def line(values: pd.Series, label: str, color: Color) -> Line:
    """Return a series as a line of a panel."""
    return Line(values.index.to_numpy(float), values.to_numpy(float), label, color)


def panels(results: Sequence[Result]) -> tuple[Panel, Panel, Panel]:
    """Return the three pictures: sharpness with its bounds, loss, and alpha."""
    sharpness: list[Line] = []
    loss, alpha = [], []
    for result, color in zip(results, COLORS, strict=False):
        eta = f"η = {result.lr:g}"
        steps = result.sharpness.index.to_numpy(float)
        bound = np.full_like(steps, result.bound)
        sharpness += [
            Line(steps, bound, f"2/η, {eta}", color, "dashed"),
            line(result.sharpness, f"sharpness, {eta}", color),
        ]
        loss.append(line(result.loss, eta, color))
        alpha.append(line(result.alpha, eta, color))
    return (
        Panel(
            title="Sharpness",
            group="CURVATURE",
            how_to_read="It rises until it is at 2/η, and hovers there.",
            marks=tuple(sharpness),
            y_label="largest eigenvalue",
        ),
        Panel(
            title="Loss",
            group="PERFORMANCE",
            how_to_read="Below the edge it falls at each step, at the edge only in the long run.",
            marks=tuple(loss),
            y_label="loss",
            scale="log",
        ),
        Panel(
            title="Step length α",
            group="STEP SIZE",
            how_to_read="Near -1 a step stays on its side of the valley, near 1 it crosses to the "
            "other.",
            marks=(*(Reference(value, word) for value, word in MEANINGS), *alpha),
            y_label="α",
            y_range=(-1.4, 1.4),
        ),
    )


def picture(results: Sequence[Result], path: Path) -> None:
    """Draw the three below each other, and save them."""
    figure = Figure(figsize=(9, 9))
    places = figure.subplots(3, gridspec_kw={"height_ratios": (3, 2, 2)})
    figure.subplots_adjust(left=0.08, right=0.87, top=0.9, bottom=0.06, hspace=0.7)
    for panel, axes in zip(panels(results), places, strict=True):
        draw(panel, axes, how_to_read=True)
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> list[Result]:
    """Train with each learning rate, print the answer, draw the picture."""
    parser = argparse.ArgumentParser(description="Gradient descent at the edge of stability.")
    parser.add_argument("--steps", type=int, default=1500, help="of gradient descent (%(default)s)")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.2, 0.1], help="learning rates")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
    options = parser.parse_args(arguments)

    print("Where does the sharpness go in gradient descent, and what has η to do with it?")
    options.out.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    try:
        results = [
            train(lr, options.steps, options.out / f"edge_of_stability_{lr:g}.db")
            for lr in options.lr
        ]
    finally:
        torch.set_num_threads(threads)
    for result in results:
        print(answer(result))
    path = options.out / "edge_of_stability.png"
    picture(results, path)
    print(f"Picture: {path}")
    return results


if __name__ == "__main__":
    main()
