"""The frameworks on two processes, against a plain loop of one process over the joined batches.

Two processes are started once for everything. They train in float64, so that only the order of sums
tells their numbers from those of one process.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from integrations import plain, processes, test_accelerate, test_transformers
from integrations.plain import STEPS, N, assert_same_run, train
from integrations.processes import (
    PASSES,
    WORLD,
    Report,
    Scaled,
    of_gpt,
    of_networks,
    samples_of,
)
from torch import Tensor

from cockpit import Cockpit, CockpitError, open_run, quantities
from cockpit.integrations.lightning import CockpitCallback


class Ran(NamedTuple):
    """What two processes have left.

    Args:
        folder: The first one's.
        reports: What each of them tells.
    """

    folder: Path
    reports: list[Report]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("processes")
    reports = processes.started(folder)
    return Ran(folder / "0", reports)


def joined(passes: int, steps: int = STEPS, *, dealt: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of all processes together, in the order of these.

    Args:
        passes: Backward passes of a step.
        steps: Number of steps.
        dealt: Whether the processes take their samples in turn, rather than each its share at once.
    """
    batches = test_accelerate.batches(samples_of(passes, steps), N * WORLD * passes)
    if not dealt:
        return list(batches)
    return [
        tuple(torch.cat([part[rank::WORLD] for rank in range(WORLD)]) for part in batch)
        for batch in batches
    ]


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_the_numbers_are_those_of_one_process_on_the_joined_batch(
    framework: str, passes: int, ran: Ran, tmp_path: Path
) -> None:
    batches = joined(passes, dealt=framework == "lightning")
    model = train(tmp_path / "plain.db", batches, chosen=of_networks(passes))
    log = ran.folder / f"{framework}-{passes}.db"
    assert_same_run(log, tmp_path / "plain.db", without=["epoch_count"])
    for report in ran.reports:
        for one, other in zip(report[f"{framework}, {passes}"], model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("passes", PASSES)
def test_the_trainer_of_transformers_weighs_all_tokens_of_the_joined_batch(
    passes: int, ran: Ran, tmp_path: Path
) -> None:
    """The training with one pass a step went on from a checkpoint, in the same run file."""
    n = samples_of(passes, test_transformers.STEPS, test_transformers.N)
    batches = test_transformers.batches(n, test_transformers.N * WORLD * passes)
    model = test_transformers.train(tmp_path / "plain.db", batches, of_gpt())
    log = ran.folder / f"transformers-{passes}.db"
    assert_same_run(log, tmp_path / "plain.db", without=test_transformers.LOGGED)
    for report in ran.reports:
        for one, other in zip(report[f"transformers, {passes}"], model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


def test_the_trainer_of_transformers_with_its_own_loss(ran: Ran) -> None:
    """Which comes to the same, in the precision of the model's own loss."""
    log, other = ran.folder / "transformers-own.db", ran.folder / "transformers-2.db"
    without = [*test_transformers.LOGGED, "Alpha", "CABS"]
    assert_same_run(log, other, rtol=test_transformers.OWN_LOSS, without=without)


def test_a_parameter_of_the_lightning_module_itself_is_tracked(ran: Ran, tmp_path: Path) -> None:
    """Its module is called for the training step, and in that for its forward pass."""
    batches = joined(1, dealt=True)
    train(tmp_path / "plain.db", batches, chosen=[quantities.NormTest()], model=Scaled())
    log = ran.folder / "lightning-own.db"
    assert_same_run(log, tmp_path / "plain.db", without=["epoch_count"])
    assert open_run(log).events().empty


def test_manual_optimization_as_the_message_shows_it(ran: Ran, tmp_path: Path) -> None:
    model = plain.network()
    opt = plain.sgd(model.parameters())
    watch = Cockpit(model, plain.tracked(), optimizer=opt, log=tmp_path / "plain.db")
    for step, (x, y) in enumerate(joined(1, dealt=True)):
        opt.zero_grad()
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        opt.step()
    watch.close()
    log = ran.folder / "lightning-manual.db"
    assert_same_run(log, tmp_path / "plain.db", without=["CABS"])


def test_a_resumed_fit_goes_on_in_the_run_file(ran: Ran, tmp_path: Path) -> None:
    batches = joined(1, STEPS // 2, dealt=True)
    train(tmp_path / "plain.db", 2 * batches, chosen=plain.tracked())
    log = ran.folder / "lightning-resumed.db"
    assert_same_run(log, tmp_path / "plain.db", without=["epoch_count"])


def test_training_is_bit_identical_and_leaves_no_hooks(ran: Ran) -> None:
    for report in ran.reports:
        for passes in PASSES:
            watched = report[f"lightning, {passes}"]
            for one, other in zip(watched, report[f"lightning, {passes}, unwatched"], strict=True):
                assert torch.equal(one, other)
        assert report["hooks"] == 0


def test_only_the_first_process_writes(ran: Ran) -> None:
    first, second = ran.reports
    assert len(first["written"]) == 10
    assert second["written"] == []


def test_parameters_have_the_names_that_they_have_in_one_process(ran: Ran) -> None:
    names = [name for name, _ in plain.network().named_parameters()]
    for framework in ("accelerate", "lightning"):
        assert list(open_run(ran.folder / f"{framework}-1.db").parameters) == names
    names = [name for name, _ in test_transformers.network().named_parameters()]
    assert list(open_run(ran.folder / "transformers-1.db").parameters) == names


def test_a_model_that_was_not_prepared_is_refused_on_every_process(ran: Ran) -> None:
    for report in ran.reports:
        assert (
            "needs the model in DistributedDataParallel, got Sequential" in report["not prepared"]
        )
        assert "that accelerator.prepare(model) has returned" in report["not prepared"]


def test_other_strategies_with_several_processes_are_refused() -> None:
    class OfOnesOwn:
        model = plain.network()

    trainer = SimpleNamespace(strategy=OfOnesOwn(), world_size=2, log_dir=None)
    with pytest.raises(CockpitError, match=r"OfOnesOwn does not put it in.*strategy 'ddp'"):
        CockpitCallback().on_train_start(trainer, OfOnesOwn.model)
