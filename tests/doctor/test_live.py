"""The doctor beside a training: what it does with findings, and that it leaves the training alone."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from doctor.trainings import MODELS, OPTIMIZERS, batch, codes, cross_entropy, train
from torch import nn

from cockpit import Cockpit, CockpitWarning, Finding, configuration, open_run
from cockpit.doctor import RULES, Record, Rule, TrainingStopped, diagnose
from cockpit.doctor.record import HEAD, TAIL
from cockpit.errors import InvalidArgument, InvalidType
from cockpit.log import Row

FAULT: dict[str, Any] = {"zero": lambda step: False}
"""Gradients that are not zeroed, CP206."""


def test_a_finding_is_written_once_and_warned_of_once(tmp_path: Path) -> None:
    with pytest.warns(CockpitWarning, match="CP206") as caught:
        train(tmp_path / "run.db", doctor=True, **FAULT)
    assert len(caught) == 1
    written = open_run(tmp_path / "run.db").finding_records()
    assert [finding.code for finding in written] == ["CP206"]
    assert diagnose(tmp_path / "run.db").findings[0].step == written[0].step == 1


def test_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cockpit"):
        train(tmp_path / "run.db", doctor=True, on_finding="log", **FAULT)
    assert sum("CP206" in message for message in caplog.messages) == 1


def test_functions_get_the_finding_and_may_fail(tmp_path: Path) -> None:
    got: list[Finding] = []

    def broken(finding: Finding) -> None:
        raise ValueError("no mail server")

    with pytest.warns(CockpitWarning, match="broken failed .*no mail server.*goes on"):
        train(tmp_path / "run.db", doctor=True, on_finding=[got.append, broken], **FAULT)
    assert [finding.code for finding in got] == ["CP206"]


@pytest.mark.filterwarnings("ignore:Step 1. LostUpdates was not checked")  # no update comes
@pytest.mark.parametrize("word", ["raise", "stop"])
def test_the_training_is_stopped_after_the_backward_pass(tmp_path: Path, word: str) -> None:
    with pytest.raises(TrainingStopped, match="CP206") as caught:
        train(tmp_path / "run.db", doctor=True, on_finding=word, **FAULT)
    assert caught.value.finding.step == 1
    run = open_run(tmp_path / "run.db")
    assert [finding.code for finding in run.finding_records()] == ["CP206"]
    assert run.steps[-1] == 1  # what was tracked is there, and nothing came after
    assert run.status == "closed"


def test_a_rule_that_fails_is_reported_once_and_hides_no_other(tmp_path: Path) -> None:
    def check(run: Record) -> None:
        raise KeyError("gone")

    texts = dict.fromkeys(("title", "why", "action", "source"), "x")
    rule = Rule(code="CP999", name="broken", severity="note", needs=(), check=check, **texts)
    with pytest.warns(CockpitWarning) as caught:
        train(tmp_path / "run.db", doctor=[rule, *RULES], **FAULT)
    messages = [str(one.message) for one in caught]
    assert sum("CP999 broken: the rule failed (KeyError: 'gone')" in m for m in messages) == 1
    assert sum("CP206" in m for m in messages) == 1


def trained(doctor: bool, path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    model = MODELS["cnn"]()
    opt = OPTIMIZERS["adamw"](model.parameters())
    with Cockpit(model, configuration("health"), optimizer=opt, log=path, doctor=doctor) as watch:
        for step in range(12):
            x, y = batch("cnn")
            opt.zero_grad()
            losses = cross_entropy(model(x), y)
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            opt.step()
    return model.state_dict()


def test_the_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    with_doctor, without = trained(True, tmp_path / "a.db"), trained(False, tmp_path / "b.db")
    assert all(torch.equal(with_doctor[name], without[name]) for name in without)


def test_the_facts_are_tracked_without_being_asked_for(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CockpitWarning)
        few = configuration("economy", lambda step: step % 5 == 0)
        diagnosis = train(
            tmp_path / "run.db",
            quantities=few,
            doctor=True,
            change=lambda model: nn.Sequential(model, nn.Softmax(dim=1)),
        )
    assert "CP301" in codes(diagnosis)
    run = open_run(tmp_path / "run.db")
    assert run.curve("Wiring", "loss/after_softmax")[0].tolist() == [0, 1, 2]
    assert run.curve("Wiring", "modes/training")[0].tolist() == [0, 1, 2, 5, 10]


def test_a_resumed_run_is_not_told_again(tmp_path: Path) -> None:
    def piece(steps: range, state: dict[str, Any] | None) -> dict[str, Any]:
        torch.manual_seed(0)
        model = MODELS["mlp"]()
        opt = OPTIMIZERS["sgd"](model.parameters())
        watch = Cockpit(
            model,
            configuration("health"),
            optimizer=opt,
            log=tmp_path / "run.db",
            resume=state is not None,
            doctor=True,
        )
        if state is not None:
            watch.load_state_dict(state)
        for step in steps:
            x, y = batch("mlp")
            losses = cross_entropy(model(x).softmax(1), y)
            loss = losses.mean()
            opt.zero_grad()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            opt.step()
        end = watch.state_dict()
        watch.close()
        return end

    with pytest.warns(CockpitWarning, match="CP301"):
        state = piece(range(5), None)
    piece(range(5, 10), state)  # a warning would be an error
    assert [f.code for f in open_run(tmp_path / "run.db").finding_records()] == ["CP301"]


def test_trackers_hear_of_findings(tmp_path: Path) -> None:
    class Heard:
        def __init__(self) -> None:
            self.events: list[tuple[Any, ...]] = []

        def scalars(self, step: int, values: Any) -> None: ...

        def histogram(self, step: int, name: str, counts: Any, edges: Any) -> None: ...

        def event(self, *event: Any) -> None:
            self.events.append(event)

        def close(self) -> None: ...

    heard = Heard()
    train(tmp_path / "run.db", doctor=True, on_finding="log", trackers=[heard], **FAULT)
    assert [event[2] for event in heard.events] == ["CP206 gradients-not-zeroed"]


def test_what_is_kept_of_a_long_run_is_bounded() -> None:
    record = Record(bounded=True)
    for step in range(5000):
        record.add(step, [Row("Loss", float(step))])
    curve = record.curve("Loss")
    assert curve is not None
    assert len(curve.steps) <= HEAD + 2 * TAIL
    assert len(curve.steps) >= HEAD + TAIL
    assert curve.steps[0] == 0
    assert curve.steps[-1] == 4999
    assert (curve.steps == curve.values).all()


def test_misuse_is_refused_by_name() -> None:
    model = MODELS["mlp"]()
    with pytest.raises(InvalidType, match=r"doctor= takes True or a list of rules.*RULES"):
        Cockpit(model, doctor=["CP206"])
    with pytest.raises(InvalidArgument, match=r"on_finding=.mail. is none\. Give .log., .warn."):
        Cockpit(model, doctor=True, on_finding="mail")
    with pytest.raises(InvalidArgument, match="give doctor=True as well"):
        Cockpit(model, on_finding="raise")
    with pytest.raises(InvalidType, match="on_finding takes words and functions"):
        Cockpit(model, doctor=True, on_finding=[3])
