"""Lightning under its older name, `pytorch_lightning`, takes the same callback."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from integrations.plain import N, assert_same_run, network, samples, sgd, tracked, train
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from cockpit.integrations.lightning import CockpitCallback


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        for name, module in network().named_children():
            self.add_module(name, module)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        for module in self.children():
            x = module(x)
        losses = F.cross_entropy(x, y, reduction="none")
        self.individual_losses = losses
        return losses.mean()

    def configure_optimizers(self) -> list[list[torch.optim.Optimizer]]:
        opt = sgd(self.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
        return [opt], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore::pytorch_lightning.utilities.warnings.PossibleUserWarning")
def test_the_numbers_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    x, y = samples(3 * N)
    pl.Trainer(
        max_epochs=1,
        callbacks=[CockpitCallback(tracked(), log=tmp_path / "lightning.db")],
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    ).fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=N))
    train(tmp_path / "plain.db", zip(x.split(N), y.split(N), strict=True))
    assert_same_run(tmp_path / "lightning.db", tmp_path / "plain.db", without=["epoch_count"])
