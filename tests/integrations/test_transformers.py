"""Transformers' trainer with the mixin, on a tiny GPT-2, against a plain loop over the same batches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from integrations.plain import assert_same_parameters, assert_same_run, hooks
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from cockpit import Cockpit, CockpitError, CockpitWarning, open_run, quantities
from cockpit.integrations.transformers import CockpitTrainerMixin

N, STEPS, LENGTH, WORDS = 4, 4, 7, 13

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator:UserWarning")


class WatchedTrainer(CockpitTrainerMixin, Trainer):
    pass


def network() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=8,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).double()


def data(n: int) -> list[dict[str, Tensor]]:
    """Sequences of which some have fewer labels than others, as padding makes them."""
    generator = torch.Generator().manual_seed(1)
    samples = []
    for i in range(n):
        ids = torch.randint(WORDS, (LENGTH,), generator=generator)
        labels = ids.clone()
        labels[0] = -100  # nothing comes before it that it could be predicted from
        labels[LENGTH - i % 4 :] = -100
        # With one row of positions for all samples, their embedding would have no individual gradients.
        samples.append({"input_ids": ids, "position_ids": torch.arange(LENGTH), "labels": labels})
    return samples


def batches(n: int, size: int) -> list[dict[str, Tensor]]:
    samples = data(n)
    return [
        {key: torch.stack([s[key] for s in samples[i : i + size]]) for key in samples[0]}
        for i in range(0, n, size)
    ]


def tracked() -> list[quantities.Quantity]:
    return [
        quantities.Distance(),
        quantities.GradNorm(),
        quantities.GradientNoiseScale(),
        quantities.InnerTest(),
        quantities.Loss(),
        quantities.NormTest(),
        quantities.PerSampleOutliers(k=N),
        quantities.UpdateSize(),
    ]


def losses_of_samples(logits: Tensor, labels: Tensor, tokens: Tensor | int) -> Tensor:
    """Return losses whose mean over the batch is that over all its tokens, [N]."""
    per_token = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return per_token.sum(1) * len(labels) / tokens


def train(
    log: Path, loops: list[dict[str, Tensor]], chosen: list[Any], clip: float = 1.0
) -> nn.Module:
    """Train in a plain loop, a step for each batch, the loss a mean over all tokens of a batch."""
    model = network()
    model.train()
    opt = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 - step / len(loops))
    watch = Cockpit(model, chosen, optimizer=opt, log=log)
    for step, batch in enumerate(loops):
        labels = batch["labels"]
        logits = model(batch["input_ids"], position_ids=batch["position_ids"]).logits
        losses = losses_of_samples(logits, labels, (labels[:, 1:] != -100).sum())
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        schedule.step()
        opt.zero_grad()
    watch.close()
    return model


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": N,
        "per_device_eval_batch_size": 2 * N,
        "learning_rate": 0.01,
        "num_train_epochs": 1,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "seed": 0,
    }
    return TrainingArguments(**{**settings, **more})


class InOrder(WatchedTrainer):
    """Takes the samples as they come."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(
    folder: Path, n: int, chosen: list[Any], kind: type[Trainer] = InOrder, **more: Any
) -> Any:
    given = {"quantities": chosen, "log": folder / "trainer.db"}
    return kind(
        network(),
        arguments(folder, **more),
        train_dataset=data(n),
        eval_dataset=data(N),
        cockpit=given,
    )


