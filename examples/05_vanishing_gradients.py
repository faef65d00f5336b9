"""Vanishing gradients, seen layer by layer.

Why does the network with sigmoids learn so slowly?

Run it with ``python examples/05_vanishing_gradients.py``. Two networks of three convolutions and three
linear layers differ in their activations alone: ReLU and sigmoid. The histogram of all gradients in
one does not show what is wrong; one for each layer does. It takes a few seconds, and writes two run
files and the picture ``runs/vanishing_gradients.png``; ``--help`` lists the options.

Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

from cockpit import Cockpit, open_run
from cockpit.demo import fashion_mnist
from cockpit.instruments import panel_of
from cockpit.plotting import draw
from cockpit.quantities import GradHist1d, Loss

BATCH_SIZE = 128
RANGE = (-1.1, 1.1)
"""Of the histograms, which have a hundred bins: the ten in the middle are a tenth of it."""


class Result(NamedTuple):
    """What the histograms of the first step say, and how the training went on."""

    name: str
    path: Path
    beyond: dict[str, float]  # by weight: share of the elements outside the middle tenth
    first_loss: float
    last_loss: float


def network(activation: type[nn.Module]) -> nn.Sequential:
    """Return three convolutions and three linear layers for images `[N, 1, 28, 28]`."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, kernel_size=5, stride=2, padding=2), activation()),
        *(nn.Conv2d(8, 16, kernel_size=3, padding=1), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 16, kernel_size=3, padding=1), activation(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(16 * 3 * 3, 64), activation()),
        *(nn.Linear(64, 32), activation()),
        nn.Linear(32, 10),
    )
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            nn.init.xavier_normal_(parameter)  # as in the paper's networks
        else:
            nn.init.zeros_(parameter)
    return model


def train(activation: type[nn.Module], steps: int, path: Path) -> Result:
    """Train a network, and count its gradients' elements layer by layer."""
    images = fashion_mnist()
    torch.manual_seed(0)
    model = network(activation)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # At the first step, with every element counted (None).
    histogram = GradHist1d(lambda step: step == 0, bins=100, range=RANGE, samples=None)
    with Cockpit(model, [histogram, Loss()], optimizer=optimizer, log=path) as watch:
        for step in range(steps):
            batch = torch.randint(len(images.x_train), (BATCH_SIZE,))
            optimizer.zero_grad()
            outputs = model(images.x_train[batch])
            losses = nn.functional.cross_entropy(outputs, images.y_train[batch], reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()

    run = open_run(path)
    beyond = {}
    for name in run.parameters:
        if name.endswith("weight"):
            counts = run.arrays("GradHist1d", f"hist/{name}")["value"].iloc[0]  # [bins]
            beyond[name] = float(1 - counts[45:55].sum() / np.sum(counts))
    loss = run.series("Loss")
    return Result(activation.__name__, path, beyond, loss.iloc[0], loss.tail(10).mean())


def picture(results: Sequence[Result], path: Path) -> None:
    """Draw the histograms of all elements above those by parameter, the input's layer on top."""
    figure = plt.figure(figsize=(12, 8), layout="constrained")
    places = figure.subplots(2, len(results), height_ratios=(2, 3), squeeze=False)
    for (total, layers), result in zip(places.T, results, strict=True):
        run = open_run(result.path)
        for name, title, place in (
            ("grad-histogram", "all parameters", total),
            ("grad-histogram-layers", "by parameter", layers),
        ):
            panel = panel_of(run, name)
            title = f"{result.name}, {title}"
            draw(replace(panel, title=title, headline="", x_range=RANGE), place)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> list[Result]:
    """Train both networks, print the answer, draw the picture."""
    parser = argparse.ArgumentParser(description="Vanishing gradients, layer by layer.")
    parser.add_argument("--steps", type=int, default=60, help="of each training (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
    options = parser.parse_args(arguments)

    print("Why does the network with sigmoids learn so slowly?")
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for activation in (nn.ReLU, nn.Sigmoid):
        path = options.out / f"vanishing_gradients_{activation.__name__.lower()}.db"
        result = train(activation, options.steps, path)
        print(
            f"{result.name}: loss {result.first_loss:.2f} -> {result.last_loss:.2f}; gradients' "
            "elements outside a tenth of the range, from the input's layer to the output's:"
        )
        print("  " + ", ".join(f"{share:.2%}" for share in result.beyond.values()), flush=True)
        results.append(result)
    for result in results:
        first, *_, last = result.beyond.values()
        how = "vanishes on its way to" if first < last / 100 else "reaches"
        print(f"{result.name}: the gradient {how} the input's layer.")
    path = options.out / "vanishing_gradients.png"
    picture(results, path)
    print(f"Picture: {path}")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    main()
