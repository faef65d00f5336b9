"""A quantity of your own, in a few lines.

How many samples of a batch make its gradient?

Run it with ``python examples/02_own_quantity.py``. It takes less than half a minute, and writes
``runs/own_quantity.db`` and a picture beside it; ``--help`` lists the options.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cockpit import Cockpit, CockpitPlotter, open_run
from cockpit.demo import fashion_mnist
from cockpit.engine.step import Step
from cockpit.quantities import Loss, Quantity
from cockpit.transforms import SquareNorms


@dataclass(frozen=True)
class Contributors(Quantity):
    r"""Number of samples that make the gradient, were all of them alike.

    Formula: :math:`(\sum_i s_i)^2 / \sum_i s_i^2` with the squared norms :math:`s_i = \|g_i\|^2` of the
    individual gradients: N when all have the same, 1 when a single sample has everything.
    """

    square_norms = SquareNorms()  # what it needs; equal needs of several quantities are met once

    def compute(self, step: Step) -> Tensor:
        """Return the number, `[]`."""
        norms = step[self.square_norms].total()  # [N], over all parameters
        return norms.sum().square() / norms.square().sum()


parser = argparse.ArgumentParser(description="A quantity of your own.")
parser.add_argument("--steps", type=int, default=200, help="of training (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
options = parser.parse_args()
path = options.out / "own_quantity.db"

print("How many samples of a batch make its gradient?")
torch.manual_seed(0)
images, batch_size = fashion_mnist(), 64
model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Cockpit(model, [Contributors(), Loss()], optimizer=optimizer, log=path) as watch:
    for step in range(options.steps):
        batch = torch.randint(len(images.x_train), (batch_size,))
        optimizer.zero_grad()
        outputs = model(images.x_train[batch])
        losses = nn.functional.cross_entropy(outputs, images.y_train[batch], reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()

run = open_run(path)
contributors = run.series("Contributors")
first, last = contributors.head(10).median(), contributors.tail(10).median()
print(f"Of {batch_size} samples, {first:.0f} do at first, and {last:.0f} in the end:", end=" ")
if last < first / 2:
    print("as most are learnt, a few that are not make the gradient.")
else:
    print("it does not come down to a few.")

# A quantity has a picture of its own without further ado.
CockpitPlotter().plot(run, show_plot=False, save_plot=True, savename="own_quantity")
print(f"Pictures: {path.with_suffix('.png')}")
