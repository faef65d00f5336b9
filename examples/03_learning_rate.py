"""Tuning the learning rate with alpha.

Which learning rate is best, and how far do its steps go?

Run it with ``python examples/03_learning_rate.py``. It trains a small network once per learning rate
and tracks ``Alpha``: where on the local parabola of the loss each step ends, -1 for no move at all, 0
for its minimum, 1 for the other side of the valley, at the height of the start. It takes less than a
minute, and writes a run file per learning rate and the picture ``runs/learning_rate.png``;
``--help`` lists the options.

In the end, it looks for a small learning rate that comes to the same loss as the largest one: do their
alphas tell them apart?

Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn

from cockpit import Cockpit, open_run
from cockpit.demo import fashion_mnist
from cockpit.instruments import panel_of
from cockpit.plotting import draw
from cockpit.quantities import Alpha, Loss

LEARNING_RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 0.6]
BATCH_SIZE = 64


class Result(NamedTuple):
    """What one training has come to."""

    lr: float
    path: Path
    loss: float  # of all training images, in the end
    accuracy: float  # on the test images, in the end
    alpha: pd.Series  # by step

    @property
    def median(self) -> float:
        """The median of alpha."""
        return float(self.alpha.median())


def train(lr: float, steps: int, path: Path) -> Result:
    """Train a small network by plain SGD, and track alpha at every step."""
    images = fashion_mnist()
    torch.manual_seed(0)  # the same weights and the same batches for every learning rate
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with Cockpit(model, [Alpha(), Loss()], optimizer=optimizer, log=path) as watch:
        for step in range(steps):
            batch = torch.randint(len(images.x_train), (BATCH_SIZE,))
            optimizer.zero_grad()
            outputs = model(images.x_train[batch])
            losses = nn.functional.cross_entropy(outputs, images.y_train[batch], reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()
    with torch.no_grad():
        final = nn.functional.cross_entropy(model(images.x_train), images.y_train)
        right = (model(images.x_test).argmax(1) == images.y_test).float().mean()
    return Result(lr, path, final.item(), right.item(), open_run(path).series("Alpha"))


def slower(fast: Result, steps: int, folder: Path) -> Result | None:
    """Return a training with a small learning rate that comes to the same loss; None without any."""
    low, high = 1e-4, fast.lr / 10
    for _ in range(8):
        lr = math.sqrt(low * high)
        result = train(lr, steps, folder / f"learning_rate_{lr:.3g}.db")
        if abs(result.loss / fast.loss - 1) < 0.03:
            return result
        low, high = (lr, high) if result.loss > fast.loss else (low, lr)
    return None


def picture(results: Sequence[Result], pair: tuple[Result, Result] | None, path: Path) -> None:
    """Draw loss and alpha over the learning rate, and how the steps of the pair are distributed."""
    figure = plt.figure(figsize=(11, 8 if pair else 4), layout="constrained")
    places = figure.subplots(2 if pair else 1, 2, squeeze=False)
    rates = [result.lr for result in results]
    best = max(results, key=lambda result: result.accuracy)

    places[0, 0].set_title("Loss of all training images", loc="left", weight="bold")
    places[0, 0].set(xlabel="learning rate", ylabel="loss")
    places[0, 0].loglog(rates, [result.loss for result in results], "o-")
    places[0, 1].set_title("Median of α, and its quartiles", loc="left", weight="bold")
    places[0, 1].set(xlabel="learning rate", ylabel="α")
    places[0, 1].semilogx(rates, [result.median for result in results], "o-")
    low, high = ([result.alpha.quantile(q) for result in results] for q in (0.25, 0.75))
    places[0, 1].fill_between(rates, low, high, alpha=0.2)
    places[0, 1].axhline(0, color="gray", linewidth=1)
    for place in places[0]:
        place.axvline(best.lr, color="gray", linestyle="dashed", label="best on test images")
        place.legend()
        place.grid(alpha=0.3)
        place.spines[["top", "right"]].set_visible(False)
    drawn = [panel_of(open_run(result.path), "alpha-distribution") for result in pair or ()]
    reach = max((panel.x_range[1] for panel in drawn if panel.x_range), default=1.4)
    for panel, result, place in zip(drawn, pair or (), places[-1], strict=False):
        title = f"Learning rate {result.lr:.2g}, loss {result.loss:.2f}"
        draw(replace(panel, title=title, x_range=(-1.4, reach)), place)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> tuple[list[Result], Result | None]:
    """Train with each learning rate, print the answer, draw the picture.

    Returns:
        What the trainings have come to, and a slow one that came to the loss of the fastest.
    """
    parser = argparse.ArgumentParser(description="Tuning the learning rate with alpha.")
    parser.add_argument("--steps", type=int, default=150, help="of each training (%(default)s)")
    parser.add_argument("--lr", type=float, nargs="+", default=LEARNING_RATES, help="rates to try")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
    options = parser.parse_args(arguments)

    print("Which learning rate is best, and how far do its steps go?")
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for lr in sorted(options.lr):
        result = train(lr, options.steps, options.out / f"learning_rate_{lr:g}.db")
        print(
            f"  learning rate {lr:<5g}  loss {result.loss:.3f}  test accuracy {result.accuracy:.1%}  "
            f"median alpha {result.median:+.2f}",
            flush=True,
        )
        results.append(result)

    best = max(results, key=lambda result: result.accuracy)
    kind = "beyond" if best.median > 0 else "short of"
    print(
        f"The best learning rate on the test images is {best.lr:g}; half of its steps end at alpha "
        f"{best.median:+.2f} or higher: it mostly goes {kind} the minimum of the local parabola."
    )
    fast = results[-1]
    slow = slower(fast, options.steps, options.out)
    pair = (slow, fast) if slow else None
    if slow:
        print(
            f"The loss does not tell {slow.lr:.2g} ({slow.loss:.2f}) from {fast.lr:g} "
            f"({fast.loss:.2f}); alpha does, with medians of {slow.median:+.2f} and "
            f"{fast.median:+.2f}."
        )
    path = options.out / "learning_rate.png"
    picture(results, pair, path)
    print(f"Picture: {path}")
    return results, slow


if __name__ == "__main__":
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    main()
