"""The basic loop: watch a training, then ask the run two questions.

Run it with ``python examples/01_basic_loop.py``. It takes less than half a minute, writes
``runs/basic_loop.db`` and a picture beside it; ``--help`` lists the options.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cockpit import Cockpit, CockpitPlotter, configuration, open_run
from cockpit.demo import fashion_mnist

parser = argparse.ArgumentParser(description="Watch a training, then ask the run two questions.")
parser.add_argument("--epochs", type=int, default=3, help="of training (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
options = parser.parse_args()
path = options.out / "basic_loop.db"

print("Does the learning rate fit, and is the batch large enough?")
torch.manual_seed(0)
images = fashion_mnist()
loader = DataLoader(
    TensorDataset(images.x_train, images.y_train), batch_size=64, shuffle=True, drop_last=True
)
model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

# The training: three lines of it are the cockpit's.
watch = Cockpit(model, configuration("economy"), optimizer=optimizer, log=path)
step = 0
for _ in range(options.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")  # [N]
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        optimizer.step()
        step += 1
watch.close()

# Afterwards: the run as pandas series, and as pictures.
run = open_run(path)
loss, alpha, noise = (run.series(name) for name in ("Loss", "Alpha", "NormTest"))

print(f"{len(run.steps)} steps, loss {loss.iloc[0]:.2f} -> {loss.tail(20).median():.2f}")

median = alpha.median()
print(f"Does the learning rate fit?  median alpha {median:+.2f}:", end=" ")
if median < -0.5:
    print("steps end far short of the minimum of the local model; a larger one may help.")
elif median > 0.5:
    print("steps end far beyond the minimum of the local model; a smaller one may help.")
else:
    print("steps end near the minimum of the local model.")

recent = noise.tail(20).median()
print(f"Is the batch large enough?   noise / gradient {recent:.2f}:", end=" ")
print("yes, the gradient stands out." if recent < 1 else "the gradient drowns in its noise.")

CockpitPlotter().plot(run, show_plot=False, save_plot=True, savename="basic_loop")
print(f"Pictures: {path.with_suffix('.png')}")
