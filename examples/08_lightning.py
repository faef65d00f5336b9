"""With Lightning: a callback watches the training, and says which layers train.

Run it with ``python examples/08_lightning.py``, where Lightning is installed
(``pip install "torch-cockpit[lightning]"``). It takes less than half a minute, and writes
``runs/lightning.db`` and a picture beside it; ``--help`` lists the options.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cockpit import CockpitPlotter, configuration, open_run
from cockpit.demo import fashion_mnist
from cockpit.integrations.lightning import CockpitCallback
from cockpit.quantities import UpdateRatio


class Classifier(pl.LightningModule):
    """A small network for images of 28 × 28."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, `[N, 10]`."""
        return self.layers(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss, and leave the losses of the samples for the cockpit."""
        x, y = batch
        losses = nn.functional.cross_entropy(self(x), y, reduction="none")  # [N]
        self.individual_losses = losses
        return losses.mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the accuracy."""
        x, y = batch
        self.log("val_acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser(description="A callback for Lightning watches the training.")
parser.add_argument("--epochs", type=int, default=3, help="of training (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("runs"), help="folder (%(default)s)")
options = parser.parse_args()
path = options.out / "lightning.db"

print("How far does a step move each layer, relative to its size?")
pl.seed_everything(0)
images = fashion_mnist()
train = DataLoader(TensorDataset(images.x_train, images.y_train), batch_size=64, shuffle=True)
test = DataLoader(TensorDataset(images.x_test, images.y_test), batch_size=500)

quantities = [*configuration("economy"), UpdateRatio()]
trainer = pl.Trainer(
    max_epochs=options.epochs,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[CockpitCallback(quantities, log=path)],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier(), train, test)

run = open_run(path)
accuracy = ", ".join(f"{value:.0%}" for value in run.series("valid_accuracy"))
print(f"{len(run.steps)} steps, accuracy after each epoch: {accuracy}")

print("Median of update / parameters, by layer (about 0.001 is usual):")
ratios = run.scalars()
ratios = ratios[ratios["quantity"] == "UpdateRatio"]
for name, median in ratios.groupby("part")["value"].median().items():
    print(f"  {name:18} {median:.4f}")

CockpitPlotter().plot(run, show_plot=False, save_plot=True, savename="lightning")
print(f"Pictures: {path.with_suffix('.png')}")
