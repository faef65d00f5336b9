"""The scale of the individual gradients: every reduction, weighting, factor and accumulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import MODELS

from cockpit import Cockpit, CockpitWarning, quantities
from cockpit.engine import Step
from cockpit.engine.needs import MeanLoss, SampleLosses
from cockpit.quantities import Quantity
from cockpit.transforms import Dense

N, CLASSES = 8, 3
CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64)
SAMPLE_WEIGHTS = torch.linspace(0.2, 2.5, N, dtype=torch.float64)


@dataclass(frozen=True)
class Everything(Quantity):
    """All individual gradients, [N, D], and the losses."""

    dense = Dense()
    mean_loss = MeanLoss()
    losses = SampleLosses()

    def compute(self, step: Step) -> dict[str, Tensor]:
        rows = [values.flatten(1) for values in step[self.dense].values()]
        return {
            "g": torch.cat(rows, dim=1),
            "mean": step[self.mean_loss],
            "losses": step[self.losses],
        }


LossOf = Callable[
    [Tensor, Tensor], tuple[Tensor, Tensor]
]  # outputs, labels -> the loss and the samples' losses


def plain(reduction: str) -> LossOf:
    def loss(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(z, y, reduction="none")
        return (losses.mean() if reduction == "mean" else losses.sum()), losses

    return loss


def class_weighted(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    losses = F.cross_entropy(z, y, weight=CLASS_WEIGHTS, reduction="none")
    return losses.sum() / CLASS_WEIGHTS[y].sum(), losses


def class_weighted_beside(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    losses = F.cross_entropy(z, y, weight=CLASS_WEIGHTS, reduction="none")
    return F.cross_entropy(z, y, weight=CLASS_WEIGHTS), losses


def sample_weighted(reduction: str) -> LossOf:
    def loss(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses = F.cross_entropy(z, y, reduction="none")
        weighted = losses * SAMPLE_WEIGHTS
        return (weighted.mean() if reduction == "mean" else weighted.sum()), losses

    return loss


def ignoring(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.where(torch.arange(len(y)) % 3 == 0, -100, y)
    losses = F.cross_entropy(z, y, reduction="none")
    return F.cross_entropy(z, y), losses


LOSSES: dict[str, tuple[LossOf, float]] = {  # with r
    "mean": (plain("mean"), 1),
    "sum": (plain("sum"), N),
    "class weights": (class_weighted, 1),
    "class weights, beside": (class_weighted_beside, 1),
    "sample weights, mean": (sample_weighted("mean"), 1),
    "sample weights, sum": (sample_weighted("sum"), N),
    "ignore_index": (ignoring, 1),
}


def brute_force(model: nn.Module, loss_of: LossOf, r: float, x: Tensor, y: Tensor) -> Tensor:
    """g_i = N × (share of sample i) / r, with the share by hiding the other samples' gradients, [N, D]."""
    z = model(x)
    parameters = list(model.parameters())
    z_leaf = z.detach().requires_grad_()
    (through,) = torch.autograd.grad(loss_of(z_leaf, y)[0], z_leaf)
    rows = []
    for i in range(len(y)):
        shown = torch.zeros_like(through)
        shown[i] = through[i]
        grads = torch.autograd.grad(z, parameters, shown, retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in grads]) * len(y) / r)
    return torch.stack(rows)


def problem(kind: str = "mlp") -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, inputs = MODELS[kind]()
    return model.double(), inputs(N), torch.randint(CLASSES, (N,))


@pytest.mark.parametrize("factor", [1.0, 1024.0, 0.25])
@pytest.mark.parametrize("name", LOSSES)
def test_individual_gradients(name: str, factor: float) -> None:
    loss_of, r = LOSSES[name]
    model, x, y = problem()
    expected = brute_force(model, loss_of, r, x, y)
    watch = Cockpit(model, [Everything()])
    loss, losses = loss_of(model(x), y)
    with watch(0, loss=loss, individual_losses=losses):
        (loss * factor).backward()
    output = watch.get_output()[0]["Everything"]
    np.testing.assert_allclose(output["g"], expected, rtol=1e-9, atol=1e-14)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]) / factor / r
    np.testing.assert_allclose(output["g"].mean(0), gradient, rtol=1e-9, atol=1e-14)
    assert output["mean"] == pytest.approx(loss.item() / r)
    if "beside" not in name and name != "ignore_index":
        assert output["losses"].mean() == pytest.approx(loss.item() / r)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_what_cannot_be_seen_can_be_said(reduction: str) -> None:
    """Without the samples' losses a sum looks like any loss; the argument settles it."""
    model, x, y = problem()
    loss_of, r = LOSSES[reduction]
    expected = brute_force(model, loss_of, r, x, y)
    watch = Cockpit(model, [quantities.PerSampleOutliers(k=N)], reduction=reduction)
    loss, _ = loss_of(model(x), y)
    with watch(0, loss=loss):
        loss.backward()
    norms = watch.get_output()[0]["PerSampleOutliers"]["norms"]
    np.testing.assert_allclose(sorted(norms), sorted(expected.norm(dim=1)), rtol=1e-9)


def test_what_is_neither_mean_nor_sum_is_asked_for() -> None:
    model, x, y = problem()
    watch = Cockpit(model, [quantities.NormTest()])
    losses = F.cross_entropy(model(x), y, reduction="none")
    loss = losses.sum() / N**0.5
    with (
        pytest.warns(
            CockpitWarning, match=r"neither a mean nor a sum .* reduction='mean' or reduction='sum'"
        ),
        watch(0, loss=loss, individual_losses=losses),
    ):
        loss.backward()


