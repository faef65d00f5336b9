"""Bad input: a clear error that names the thing and the way out, by its wording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import (
    BatchGradTransforms,
    Cockpit,
    CockpitError,
    CockpitWarning,
    configuration,
    open_run,
    schedules,
)
from cockpit.quantities import Alpha, GradHist1d, Loss, NormTest


def model() -> nn.Module:
    return nn.Linear(3, 2)


def losses(net: nn.Module, n: int = 4) -> Tensor:
    return F.cross_entropy(net(torch.randn(n, 3)), torch.randint(2, (n,)), reduction="none")


CONSTRUCTION: dict[str, tuple[Any, str]] = {
    "frozen parameter": (
        lambda: Cockpit([("head.weight", torch.zeros(2, 3))]),
        r"Parameter 'head.weight' of shape \[2, 3\] has requires_grad=False.*Leave it out, or pass the model itself",
    ),
    "frozen model": (
        lambda: Cockpit(model().requires_grad_(False)),
        r"None of the 2 parameters of Linear requires a gradient.*Set requires_grad=True",
    ),
    "no parameters": (
        lambda: Cockpit(nn.ReLU()),
        r"ReLU has no parameters, so there is nothing to track",
    ),
    "used-up iterator": (
        lambda: Cockpit(iter(())),
        r"the iterable is empty. An iterator such as model.parameters\(\) can be read only once; pass the model itself",
    ),
    "a tensor": (
        lambda: Cockpit(torch.zeros(3)),
        r"takes a torch.nn.Module.*Pass the model itself",
    ),
    "state dict": (
        lambda: Cockpit(model().state_dict()),
        r"takes a torch.nn.Module.*got OrderedDict",
    ),
    "no tensors": (lambda: Cockpit([1, 2]), r"entry 0 is int: 1. Pass the model itself"),
    "no quantity": (
        lambda: Cockpit(model(), ["NormTest"]),
        r"instances of cockpit.quantities.Quantity such as NormTest\(\), got str: 'NormTest'",
    ),
    "class of a quantity": (
        lambda: Cockpit(model(), [NormTest]),
        r"NormTest is a class; give an instance of it: NormTest\(\)",
    ),
    "quantity twice": (
        lambda: Cockpit(model(), [Loss(), Loss()]),
        r"Loss was given twice with the same settings",
    ),
    "no optimizer": (
        lambda: Cockpit(model(), optimizer="sgd"),
        r"optimizer must be a torch.optim.Optimizer or a list of them, got str: 'sgd'",
    ),
    "reduction": (
        lambda: Cockpit(model(), reduction="avg"),
        r"reduction must be 'mean', 'sum' or None, got 'avg'",
    ),
    "memory budget": (
        lambda: Cockpit(model(), memory_budget=0),
        r"positive number of bytes, got 0",
    ),
    "configuration": (
        lambda: configuration("everything"),
        r"There is no configuration 'everything'. Choose from 'economy'",
    ),
    "bins": (lambda: GradHist1d(bins=0), r"at least 1 bin, got bins=0"),
    "range": (lambda: GradHist1d(range=(1, -1)), r"low < high, got range=\(1, -1\)"),
    "samples": (
        lambda: GradHist1d(samples=0),
        r"samples of at least 1, or None for all, got samples=0",
    ),
    "interval": (lambda: schedules.linear(0), r"interval must be a positive integer, got 0"),
    "offset": (lambda: schedules.linear(1, -1), r"offset must be an integer of at least 0, got -1"),
    "at one step": (lambda: schedules.at(3), r"at takes several steps, got 3. Write at\(\[3\]\)"),
    "logarithmic": (
        lambda: schedules.logarithmic(2, 1),
        r"end must be at least start, got start=2 and end=1",
    ),
    "log base": (lambda: schedules.logarithmic(0, 1, base=0), r"base must be positive, got 0"),
    "log steps": (
        lambda: schedules.logarithmic(0, 1, steps=0),
        r"steps must be a positive integer, got 0",
    ),
    "combination": (
        lambda: schedules.linear(1) | 3,
        r"Schedules combine with schedules or other callables.*got 3",
    ),
    "transforms": (
        lambda: BatchGradTransforms({"x": 3}),
        r"dict from names to functions.*got 'x': 3",
    ),
    "transforms' reduction": (
        lambda: BatchGradTransforms({}, reduction="none"),
        r"reduction must be 'mean' or 'sum', got 'none'",
    ),
}


@pytest.mark.parametrize("case", CONSTRUCTION)
def test_construction(case: str) -> None:
    make, message = CONSTRUCTION[case]
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        make()
    assert isinstance(caught.value, CockpitError)


INFO: dict[str, tuple[Any, str]] = {
    "no loss": (
        lambda net: {"individual_losses": losses(net)},
        r"needs 'loss', which is missing: pass it as watch\(step, loss=\.\.\.\) or in info=.*backward\(\) is called",
    ),
    "loss of several elements": (
        lambda net: {"loss": (value := losses(net)), "individual_losses": value},
        r"'loss' must have one element, got a tensor of shape \[4\].*losses.mean\(\)",
    ),
    "loss that is no tensor": (
        lambda net: {"loss": "low", "individual_losses": losses(net)},
        r"'loss' must be the tensor on which backward\(\) is called, got str: 'low'",
    ),
    "individual losses of the wrong length": (
        lambda net: {"loss": (value := losses(net)).mean(), "individual_losses": value[:3]},
        r"'individual_losses' has 3 entries, but the batch has 4 samples.*batch_size=",
    ),
    "individual losses against the batch size": (
        lambda net: {
            "loss": (value := losses(net)).mean(),
            "individual_losses": value,
            "batch_size": 5,
        },
        r"'individual_losses' has 4 entries, but the batch has 5 samples",
    ),
    "individual losses of two dimensions": (
        lambda net: {"loss": (value := losses(net)).mean(), "individual_losses": value[:, None]},
        r"one dimension, the samples, got shape \[4, 1\].*flatten\(1\).mean\(1\)",
    ),
    "individual losses that are no tensor": (
        lambda net: {"loss": losses(net).mean(), "individual_losses": [1.0]},
        r"must be a tensor with the loss of every sample, got list: \[1.0\]",
    ),
    "optimizer": (
        lambda net: {
            "loss": (value := losses(net)).mean(),
            "individual_losses": value,
            "optimizer": 1,
        },
        r"optimizer must be a torch.optim.Optimizer",
    ),
}


@pytest.mark.parametrize("case", INFO)
def test_info(case: str) -> None:
    """Raised on entry, before the backward pass, and the next step works."""
    make, message = INFO[case]
    net = model()
    watch = Cockpit(net, [Alpha(), NormTest()])
    entered = False
    with pytest.raises((ValueError, TypeError), match=message), watch(0, info=make(net)):
        entered = True
    assert not entered
    value = losses(net)
    loss = value.mean()
    with watch(0, loss=loss, individual_losses=value):
        loss.backward()
    assert "NormTest" in watch.get_output()[0]


def test_without_individual_losses_the_other_quantities_go_on() -> None:
    net = model()
    watch = Cockpit(net, [Alpha(), NormTest()])
    message = (
        r"Alpha was not checked: it needs 'individual_losses', which is missing.*reduction=\"none\""
        r".*Given were \['loss'\]"
    )

    def train() -> None:
        for step in range(3):
            loss = losses(net).mean()
            with watch(step, loss=loss):
                loss.backward()

    with pytest.warns(CockpitWarning, match=message) as caught:
        train()
    assert [warning.filename for warning in caught] == [__file__]
    assert all(set(values) == {"NormTest"} for values in watch.get_output().values())


def test_without_individual_losses_strict_raises_on_entry() -> None:
    net = model()
    watch = Cockpit(net, [Alpha(), NormTest()], strict=True)
    message = r"Alpha needs 'individual_losses', which is missing"
    with pytest.raises(ValueError, match=message), watch(0, loss=losses(net).mean()):
        raise AssertionError("entered")


def test_a_schedule_that_returns_no_bool() -> None:
    net = model()
    watch = Cockpit(net, [Loss(lambda step: None)])
    with (
        pytest.raises(
            TypeError, match=r"returned None for step 3, which is no bool.*cockpit.schedules.linear"
        ),
        watch(3, loss=losses(net).mean()),
    ):
        pass


@pytest.mark.parametrize(
    ("second", "message"), [(5, "Step 5 comes after step 5"), (4, "Step 4 comes after step 5")]
)
def test_a_step_tracked_twice(second: int, message: str) -> None:
    net = model()
    watch = Cockpit(net, [Loss()])
    for step in (5, second):
        loss = losses(net).mean()
        if step == 5 and not watch.get_output():
            with watch(step, loss=loss):
                loss.backward()
        else:
            with (
                pytest.raises(
                    ValueError, match=f"{message}, which was tracked already.*have to grow"
                ),
                watch(step, loss=loss),
            ):
                pass


@pytest.mark.parametrize(
    ("step", "message"),
    [(-1, "must be at least 0, got -1"), (1.5, "must be an integer, got float: 1.5")],
)
def test_the_number_of_the_step(step: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Cockpit(model(), [Loss()])(step)


def test_contexts_do_not_nest() -> None:
    net = model()
    watch = Cockpit(net, [Loss()])
    loss = losses(net).mean()
    with watch(0, loss=loss):
        with pytest.raises(CockpitError, match="Step 0 is still open"), watch(1, loss=loss):
            pass
        loss.backward()


def test_an_extension_that_is_none() -> None:
    net = model()
    watch = Cockpit(net, [Loss()])
    with (
        pytest.raises(TypeError, match=r"takes BackPACK extensions, such as BatchGradTransforms"),
        watch(0, "DiagGGN", loss=losses(net).mean()),
    ):
        pass


def test_an_extension_on_a_model_that_backpack_does_not_know() -> None:
    from backpack.extensions import DiagGGNExact

    net = model()
    watch = Cockpit(net, [Loss()])
    with (
        pytest.raises(
            ValueError, match=r"DiagGGNExact of BackPACK needs .* call backpack.extend\(model\)"
        ),
        watch(0, DiagGGNExact(), loss=losses(net).mean()),
    ):
        pass


def test_a_file_that_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("no run at all, but long enough to be read as a header of something")
    with pytest.raises(ValueError, match=r"notes\.db"):
        open_run(path)
    with pytest.raises(ValueError, match=r"missing\.db"):
        open_run(tmp_path / "missing.db")
