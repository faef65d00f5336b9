"""Lightning's trainer with the callback, against a plain loop over the same batches."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from integrations.plain import (
    STEPS,
    N,
    assert_same_parameters,
    assert_same_run,
    hooks,
    network,
    numbers,
    samples,
    sgd,
    tracked,
    train,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cockpit import Cockpit, CockpitError, CockpitWarning, open_run, quantities
from cockpit.integrations.lightning import CockpitCallback

pytestmark = [
    # Lightning's hints at its users (few workers, no validation data), and what it calls in PyTorch.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(pl.LightningModule):
    def __init__(self, net: nn.Module | None = None, *, give_losses: bool = True) -> None:
        super().__init__()
        net = net or network()
        for name, module in net.named_children():
            self.add_module(name, module)
        self.give_losses = give_losses
        self.fail_at: int | None = None
        self.skip: set[int] = set()

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        if self.global_step == self.fail_at:
            raise RuntimeError("as planned")
        if batch_idx in self.skip:
            return None
        if self.give_losses:
            self.individual_losses = losses
        return losses.mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> dict[str, Any]:
        opt = sgd(self.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader(n: int, size: int = N) -> DataLoader:
    return DataLoader(TensorDataset(*samples(n)), batch_size=size)


def trainer(folder: Path, *callbacks: Any, **arguments: Any) -> pl.Trainer:
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
        "max_epochs": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), default_root_dir=folder, **{**quiet, **arguments})


def batches(n: int, size: int) -> zip:
    x, y = samples(n)
    return zip(x.split(size), y.split(size), strict=True)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_the_numbers_are_those_of_a_plain_loop(
    tmp_path: Path, accumulate: int, clip: float | None
) -> None:
    chosen = [q for q in tracked() if accumulate == 1 or q.name != "HessMaxEV"]
    n = N * accumulate * STEPS
    watch, model = CockpitCallback(chosen, log=tmp_path / "lightning.db"), Classifier()
    fit = trainer(tmp_path, watch, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    fit.fit(model, loader(n))
    train(tmp_path / "plain.db", batches(n, N * accumulate), chosen=chosen, clip=clip)
    assert_same_run(tmp_path / "lightning.db", tmp_path / "plain.db", without=["epoch_count"])
    assert hooks(model) == 0
    assert "individual_losses" not in vars(model)


def test_training_is_as_without_the_callback(tmp_path: Path) -> None:
    models = []
    for callbacks in ([], [CockpitCallback(tracked(), log=tmp_path / "run.db")]):
        model = Classifier()
        trainer(tmp_path, *callbacks, accumulate_grad_batches=3).fit(model, loader(12 * STEPS))
        models.append(model)
    assert_same_parameters(*models)


def test_the_last_batches_of_an_epoch_may_be_fewer(tmp_path: Path) -> None:
    """Lightning divides by the number that a full accumulation has; the gradient is smaller, as it is."""
    watch = CockpitCallback([quantities.Loss(), quantities.NormTest()], log=tmp_path / "run.db")
    model = Classifier()
    trainer(tmp_path, watch, accumulate_grad_batches=4, max_epochs=2).fit(model, loader(6 * N))
    run = open_run(tmp_path / "run.db")
    assert list(run.series("NormTest").index) == [0, 1, 2, 3]
    plain = train(tmp_path / "plain.db", batches(4 * N, 4 * N), chosen=[quantities.Loss()])
    x, y = (part[4 * N :] for part in samples(6 * N))
    assert run.series("Loss")[1] == pytest.approx(F.cross_entropy(plain(x), y).item())


def test_a_gradient_scaler_is_taken_out(tmp_path: Path) -> None:
    """With 16-bit floats in between, the numbers are near; with its factor on, they would be far."""
    chosen = [quantities.Loss(), quantities.NormTest(), quantities.GradientNoiseScale()]
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    watch = CockpitCallback(chosen, log=tmp_path / "lightning.db")
    model = Classifier(network().float())
    fit = trainer(tmp_path, watch, plugins=plugin, accumulate_grad_batches=2)
    x, y = samples(2 * N * STEPS)
    fit.fit(model, DataLoader(TensorDataset(x.float(), y), batch_size=N))
    train(tmp_path / "plain.db", batches(2 * N * STEPS, 2 * N), chosen=chosen)
    found, expected = numbers(tmp_path / "lightning.db"), numbers(tmp_path / "plain.db")
    for key in expected:
        assert found[key] == pytest.approx(expected[key], rel=0.1, abs=1e-3), key
    assert fit.precision_plugin.scaler.get_scale() == 1024.0


def test_bfloat16(tmp_path: Path) -> None:
    chosen = [quantities.Loss(), quantities.NormTest()]
    watch = CockpitCallback(chosen, log=tmp_path / "lightning.db")
    x, y = samples(N * STEPS)
    fit = trainer(tmp_path, watch, precision="bf16-mixed")
    fit.fit(Classifier(network().float()), DataLoader(TensorDataset(x.float(), y), batch_size=N))
    train(tmp_path / "plain.db", batches(N * STEPS, N), chosen=chosen)
    found, expected = numbers(tmp_path / "lightning.db"), numbers(tmp_path / "plain.db")
    for key in expected:
        assert found[key] == pytest.approx(expected[key], rel=0.1), key


def test_validation_is_logged_and_not_tracked(tmp_path: Path) -> None:
    watch = CockpitCallback(tracked(), log=tmp_path / "lightning.db")
    fit = trainer(tmp_path, watch, num_sanity_val_steps=1, val_check_interval=3)
    fit.fit(Classifier(), loader(N * STEPS), loader(2 * N))
    run = open_run(tmp_path / "lightning.db")
    train(tmp_path / "plain.db", batches(N * STEPS, N))
    logged = ["epoch_count", "valid_loss"]
    assert_same_run(tmp_path / "lightning.db", tmp_path / "plain.db", without=logged)
    losses = run.series("valid_loss")
    assert list(losses.index) == [2, 5]
    x, y = samples(2 * N)
    for steps in (3, 6):
        model = train(tmp_path / "part.db", list(batches(N * STEPS, N))[:steps], chosen=[])
        assert losses[steps - 1] == pytest.approx(F.cross_entropy(model(x), y).item())


def test_a_resumed_fit_goes_on_in_the_run_file(tmp_path: Path) -> None:
    """The first one fails in step 4, and what it had written after the checkpoint comes again."""
    log, data = tmp_path / "lightning.db", loader(N * 3)
    saving = ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=3, save_top_k=-1)
    watch, model = CockpitCallback(tracked(), log=log), Classifier()
    model.fail_at = 4
    with pytest.raises(RuntimeError, match="as planned"):
        trainer(tmp_path, saving, watch, max_epochs=2).fit(model, data)
    assert list(open_run(log).series("Loss").index) == [0, 1, 2, 3]
    second = trainer(tmp_path, saving, CockpitCallback(tracked(), log=log), max_epochs=2)
    second.fit(Classifier(), data, ckpt_path=tmp_path / "saved" / "step=3.ckpt")
    train(tmp_path / "plain.db", [*batches(N * 3, N), *batches(N * 3, N)])
    assert_same_run(log, tmp_path / "plain.db", without=["epoch_count"])


def test_a_fit_goes_on_from_a_checkpoint_saved_after_one(tmp_path: Path) -> None:
    log, data = tmp_path / "lightning.db", loader(N * 3)
    first = trainer(tmp_path, CockpitCallback(tracked(), log=log))
    first.fit(Classifier(), data)
    first.save_checkpoint(tmp_path / "first.ckpt")
    second = trainer(tmp_path, CockpitCallback(tracked(), log=log), max_epochs=2)
    second.fit(Classifier(), data, ckpt_path=tmp_path / "first.ckpt")
    train(tmp_path / "plain.db", [*batches(N * 3, N), *batches(N * 3, N)])
    assert_same_run(log, tmp_path / "plain.db", without=["epoch_count"])


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    watch, model = CockpitCallback(tracked(), log=tmp_path / "run.db"), Classifier()
    model.fail_at = 3
    with pytest.raises(RuntimeError, match="as planned"):
        trainer(tmp_path, watch).fit(model, loader(N * STEPS))
    assert hooks(model) == 0
    assert list(open_run(tmp_path / "run.db").series("Loss").index) == [0, 1, 2]


def test_an_exception_in_the_backward_pass_comes_through(tmp_path: Path) -> None:
    class Failing(Classifier):
        def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
            super().backward(loss, *args, **kwargs)
            if self.global_step == 2:
                raise RuntimeError("as planned")

    watch, model = CockpitCallback(tracked(), log=tmp_path / "run.db"), Failing()
    with pytest.raises(RuntimeError, match="as planned"):
        trainer(tmp_path, watch).fit(model, loader(N * STEPS))
    assert hooks(model) == 0
    assert list(open_run(tmp_path / "run.db").series("Loss").index) == [0, 1]
    model = Classifier()  # the same callback, anew
    trainer(tmp_path, watch).fit(model, loader(N * STEPS))
    assert list(open_run(tmp_path / "run.db").series("Loss").index) == list(range(STEPS))


def test_a_batch_without_a_loss_makes_its_step_incomplete(tmp_path: Path) -> None:
    watch, model = CockpitCallback([quantities.NormTest()], log=tmp_path / "run.db"), Classifier()
    model.skip = {3}
    with (
        pytest.warns(UserWarning, match="`training_step` returned `None`"),
        pytest.warns(CockpitWarning, match="Step 1 was not checked: only 1 of 2 micro-batches"),
    ):
        trainer(tmp_path, watch, accumulate_grad_batches=2).fit(model, loader(6 * N))
    assert list(open_run(tmp_path / "run.db").series("NormTest").index) == [0, 2]


def test_an_optimizer_that_evaluates_several_times_is_watched_once_a_step(tmp_path: Path) -> None:
    class Exact(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), max_iter=3)

    watch = CockpitCallback([quantities.Loss(), quantities.UpdateSize()], log=tmp_path / "run.db")
    trainer(tmp_path, watch).fit(Exact(), loader(3 * N))
    run = open_run(tmp_path / "run.db")
    assert list(run.series("Loss").index) == [0, 1, 2]
    x, y = samples(N)
    assert run.series("Loss")[0] == pytest.approx(F.cross_entropy(network()(x), y).item())


def test_missing_losses_are_asked_for(tmp_path: Path) -> None:
    watch = CockpitCallback("economy", log=tmp_path / "run.db")
    with pytest.warns(
        CockpitWarning, match=r"Alpha was not checked: it needs 'individual_losses'.*training_step"
    ):
        trainer(tmp_path, watch).fit(Classifier(give_losses=False), loader(N))


def test_without_losses_the_batch_says_how_many_samples_there_are(tmp_path: Path) -> None:
    chosen = [quantities.NormTest(), quantities.GradientNoiseScale()]
    watch = CockpitCallback(chosen, log=tmp_path / "lightning.db")
    trainer(tmp_path, watch).fit(Classifier(give_losses=False), loader(N * STEPS))
    train(tmp_path / "plain.db", batches(N * STEPS, N), chosen=chosen)
    assert_same_run(tmp_path / "lightning.db", tmp_path / "plain.db", without=["epoch_count"])


class Manual(Classifier):
    """Two optimizers, which only manual optimization allows, and the way that the message shows."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.path = log

    def configure_optimizers(self) -> Any:
        first, *_, last = self.children()
        return sgd(first.parameters()), sgd(last.parameters())

    def on_train_start(self) -> None:
        model, optimizers = self.trainer.strategy.model, self.trainer.optimizers
        self.watch = Cockpit(model, tracked(), optimizer=optimizers, log=self.path)

    def on_train_end(self) -> None:
        self.watch.close()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        loss = losses.mean()
        for opt in self.optimizers():
            opt.zero_grad()
        with self.watch(batch_idx, loss=loss, individual_losses=losses):
            self.manual_backward(loss)
        for opt in self.optimizers():
            opt.step()


def test_manual_optimization_is_refused_with_a_way_out_that_works(tmp_path: Path) -> None:
    with pytest.raises(CockpitError, match=r"Manual optimizes manually.*manual_backward"):
        trainer(tmp_path, CockpitCallback()).fit(Manual(tmp_path / "no.db"), loader(N))
    trainer(tmp_path).fit(Manual(tmp_path / "manual.db"), loader(2 * N))
    train(tmp_path / "plain.db", batches(2 * N, N))
    assert_same_run(
        tmp_path / "manual.db", tmp_path / "plain.db", without=["learning_rate", "CABS"]
    )


def test_the_run_file_is_where_the_trainer_logs(tmp_path: Path) -> None:
    watch = CockpitCallback([quantities.Loss()])
    trainer(tmp_path, watch).fit(Classifier(), loader(N))
    np.testing.assert_array_equal(open_run(tmp_path / "cockpit.db").series("Loss").index, [0])


def test_spread_parameters_are_refused() -> None:
    class FSDPStrategy:
        pass

    spread = SimpleNamespace(strategy=FSDPStrategy())
    with pytest.raises(CockpitError, match="needs whole parameters, which FSDPStrategy gives"):
        CockpitCallback().on_fit_start(spread, Classifier())
