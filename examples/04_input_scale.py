"""Inputs of the wrong scale, seen in the gradients.

Can one see in the gradients that pixels were not scaled?

Run it with ``python examples/04_input_scale.py``. The same small convolutional network sees the same
images, once with pixels from 0 to 1 and once as they come in the file, from 0 to 255. Drawn as
pictures, the two look alike; the histograms of the individual gradients do not. It takes a few
seconds, and writes two run files and the picture ``runs/input_scale.png``; ``--help`` lists the
options.

Source: Schneider, Dangel & Hennig (2021), arXiv:2102.06604.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from cockpit import Cockpit, open_run
from cockpit.demo import SmallCNN
from cockpit.instruments import panel_of
from cockpit.plotting import draw
from cockpit.quantities import GradHist1d, Loss

BATCH_SIZE = 128
RANGE = (-1.5, 1.5)
"""Of the histogram. What lies outside counts in the outermost bins."""


class Result(NamedTuple):
    """What the histogram of the first step says."""

    name: str
    scale: float  # of the pixels, which are between 0 and 255 in the file
    path: Path
    outermost: float  # share of the gradients' elements in the two outermost bins


def raw_images() -> tuple[Tensor, Tensor]:
    """Return the images as they come, pixels from 0 to 255, `[N, 1, 28, 28]`, and classes `[N]`."""
    path = files("cockpit") / "data" / "fashion_mnist_5k.npz"
    with path.open("rb") as file, np.load(file) as data:
        x, y = torch.from_numpy(data["x_train"]), torch.from_numpy(data["y_train"])
    return x.float().unsqueeze(1), y.long()


def train(name: str, scale: float, steps: int, path: Path) -> Result:
    """Train on pixels that are multiplied by `scale`, and count the gradients' elements."""
    x, y = raw_images()
    torch.manual_seed(0)  # the same weights and the same batches for both
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    # At the first step, where the weights of both are the same; None counts every element.
    histogram = GradHist1d(lambda step: step == 0, range=RANGE, samples=None)
    with Cockpit(model, [histogram, Loss()], optimizer=optimizer, log=path) as watch:
        for step in range(steps):
            batch = torch.randint(len(x), (BATCH_SIZE,))
            optimizer.zero_grad()
            outputs = model(scale * x[batch])
            losses = nn.functional.cross_entropy(outputs, y[batch], reduction="none")  # [N]
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()

    counts = open_run(path).arrays("GradHist1d", "hist")["value"].iloc[0]  # [bins], of step 0
    return Result(name, scale, path, float((counts[0] + counts[-1]) / counts.sum()))


def picture(results: Sequence[Result], path: Path) -> None:
    """Draw an image of each training as it is usually looked at, and its histogram."""
    figure = plt.figure(figsize=(11, 6.5), layout="constrained")
    places = figure.subplots(len(results), 2, width_ratios=(1, 3), squeeze=False)
    shown = raw_images()[0][0, 0].numpy()
    for (image, histogram), result in zip(places, results, strict=True):
        image.imshow(result.scale * shown, cmap="gray")  # which scales what it shows
        image.set_title(f"{result.name}: pixels from 0 to {255 * result.scale:g}")
        image.set_axis_off()
        panel = panel_of(open_run(result.path), "grad-histogram")
        title = f"{result.outermost:.1%} of the elements in the outermost bins"
        draw(replace(panel, title=title, x_range=RANGE), histogram)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> list[Result]:
    """Train on both, print the answer, draw the picture."""
    parser = argparse.ArgumentParser(description="Inputs of the wrong scale.")
    parser.add_argument("--steps", type=int, default=10, help="of each training (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
    options = parser.parse_args(arguments)

    print("Can one see in the gradients that pixels were not scaled?")
    options.out.mkdir(parents=True, exist_ok=True)
    results = [
        train(name, scale, options.steps, options.out / f"input_scale_{name}.db")
        for name, scale in (("normalised", 1 / 255), ("raw", 1.0))
    ]
    for result in results:
        print(
            f"  {result.name:10}: {result.outermost:7.2%} of the elements of the individual "
            f"gradients are in the outermost bins, at ±{RANGE[1]:g}"
        )
    normalised, raw = results
    seen = raw.outermost > 0.01 > normalised.outermost
    print("Yes: they pile up at the ends of the histogram." if seen else "No, not in these two.")
    path = options.out / "input_scale.png"
    picture(results, path)
    print(f"Picture: {path}")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    main()
