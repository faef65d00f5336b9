"""The cockpit in a training loop: what it records, and that it leaves the training alone."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backpack import backpack, extend, extensions
from torch import Tensor, nn
from training import MODELS, train

from cockpit import BatchGradTransforms, Cockpit, CockpitWarning, configuration, schedules
from cockpit.engine import Step
from cockpit.quantities import (
    Alpha,
    Distance,
    GradHist1d,
    GradNorm,
    InnerTest,
    Loss,
    NormTest,
    OrthoTest,
    Parameters,
    Quantity,
    Time,
    UpdateSize,
)
from cockpit.transforms import Dot, SquareNorms


def network(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(48, 4),
    )


def batch(n: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 6, 6), torch.randint(4, (n,))


def losses_of(model: nn.Module, n: int = 8) -> Tensor:
    x, y = batch(n)
    return F.cross_entropy(model(x), y, reduction="none")


def trained(watched: bool, steps: int = 20) -> dict[str, Any]:
    """Train with and without the cockpit; return all that the training leaves behind."""
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 - the global state is what is checked
    model = network(dropout=0.4)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = Cockpit(model, configuration("economy"), optimizer=opt) if watched else None
    for step in range(steps):
        opt.zero_grad()
        losses = losses_of(model)
        loss = losses.mean()
        if watch is None:
            loss.backward()
        else:
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
        opt.step()
    if watch is not None:
        watch.close()
    return {
        "model": model.state_dict(),
        "optimizer": opt.state_dict()["state"],
        "torch": torch.get_rng_state(),
        "numpy": torch.tensor(np.random.get_state()[1].astype(np.int64)),  # noqa: NPY002
    }


def test_the_training_is_bit_identical() -> None:
    plain, watched = trained(False), trained(True)
    for name, value in plain["model"].items():
        assert torch.equal(value, watched["model"][name]), name
    for key, state in plain["optimizer"].items():
        for name, value in state.items():
            assert torch.equal(value, watched["optimizer"][key][name]), name
    assert torch.equal(plain["torch"], watched["torch"])
    assert torch.equal(plain["numpy"], watched["numpy"])


def test_close_removes_every_hook() -> None:
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, configuration("economy"), optimizer=opt)
    assert any(m._forward_hooks for m in model.modules())
    losses = losses_of(model)
    loss = losses.mean()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    watch.close()
    watch.close()
    assert not any(m._forward_hooks for m in model.modules())
    assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())
    assert not opt._optimizer_step_post_hooks
    with pytest.raises(Exception, match="has been closed"), watch(1, loss=losses.mean()):
        pass


def test_the_cockpit_is_a_context_manager() -> None:
    model = network()
    with Cockpit(model, [Loss()]) as watch:
        loss = losses_of(model).mean()
        with watch(0, loss=loss):
            loss.backward()
    assert watch.get_output() == {0: {"Loss": pytest.approx(loss.item())}}
    assert not any(m._forward_hooks for m in model.modules())


def test_an_exception_passes_unmasked_and_leaves_the_cockpit_clean() -> None:
    model = network()
    watch = Cockpit(model, configuration("economy"))
    losses = losses_of(model)

    class Interrupted(Exception):
        pass

    with pytest.raises(Interrupted), watch(0, loss=losses.mean(), individual_losses=losses):
        raise Interrupted
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    losses = losses_of(model)
    with watch(0, loss=(loss := losses.mean()), individual_losses=losses):  # the same step, again
        loss.backward()
    assert set(watch.get_output()) == {0}


def test_an_exception_in_the_backward_pass_passes_unmasked() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ArithmeticError("no gradient today")

    model = nn.Linear(2, 2)
    watch = Cockpit(model, [NormTest()])
    loss = Broken.apply(model(torch.randn(3, 2))).sum()
    with pytest.raises(ArithmeticError, match="no gradient today"), watch(0, loss=loss):
        loss.backward()


def test_no_graph_is_kept() -> None:
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, configuration("economy"), optimizer=opt)
    losses = losses_of(model)
    loss = losses.mean()

    class Leaf:
        """Lives as long as the graph."""

    leaf = Leaf()
    losses.register_hook(lambda grad, leaf=leaf: None)
    node = weakref.ref(leaf)
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    opt.step()
    del losses, loss, leaf
    gc.collect()
    assert node() is None
    assert not watch.create_graph(0)


def test_dropping_the_cockpit_frees_it() -> None:
    model = network()
    watch = Cockpit(model, configuration("economy"))
    losses = losses_of(model)
    loss = losses.mean()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    gone = weakref.ref(watch)
    del watch
    gc.collect()
    assert gone() is None
    losses_of(model).mean().backward()  # the hooks that are left do nothing


@pytest.mark.parametrize("kind", MODELS)
def test_without_the_optimizer_the_update_is_seen_at_the_next_step(kind: str) -> None:
    everything = [Alpha(), UpdateSize(), Distance()]
    with_it = train(kind, everything, optimizer="momentum")[1]
    without = train(kind, everything, optimizer="momentum", optimizer_known=False)[1]
    for step in (0, 1, 2):
        assert without[step]["Alpha"] == pytest.approx(with_it[step]["Alpha"], rel=1e-12)
        assert without[step]["UpdateSize"] == pytest.approx(with_it[step]["UpdateSize"], rel=1e-12)


def test_without_an_update_nothing_has_moved() -> None:
    model = network()
    watch = Cockpit(model, [Alpha(), UpdateSize()])
    for step in range(2):
        losses = losses_of(model)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
    watch.close()
    first = watch.get_output()[0]
    assert first["Alpha"] == -1
    assert first["UpdateSize"] == [0.0] * 6


@pytest.mark.parametrize("factor", [1024.0, 1 / 3, -2.0])
def test_the_factor_on_the_loss_does_not_matter(factor: float) -> None:
    outputs = []
    for f in (1.0, factor):
        torch.manual_seed(0)
        model = network().double().eval()
        watch = Cockpit(model, [NormTest(), InnerTest(), OrthoTest(), GradHist1d(bins=99), Rows()])
        x, y = batch()
        losses = F.cross_entropy(model(x.double()), y, reduction="none")
        loss = losses.mean()
        with watch(0, loss=loss, individual_losses=losses):
            (loss * f).backward()
        outputs.append(watch.get_output()[0])
    plain, scaled = outputs
    for name in ("NormTest", "InnerTest", "OrthoTest"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-9)
    np.testing.assert_array_equal(scaled["GradHist1d"]["hist"], plain["GradHist1d"]["hist"])
    np.testing.assert_allclose(scaled["Rows"], plain["Rows"], rtol=1e-9)


@dataclass(frozen=True)
class Rows(Quantity):
    """‖g_i‖², as a user would write it."""

    norms = SquareNorms()

    def compute(self, step: Step) -> Tensor:
        return step[self.norms].total()


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_reduction_is_seen(reduction: str, connected: bool) -> None:
    """Also where the individual losses are computed beside the loss, or not at all but the user says what it is."""
    torch.manual_seed(0)
    model = network().eval().double()
    x, y = batch()
    outputs = []
    for arguments, give in (({}, True), ({"reduction": reduction}, False)):
        watch = Cockpit(model, [Rows()], **arguments)
        losses = F.cross_entropy(model(x.double()), y, reduction="none")
        loss = F.cross_entropy(model(x.double()), y, reduction=reduction)
        if connected:
            loss = losses.mean() if reduction == "mean" else losses.sum()
        info = {"loss": loss} | ({"individual_losses": losses} if give else {})
        with watch(0, info=info):
            loss.backward()
        outputs.append(watch.get_output()[0]["Rows"])
        watch.close()
    brute = []
    for i in range(8):
        grads = torch.autograd.grad(
            F.cross_entropy(model(x[i : i + 1].double()), y[i : i + 1]), list(model.parameters())
        )
        brute.append(sum(float(g.square().sum()) for g in grads))
    for output in outputs:
        np.testing.assert_allclose(output, brute, rtol=1e-9)


@pytest.mark.parametrize("bare", [False, True])
def test_a_model_extended_by_backpack_gives_the_same(bare: bool) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)).double()

    outputs = []
    for extended in (False, True):
        model = make()
        if extended:
            extend(model)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        params = model.parameters() if bare and extended else model
        watch = Cockpit(params, configuration("economy"), optimizer=opt)
        for step in range(4):
            x, y = batch()
            x = (
                x.double().requires_grad_()
            )  # so that BackPACK's hooks see the first layer's input without a warning
            opt.zero_grad()
            losses = F.cross_entropy(model(x), y, reduction="none")
            loss = losses.mean()
            with watch(step, info={"loss": loss, "individual_losses": losses}):
                loss.backward()
            opt.step()
        watch.close()
        outputs.append(watch.get_output())
    for step, values in outputs[0].items():
        other = outputs[1][step]
        assert set(values) == set(other)
        for name, value in values.items():
            if name == "GradHist1d":
                assert value["hist"].sum() == other[name]["hist"].sum()
            else:
                np.testing.assert_allclose(other[name], value, rtol=1e-9)


def test_extensions_of_the_user_run_along() -> None:
    model = extend(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    loss_module = extend(nn.CrossEntropyLoss())
    watch = Cockpit(model, [NormTest()])
    x = torch.randn(5, 3, requires_grad=True)
    loss = loss_module(model(x), torch.randint(2, (5,)))
    ours = BatchGradTransforms({"norms": SquareNorms(), "n": lambda g: g.batch.size})
    with watch(0, ours, extensions.DiagGGNExact(), loss=loss):
        loss.backward()
    for parameter in model.parameters():
        assert parameter.grad_batch_transforms["norms"].shape == (5,)
        assert parameter.grad_batch_transforms["n"] == 5
        assert parameter.diag_ggn_exact.shape == parameter.shape
    assert "NormTest" in watch.get_output()[0]


def test_a_quantity_with_extensions_of_its_own() -> None:
    @dataclass(frozen=True)
    class LargestNorm(Quantity):
        def extensions(self, global_step: int) -> list[Any]:
            return (
                [BatchGradTransforms({"largest": lambda g: g.square_norms().max()})]
                if self.is_due(global_step)
                else []
            )

        def compute(self, step: Step) -> Tensor:
            return torch.stack(
                [p.grad_batch_transforms["largest"] for p in step.parameters.values()]
            ).max()

    model = nn.Linear(3, 2)
    watch = Cockpit(model, [LargestNorm(schedules.linear(2))])
    for step in range(3):
        loss = model(torch.randn(4, 3)).square().sum(1).mean()
        with watch(step, loss=loss):
            loss.backward()
    assert set(watch.get_output()) == {0, 2}
    assert not hasattr(model.weight, "grad_batch_transforms")
    assert NormTest(schedules.at([1])).extensions(0) == []
    (extension,) = NormTest(schedules.at([1])).extensions(1)
    assert isinstance(extension, BatchGradTransforms)
    assert len(extension.transforms) == 3


def test_two_functions_of_one_name_are_refused() -> None:
    model = nn.Linear(3, 2)
    watch = Cockpit(model, [])
    first, second = (
        BatchGradTransforms({"x": function}) for function in (SquareNorms(), lambda g: 0)
    )
    loss = model(torch.randn(4, 3)).sum()
    with pytest.raises(ValueError, match="have the name 'x'"), watch(0, first, second, loss=loss):
        pass


def test_directions_by_name() -> None:
    model = nn.Linear(3, 2).double()
    directions = {n: torch.randn_like(p) for n, p in model.named_parameters()}

    @dataclass(frozen=True, eq=False)
    class Slopes(Quantity):
        slopes: Dot = Dot(directions)  # noqa: RUF009

        def compute(self, step: Step) -> Tensor:
            return step[self.slopes].total()

    watch = Cockpit(model, [Slopes()])
    x = torch.randn(4, 3).double()
    loss = model(x).square().sum(1).mean()
    with watch(0, loss=loss):
        loss.backward()
    slope = sum((directions[n] * p.grad).sum() for n, p in model.named_parameters())
    assert watch.get_output()[0]["Slopes"].mean() == pytest.approx(slope.item())


def test_several_cockpits_at_once() -> None:
    torch.manual_seed(0)
    first, second = network(), network()
    watches = [
        Cockpit(first, [NormTest()]),
        Cockpit(second, [NormTest()]),
        Cockpit(first, [NormTest(), GradNorm()]),
    ]
    x, y = batch()
    hidden = [F.cross_entropy(model(x), y, reduction="none") for model in (first, second)]
    with (
        watches[0](0, loss=(a := hidden[0].mean()), individual_losses=hidden[0]),
        watches[1](0, loss=(b := hidden[1].mean()), individual_losses=hidden[1]),
        watches[2](0, loss=a, individual_losses=hidden[0]),
    ):
        (a + b).backward()
    values = [watch.get_output()[0]["NormTest"] for watch in watches]
    assert values[0] == values[2] != values[1]


def test_steps_that_are_not_due_leave_nothing() -> None:
    model = network()
    watch = Cockpit(model, [NormTest(schedules.at([2])), Alpha(schedules.at([0]))])
    for step in range(4):
        losses = losses_of(model)
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
    watch.close()
    output = watch.get_output()
    assert {step: set(values) for step, values in output.items()} == {0: {"Alpha"}, 2: {"NormTest"}}


def test_alpha_needs_the_next_step_and_says_so() -> None:
    model = network()
    watch = Cockpit(model, [Alpha(schedules.at([0]))])
    losses = losses_of(model)
    loss = losses.mean()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    with pytest.warns(CockpitWarning, match="step 1 did not follow, but 2"), watch(2, loss=loss):
        pass
    events = watch.run().events()
    assert list(events["subject"][events["kind"] == "not-checked"]) == ["Alpha"]


def test_evaluation_between_steps_does_not_disturb() -> None:
    torch.manual_seed(0)
    model = network().eval()
    watch = Cockpit(model, [NormTest()])
    x, y = batch()
    values = []
    for step in range(2):
        losses = F.cross_entropy(model(x), y, reduction="none")
        if step:
            with torch.no_grad():
                model(batch(3)[0])
            losses_of(model, 5).mean().backward()  # another graph, outside of the context
            model.zero_grad()
        with watch(step, loss=(loss := losses.mean())):
            loss.backward()
        values.append(watch.get_output()[step]["NormTest"])
    assert values[0] == values[1]


def test_a_loss_of_nan_is_recorded_as_it_is() -> None:
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, configuration("economy"), optimizer=opt)
    for step in range(3):
        opt.zero_grad()
        losses = losses_of(model) * (math.nan if step == 1 else 1)
        with watch(step, loss=(loss := losses.mean()), individual_losses=losses):
            loss.backward()
        opt.step()
    watch.close()
    output = watch.get_output()
    assert math.isfinite(output[0]["Loss"])
    assert math.isnan(output[1]["Loss"])
    assert math.isnan(output[1]["NormTest"])
    assert all(math.isnan(norm) for norm in output[1]["GradNorm"])
    assert output[1]["GradHist1d"]["hist"].sum() == 0
    nonfinite = watch.run().series("GradHist1d", "nonfinite")
    assert nonfinite[0] == 0
    assert nonfinite[1] == 8 * sum(p.numel() for p in model.parameters())


def test_a_batch_of_one_sample() -> None:
    model = network().eval()
    watch = Cockpit(model, configuration("economy"))
    for step in range(2):
        losses = losses_of(model, 1)
        with watch(step, loss=(loss := losses.mean()), individual_losses=losses):
            loss.backward()
    output = watch.get_output()[0]
    assert all(math.isnan(output[name]) for name in ("NormTest", "InnerTest", "OrthoTest"))
    assert output["GradHist1d"]["hist"].sum() == sum(p.numel() for p in model.parameters())
    assert output["Alpha"] == -1  # without an update there is no move, whatever the noise


def test_a_batch_of_one_sample_with_an_update() -> None:
    model = network().eval()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [Alpha()], optimizer=opt)
    for step in range(2):
        losses = losses_of(model, 1)
        loss = losses.mean()
        if step:
            with (
                pytest.warns(CockpitWarning, match="a batch of one sample has no variance"),
                watch(step, loss=loss, individual_losses=losses),
            ):
                loss.backward()
        else:
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
        opt.step()
    assert watch.get_output() == {}


def test_a_gradient_of_zero() -> None:
    model = network().eval()
    watch = Cockpit(model, configuration("economy"))
    for step in range(2):
        losses = losses_of(model) * 0
        with watch(step, loss=(loss := losses.mean()), individual_losses=losses):
            loss.backward()
    output = watch.get_output()[0]
    assert output["GradNorm"] == [0.0] * 6
    assert math.isnan(output["NormTest"])
    hist = output["GradHist1d"]["hist"]
    assert hist[50] == hist.sum() > 0


def test_a_parameter_without_a_part_in_the_step() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Partly()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [*configuration("economy"), Parameters(), Time()], optimizer=opt)
    for step in range(3):
        opt.zero_grad()
        losses = model(torch.randn(5, 3)).square().sum(1)
        with watch(step, loss=(loss := losses.mean()), individual_losses=losses):
            loss.backward()
        opt.step()
    output = watch.get_output()
    for values in (output[0], output[1]):
        assert values["GradNorm"][2:] == [0.0, 0.0]
        assert values["UpdateSize"][2:] == [0.0, 0.0]
        assert values["GradHist1d"]["hist"].sum() == 5 * 16
        assert math.isfinite(values["NormTest"])
        assert math.isfinite(values["Alpha"])


def test_frozen_parameters_are_left_out() -> None:
    model = network()
    model[0].requires_grad_(False)
    watch = Cockpit(model, configuration("economy"))
    losses = losses_of(model)
    with watch(0, loss=(loss := losses.mean()), individual_losses=losses):
        loss.backward()
    assert len(watch.get_output()[0]["GradNorm"]) == 4
    assert list(watch.parameters) == ["1.weight", "1.bias", "5.weight", "5.bias"]


def test_a_failing_quantity_is_reported_once_and_harms_nothing() -> None:
    @dataclass(frozen=True)
    class Broken(Quantity):
        def compute(self, step: Step) -> float:
            return 1 / 0

    model = network()
    watch = Cockpit(model, [Broken(), Loss()])
    for step in range(3):
        loss = losses_of(model).mean()
        if step == 0:
            with (
                pytest.warns(CockpitWarning, match="Broken was not checked: ZeroDivisionError"),
                watch(step, loss=loss),
            ):
                loss.backward()
        else:
            with watch(step, loss=loss):
                loss.backward()
    events = watch.run().events()
    assert list(events["kind"]) == ["not-checked"] * 3
    assert set(watch.get_output()[2]) == {"Loss"}

    strict = Cockpit(model, [Broken()], strict=True)
    loss = losses_of(model).mean()
    with pytest.raises(Exception, match="Broken was not checked"), strict(0, loss=loss):
        loss.backward()


def test_a_failing_transform_is_reported() -> None:
    @dataclass(frozen=True)
    class Impossible(SquareNorms):
        def __call__(self, gradients: Any) -> Tensor:
            raise ArithmeticError("cannot")

    @dataclass(frozen=True)
    class Relying(Quantity):
        need = Impossible()

        def compute(self, step: Step) -> Tensor:
            return step[self.need].total()

    model = network()
    watch = Cockpit(model, [Relying(), NormTest()])
    loss = losses_of(model).mean()
    with (
        pytest.warns(CockpitWarning, match=r"Relying was not checked: .*ArithmeticError: cannot"),
        watch(0, loss=loss),
    ):
        loss.backward()
    assert set(watch.get_output()[0]) == {"NormTest"}


def test_a_loss_that_took_no_part_is_noticed() -> None:
    model = network()
    watch = Cockpit(model, [NormTest()])
    losses = losses_of(model)
    with (
        pytest.warns(CockpitWarning, match="took no part in the backward pass"),
        watch(0, loss=losses.mean()),
    ):
        losses.sum().backward()
    assert watch.get_output() == {}


def test_bare_parameters_of_a_model_that_backpack_does_not_know() -> None:
    model = network()
    watch = Cockpit(model.parameters(), [NormTest(), GradNorm()])
    loss = losses_of(model).mean()
    with (
        pytest.warns(CockpitWarning, match=r"extended with backpack\.extend\(model\)"),
        watch(0, loss=loss),
    ):
        loss.backward()
    assert set(watch.get_output()[0]) == {"GradNorm"}


def test_an_input_overwritten_before_the_update_is_noticed() -> None:
    model = nn.Linear(3, 2)
    watch = Cockpit(model, [Alpha()])
    x = torch.randn(4, 3)
    for step in range(2):
        losses = model(x).square().sum(1)
        loss = losses.mean()
        if step:
            with (
                pytest.warns(CockpitWarning, match="modified in place"),
                watch(step, loss=loss, individual_losses=losses),
            ):
                loss.backward()
        else:
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            with torch.no_grad():
                model.weight -= 0.1
            x.normal_()


def test_metrics_of_the_user() -> None:
    model = network()
    with Cockpit(model, [Loss()]) as watch:
        watch.log(3, 1, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.1, perplexity=torch.tensor(2.0))
        watch.log(4, train_loss=0.25)
    run = watch.run()
    assert run.series("train_loss").to_dict() == {3: 0.5, 4: 0.25}
    assert run.series("perplexity")[3] == 2.0
    assert run.series("learning_rate")[3] == pytest.approx(0.1)
    assert watch.get_output() == {}


def test_verbose_quantities_print(capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    watch = Cockpit(model, [Loss(verbose=True), GradNorm(verbose=True)])
    loss = losses_of(model).mean()
    with watch(7, loss=loss):
        loss.backward()
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == f"[Step 7] Loss: {loss.item()}" or lines[-1] == f"[Step 7] Loss: {loss.item()}"
    )
    assert sum("GradNorm 5.weight" in line for line in lines) == 1


def test_two_instances_of_one_quantity_live_side_by_side() -> None:
    model = network()
    watch = Cockpit(model, [GradHist1d(bins=10), GradHist1d(bins=20)])
    loss = losses_of(model).mean()
    with watch(0, loss=loss):
        loss.backward()
    output = watch.get_output()[0]
    assert len(output["GradHist1d"]["hist"]) == 10
    assert len(output["GradHist1d-2"]["hist"]) == 20


def test_time_is_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cockpit.quantities.time.time.time", lambda: 123.5)
    model = network()
    watch = Cockpit(model, [Time()])
    loss = losses_of(model).mean()
    with watch(0, loss=loss):
        loss.backward()
    assert watch.get_output()[0]["Time"] == 123.5


def test_the_plain_context_of_backpack_still_works_on_a_watched_model() -> None:
    model = extend(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    Cockpit(model, [NormTest()])
    x = torch.randn(5, 3, requires_grad=True)
    with backpack(BatchGradTransforms({"norms": SquareNorms()})):
        model(x).square().sum(1).mean().backward()
    assert all(p.grad_batch_transforms["norms"].shape == (5,) for p in model.parameters())
