"""The doctor names what is wrong.

What is wrong with this training, and is it well when that is mended?

Run it with ``python examples/11_doctor.py``. It trains a network whose output goes through a softmax
before a loss that applies one, too, has the run diagnosed, and trains it without. It takes less than
half a minute, and writes two run files and the picture ``runs/doctor.png``; ``--help`` lists the
options.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from cockpit import Cockpit, configuration, open_run
from cockpit.demo import fashion_mnist
from cockpit.doctor import Diagnosis, diagnose
from cockpit.instruments import panel_of
from cockpit.plotting import draw

BATCH_SIZE = 64


def train(last: nn.Module, steps: int, path: Path) -> None:
    """Train a network that ends in `last`, and track what the doctor reads."""
    images = fashion_mnist()
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10)), last
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with Cockpit(model, configuration("health"), optimizer=optimizer, log=path) as watch:
        for step in range(steps):
            batch = torch.randint(len(images.x_train), (BATCH_SIZE,))
            optimizer.zero_grad()
            outputs = model(images.x_train[batch])
            losses = nn.functional.cross_entropy(outputs, images.y_train[batch], reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()


def tell(diagnosis: Diagnosis) -> None:
    """Print what was found."""
    for finding in diagnosis.findings:
        print(f"  {finding.code} {finding.severity}, since step {finding.step}: {finding.title}")
        print(f"    what to do: {finding.action}")
    if not diagnosis.findings:
        print(f"  Nothing was found by {diagnosis.checked} rules.")


def main(arguments: Sequence[str] | None = None) -> tuple[Diagnosis, Diagnosis]:
    """Train and diagnose with the fault and without it; draw both losses."""
    parser = argparse.ArgumentParser(description="The doctor.")
    parser.add_argument("--steps", type=int, default=100, help="of each training (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)

    print("What is wrong with this training?")
    ill, mended = options.out / "doctor_softmax_twice.db", options.out / "doctor_mended.db"
    train(nn.Softmax(dim=1), options.steps, ill)
    found = diagnose(ill)
    tell(found)
    print("And without the softmax?")
    train(nn.Identity(), options.steps, mended)
    left = diagnose(mended)
    tell(left)
    gone = {one.name for one in found.findings} - {one.name for one in left.findings}
    before, after = (open_run(path).series("Loss").tail(10).mean() for path in (ill, mended))
    print(f"Gone: {', '.join(sorted(gone)) or 'nothing'}. Loss {before:.2f} -> {after:.2f}.")

    figure = plt.figure(figsize=(11, 4), layout="constrained")
    places = figure.subplots(1, 2, sharey=True)
    for place, path, title in zip(places, (ill, mended), ("softmax twice", "mended"), strict=True):
        panel = panel_of(open_run(path), "loss")
        draw(replace(panel, title=f"Loss, {title}", headline=""), place)
    picture = options.out / "doctor.png"
    figure.savefig(picture, dpi=100)
    plt.close(figure)
    print(f"Picture: {picture}")
    return found, left


if __name__ == "__main__":
    torch.set_num_threads(1)  # fast for so small a network, whatever else the machine does
    main()