class WithLosses(InOrder):
    """Leaves the losses of the samples, as the documentation shows."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        logits = model(inputs["input_ids"], position_ids=inputs["position_ids"]).logits
        tokens = num_items_in_batch
        if tokens is None:
            tokens = (inputs["labels"][:, 1:] != -100).sum()
        losses = losses_of_samples(logits, inputs["labels"], tokens)
        if num_items_in_batch is not None:  # of all processes
            losses = losses * self.accelerator.num_processes
        self.individual_losses = losses
        loss = losses.mean()
        return (loss, {"logits": logits}) if return_outputs else loss


OWN_LOSS = 1e-5
"""Relative tolerance where the model computes the loss: GPT-2 does so in float32."""

LOGGED = ["epoch_count", "train_loss", "valid_loss", "learning_rate", "grad_norm"]


@pytest.mark.parametrize(
    ("kind", "rtol"), [(WithLosses, 1e-9), (InOrder, OWN_LOSS)], ids=["given loss", "own loss"]
)
@pytest.mark.parametrize(("passes", "clip"), [(1, 1.0), (1, 0.1), (2, 1.0), (3, 0.1)])
def test_the_numbers_are_those_of_a_plain_loop(
    tmp_path: Path, kind: type[Trainer], rtol: float, passes: int, clip: float
) -> None:
    """Where batches accumulate, the loss is the mean over the tokens of all of them."""
    n = N * passes * STEPS
    chosen = tracked()
    if kind is WithLosses:
        chosen += [quantities.Alpha(), quantities.CABS()]
    more = {"gradient_accumulation_steps": passes, "max_grad_norm": clip}
    watched = trainer(tmp_path, n, chosen, kind, **more)
    watched.train()
    train(tmp_path / "plain.db", batches(n, N * passes), chosen, clip)
    assert_same_run(tmp_path / "trainer.db", tmp_path / "plain.db", rtol=rtol, without=LOGGED)
    assert hooks(watched.model) == 0
    assert "backward" not in vars(watched.accelerator)


def test_training_is_as_without_the_mixin(tmp_path: Path) -> None:
    models = []
    for chosen in ([], tracked()):
        watched = trainer(tmp_path, 3 * N * STEPS, chosen, gradient_accumulation_steps=3)
        watched.train()
        models.append(watched.model)

    class Plain(Trainer):
        _get_train_sampler = InOrder._get_train_sampler

    model = network()
    settings = arguments(tmp_path, gradient_accumulation_steps=3)
    Plain(model, settings, train_dataset=data(3 * N * STEPS)).train()
    assert_same_parameters(models[0], model)
    assert_same_parameters(models[1], model)


def test_the_last_batches_of_an_epoch_may_be_fewer(tmp_path: Path) -> None:
    watched = trainer(tmp_path, 6 * N, tracked(), WithLosses, gradient_accumulation_steps=4)
    watched.train()
    first, last = batches(4 * N, 4 * N), batches(6 * N, 2 * N)[2:]
    train(tmp_path / "plain.db", first + last, tracked())
    assert_same_run(tmp_path / "trainer.db", tmp_path / "plain.db", without=LOGGED)


def test_missing_losses_are_asked_for(tmp_path: Path) -> None:
    with pytest.warns(
        CockpitWarning, match=r"Alpha was not checked: it needs 'individual_losses'.*compute_loss"
    ):
        trainer(tmp_path, N, [quantities.Alpha()]).train()


def test_what_the_trainer_logs_is_logged(tmp_path: Path) -> None:
    watched = trainer(
        tmp_path,
        N * STEPS,
        tracked(),
        WithLosses,
        logging_strategy="steps",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
    )
    watched.train()
    run = open_run(tmp_path / "trainer.db")
    train(tmp_path / "plain.db", batches(N * STEPS, N), tracked())
    assert_same_run(tmp_path / "trainer.db", tmp_path / "plain.db", without=LOGGED)
    assert list(run.series("valid_loss").index) == [1, 3]
    np.testing.assert_allclose(run.series("train_loss"), run.series("Loss"), rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(run.series("learning_rate"), [0.01, 0.0075, 0.005, 0.0025])


def test_a_resumed_training_goes_on_in_the_run_file(tmp_path: Path) -> None:
    class Failing(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise RuntimeError("as planned")

    saving = {"save_strategy": "steps", "save_steps": 2}
    first = trainer(tmp_path, N * STEPS, tracked(), WithLosses, **saving)
    first.add_callback(Failing())
    with pytest.raises(RuntimeError, match="as planned"):
        first.train()
    assert list(open_run(tmp_path / "trainer.db").series("Loss").index) == [0, 1, 2]
    second = trainer(tmp_path, N * STEPS, tracked(), WithLosses, **saving)
    second.train(resume_from_checkpoint=True)
    train(tmp_path / "plain.db", batches(N * STEPS, N), tracked())
    assert_same_run(tmp_path / "trainer.db", tmp_path / "plain.db", without=LOGGED)


@pytest.mark.parametrize("where", ["loss", "backward"])
def test_an_exception_leaves_nothing_behind(tmp_path: Path, where: str) -> None:
    class Failing(InOrder):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            if self.state.global_step == 2:
                if where == "loss":
                    raise RuntimeError("as planned")
                loss.register_hook(self.fail)
            return loss

        @staticmethod
        def fail(grad: Tensor) -> None:
            raise RuntimeError("as planned")

    watched = trainer(tmp_path, N * STEPS, tracked(), Failing)
    with pytest.raises(RuntimeError, match="as planned"):
        watched.train()
    assert hooks(watched.model) == 0
    assert "backward" not in vars(watched.accelerator)
    assert list(open_run(tmp_path / "trainer.db").series("Loss").index) == [0, 1]


def test_bfloat16(tmp_path: Path) -> None:
    chosen = [quantities.Loss(), quantities.NormTest()]
    watched = trainer(tmp_path, 2 * N * STEPS, chosen, bf16=True, gradient_accumulation_steps=2)
    watched.model.float()
    watched.train()
    train(tmp_path / "plain.db", batches(2 * N * STEPS, 2 * N), chosen)
    found, expected = open_run(tmp_path / "trainer.db"), open_run(tmp_path / "plain.db")
    for name in ("Loss", "NormTest"):
        assert list(found.series(name)) == pytest.approx(list(expected.series(name)), rel=0.1)


def test_several_devices_in_one_process_are_refused(tmp_path: Path) -> None:
    watched = trainer(tmp_path, N, tracked())
    with pytest.raises(CockpitError, match=r"cannot see into torch.nn.DataParallel.*torchrun"):
        watched.callback_handler.on_train_begin(
            SimpleNamespace(n_gpu=2), watched.state, watched.control
        )