EVERY = [
    quantities.NormTest(),
    quantities.InnerTest(),
    quantities.OrthoTest(),
    quantities.CABS(),
    quantities.EarlyStopping(),
    quantities.MeanGSNR(),
    quantities.GradientNoiseScale(),
    quantities.GradientAlignment(),
    quantities.PerSampleOutliers(),
    quantities.GradHist1d(bins=99, samples=None),
    quantities.GradHist2d(bins=(39, 49), samples=None),
    quantities.Loss(),
    quantities.Alpha(),
    quantities.Distance(),
    quantities.UpdateSize(),
    quantities.UpdateRatio(),
    quantities.LostUpdates(),
    Everything(),
]


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list) and one and isinstance(one[0], np.ndarray):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif getattr(one, "dtype", None) == np.int64:
        np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", MODELS)
def test_accumulation_gives_the_values_of_the_whole_batch(
    kind: str, reduction: str, scale: float
) -> None:
    """Four micro-batches, with a gradient scaler's factor on the loss, against one big batch."""
    outputs = []
    for passes in (1, 4):
        model, _, _ = problem(kind)
        opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        inputs = MODELS[kind]()[1]
        torch.manual_seed(1)
        watch = Cockpit(model, EVERY, optimizer=opt)
        for step in range(3):
            x, y = inputs(N), torch.randint(CLASSES, (N,))
            opt.zero_grad()
            for k, (x_k, y_k) in enumerate(zip(x.chunk(passes), y.chunk(passes), strict=True)):
                loss, losses = plain(reduction)(model(x_k), y_k)
                with watch(step, loss=loss, individual_losses=losses, micro_batch=(k, passes)):
                    (loss * scale / (passes if reduction == "mean" else 1)).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            opt.step()
        watch.close()
        outputs.append(watch.get_output())
    whole, accumulated = outputs
    assert whole.keys() == accumulated.keys()
    for step in whole:
        assert whole[step].keys() == accumulated[step].keys()
        for name in whole[step]:
            assert_same(accumulated[step][name], whole[step][name])


def test_micro_batches_of_different_sizes() -> None:
    """The loss of the whole is what is backpropagated: here, the mean of the means."""
    model, x, y = problem()
    watch = Cockpit(model, [Everything()])
    sizes, means = [5, 2, 1], []
    for k, (x_k, y_k) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        losses = F.cross_entropy(model(x_k), y_k, reduction="none")
        loss = losses.mean()
        means.append(loss.item())
        with watch(0, loss=loss, individual_losses=losses, micro_batch=(k, 3)):
            (loss / 3).backward()
    output = watch.get_output()[0]["Everything"]
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    np.testing.assert_allclose(output["g"].mean(0), gradient, rtol=1e-9, atol=1e-14)
    assert output["mean"] == pytest.approx(np.mean(means))
    assert output["losses"].mean() == pytest.approx(np.mean(means))


def test_micro_batches_out_of_turn() -> None:
    model, x, y = problem()
    watch = Cockpit(model, [quantities.NormTest(lambda step: step != 3)])

    def enter(step: int, micro_batch: Any) -> None:
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        with watch(step, loss=loss, individual_losses=losses, micro_batch=micro_batch):
            loss.backward()

    with pytest.raises(
        ValueError, match=r"micro_batch=\(1, 2\) of step 0 is out of turn: no step is under way"
    ):
        enter(0, (1, 2))
    enter(0, (0, 3))
    with pytest.raises(ValueError, match=r"next would be \(1, 3\) of step 0"):
        enter(0, (2, 3))
    with pytest.warns(
        CockpitWarning, match="Step 0 was not checked: only 1 of 3 micro-batches came"
    ):
        enter(1, (0, 2))
    enter(1, (1, 2))
    for k in range(2):
        enter(3, (k, 2))  # not due
    for wrong in (2, (2, 2), (-1, 2), ("a", 2)):
        with pytest.raises(ValueError, match=r"'micro_batch' must be a pair \(k, K\)"):
            enter(4, wrong)
    assert set(watch.get_output()) == {1}


def test_a_penalty_on_the_weights_is_noticed() -> None:
    model, x, y = problem()
    watch = Cockpit(model, [quantities.NormTest()])
    losses = F.cross_entropy(model(x), y, reduction="none")
    loss = losses.mean() + model[0].weight.square().sum()
    with (
        pytest.warns(CockpitWarning, match=r"individual gradients of 0\.weight: .* do not add up"),
        watch(0, loss=loss, individual_losses=losses),
    ):
        loss.backward()
    assert list(watch.run().events()["subject"]) == ["0.weight"]


@pytest.mark.parametrize("scaler", [True, False])
def test_a_gradient_scaler(scaler: bool) -> None:
    """With torch's own scaler, the values are those without it."""
    model, x, y = problem()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    amp = torch.amp.GradScaler("cpu", enabled=scaler, init_scale=1024.0)
    watch = Cockpit(model, [Everything(), quantities.UpdateSize()], optimizer=opt)
    expected = brute_force(model, plain("mean"), 1, x, y)
    loss, losses = plain("mean")(model(x), y)
    with watch(0, loss=loss, individual_losses=losses):
        amp.scale(loss).backward()
    amp.step(opt)
    amp.update()
    output = watch.get_output()[0]
    np.testing.assert_allclose(output["Everything"]["g"], expected, rtol=1e-9, atol=1e-14)
    assert sum(s**2 for s in output["UpdateSize"]) ** 0.5 == pytest.approx(
        0.1 * float(expected.mean(0).norm())
    )
