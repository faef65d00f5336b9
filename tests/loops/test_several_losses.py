"""Several losses in one step, backpropagated as a sum or one after the other, against brute force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loops.probe import Gradients, Losses, assert_close, by_samples, flat, not_checked
from torch import Tensor, nn

from cockpit import BatchGradTransforms, Cockpit, CockpitWarning, quantities

N = 6


class TwoHeads(nn.Module):
    """A trunk that is used by two heads, one of which is called twice."""

    def __init__(self, trunk: nn.Module, width: int) -> None:
        super().__init__()
        self.trunk, self.first, self.second = trunk, nn.Linear(width, 3), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.first(h), self.second(h) + self.second(h.square())


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.block = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.embed(x)).mean(1)


def images() -> tuple[nn.Module, Tensor]:
    trunk = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten())
    return TwoHeads(trunk, 27).double(), torch.randn(N, 1, 5, 5, dtype=torch.float64)


def vectors() -> tuple[nn.Module, Tensor]:
    trunk = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
    return TwoHeads(trunk, 5).double(), torch.randn(N, 4, dtype=torch.float64)


def sentences() -> tuple[nn.Module, Tensor]:
    return TwoHeads(Tokens(), 6).double(), torch.randint(7, (N, 4))


class Scaled(nn.Module):
    """Uses parameters of its own outside of layers, in a part that both losses depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(1, 4))
        self.heads = TwoHeads(nn.Linear(4, 5), 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads(x * self.scale + self.shift)


def scaled() -> tuple[nn.Module, Tensor]:
    return Scaled().double(), torch.randn(N, 4, dtype=torch.float64)


KINDS = {"vectors": vectors, "images": images, "sentences": sentences, "scaled": scaled}


def problem(kind: str = "vectors") -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = KINDS[kind]()
    return model, x, torch.randint(3, (N,)), torch.randn(N, 2, dtype=torch.float64)


def sample_losses(model: nn.Module, x: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    a, b = model(x)
    return F.cross_entropy(a, y, reduction="none"), F.mse_loss(b, t, reduction="none").sum(1)


def truth(
    model: nn.Module, x: Tensor, y: Tensor, t: Tensor, weights: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    def loss(i: int) -> Tensor:
        la, lb = sample_losses(model, x[i : i + 1], y[i : i + 1], t[i : i + 1])
        return (weights[0] * la + weights[1] * lb).squeeze()

    return by_samples(model, loss, len(x))


def one_after_the_other(a: Tensor, b: Tensor) -> None:
    a.backward(retain_graph=True)
    b.backward()


def in_the_other_order(a: Tensor, b: Tensor) -> None:
    b.backward(retain_graph=True)
    a.backward()


def weighted_one_after_the_other(a: Tensor, b: Tensor) -> None:
    (0.25 * b).backward(retain_graph=True)
    a.backward()


def scaled_one_after_the_other(a: Tensor, b: Tensor) -> None:
    (1024 * a).backward(retain_graph=True)
    (1024 * 0.25 * b).backward()


WAYS: dict[str, tuple[Callable[[Tensor, Tensor], None], tuple[float, float]]] = {
    "one after the other": (one_after_the_other, (1, 1)),
    "in the other order": (in_the_other_order, (1, 1)),
    "a sum": (lambda a, b: (a + b).backward(), (1, 1)),
    "a weighted sum": (lambda a, b: (a + 0.25 * b).backward(), (1, 0.25)),
    "autograd.backward": (lambda a, b: torch.autograd.backward([a, b]), (1, 1)),
    "weighted, one after the other": (weighted_one_after_the_other, (1, 0.25)),
    "scaled, one after the other": (scaled_one_after_the_other, (1, 0.25)),
}


def scalars(la: Tensor, lb: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    return (la.mean(), lb.mean()) if reduction == "mean" else (la.sum(), lb.sum())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_individual_gradients_are_those_of_the_sum(kind: str, way: str, reduction: str) -> None:
    backward, weights = WAYS[way]
    model, x, y, t = problem(kind)
    g, losses = truth(model, x, y, t, weights)
    watch = Cockpit(model, [Gradients(), Losses(), quantities.Loss()])
    la, lb = sample_losses(model, x, y, t)
    a, b = scalars(la, lb, reduction)
    with watch(0, loss=(a, b), individual_losses=(la, lb)):
        backward(a, b)
    output = watch.get_output()[0]
    assert_close(output["Gradients"]["g"], g, atol=1e-12)
    assert_close(output["Losses"], losses)
    assert_close(output["Gradients"]["mean"], losses.mean())
    assert_close(output["Loss"], losses.mean() if reduction == "mean" else losses.sum())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("way", ["one after the other", "a weighted sum"])
@pytest.mark.parametrize("connected", [True, False])
def test_the_losses_of_the_samples_may_be_summed(way: str, reduction: str, connected: bool) -> None:
    backward, weights = WAYS[way]
    model, x, y, t = problem()
    g, losses = truth(model, x, y, t, weights)
    watch = Cockpit(model, [Gradients(), Losses()])
    la, lb = sample_losses(model, x, y, t)
    if connected:  # one tensor that both losses are made from
        la = la.detach() * 0 + la + lb
        a, b = scalars(la, la, reduction)
        g, losses = truth(model, x, y, t, (sum(weights),) * 2)
    else:
        a, b = scalars(la, lb, reduction)
        la = (weights[0] * la + weights[1] * lb).detach()
    with watch(0, loss=[a, b], individual_losses=la):
        backward(a, b)
    output = watch.get_output()[0]
    assert_close(output["Gradients"]["g"], g, atol=1e-12)
    assert_close(output["Losses"], losses)


def test_without_the_losses_of_the_samples() -> None:
    model, x, y, t = problem()
    g, _ = truth(model, x, y, t, (1, 1))
    for reduction in ("mean", "sum"):
        watch = Cockpit(model, [Gradients()], reduction=reduction)
        a, b = scalars(*sample_losses(model, x, y, t), reduction)
        with watch(0, loss=(a, b)):
            one_after_the_other(a, b)
        assert_close(watch.get_output()[0]["Gradients"]["g"], g, atol=1e-12)


EVERY = [
    quantities.NormTest(),
    quantities.InnerTest(),
    quantities.GradientNoiseScale(),
    quantities.GradientAlignment(),
    quantities.PerSampleOutliers(),
    quantities.GradHist1d(bins=33, samples=None),
    quantities.Alpha(),
    quantities.CABS(),
    quantities.GradNorm(),
    quantities.UpdateSize(),
    quantities.HessMaxEV(),
    quantities.HessTrace(curvature="hutchinson"),
]


def train(together: bool, passes: int = 1) -> dict[int, dict[str, Any]]:
    model, *data = problem()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = Cockpit(model, EVERY, optimizer=opt)
    for step in range(3):
        opt.zero_grad()
        for k, part in enumerate(zip(*(values.chunk(passes) for values in data), strict=True)):
            la, lb = sample_losses(model, *part)
            a, b = la.mean(), lb.mean()
            turn = {} if passes == 1 else {"micro_batch": (k, passes)}
            if together:
                loss = a + b
                with watch(step, loss=loss, individual_losses=la + lb, **turn):
                    (loss / passes).backward()
            else:
                with watch(step, loss=(a, b), individual_losses=(la, lb), **turn):
                    (a / passes).backward(retain_graph=True)
                    (b / passes).backward()
        opt.step()
    return watch.get_output()


@pytest.mark.parametrize("passes", [1, 2])
def test_every_quantity_is_that_of_the_sum(passes: int) -> None:
    expected, found = train(True, passes), train(False, passes)
    for step in range(3):
        assert found[step].keys() == expected[step].keys()
        assert (step == 2) != ("Alpha" in found[step])
        for name, value in expected[step].items():
            same = np.testing.assert_allclose
            if isinstance(value, dict):
                [same(found[step][name][key], value[key], rtol=1e-6) for key in value]
            elif name == "GradHist1d":
                [same(one, other) for one, other in zip(found[step][name], value, strict=True)]
            else:
                same(found[step][name], value, rtol=1e-6, err_msg=name)


def test_a_loss_may_leave_parameters_out() -> None:
    """Each head is reached by one of the passes only, and the trunk by none if it is cut off."""
    torch.manual_seed(0)
    heads = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)]).double()
    x = torch.randn(N, 3, dtype=torch.float64)
    watch = Cockpit(nn.Sequential(*heads), [Gradients()])
    la, lb = (head(x).square().sum(1) for head in heads)
    a, b = la.mean(), lb.mean()
    with watch(0, loss=(a, b), individual_losses=(la, lb)):
        a.backward()
        (3 * b).backward()
    g, _ = by_samples(
        heads, lambda i: heads[0](x[i]).square().sum() + 3 * heads[1](x[i]).square().sum(), N
    )
    assert_close(watch.get_output()[0]["Gradients"]["g"], g)


def test_gradients_by_autograd_grad() -> None:
    """Gradients that are not accumulated, but computed and assigned."""
    model, x, y, t = problem()
    g, _ = truth(model, x, y, t, (1, 1))
    parameters = list(model.parameters())
    watch = Cockpit(model, [Gradients(), quantities.GradNorm()])
    for step, several in enumerate((True, False)):
        la, lb = sample_losses(model, x, y, t)
        a, b = la.mean(), lb.mean()
        loss = (a, b) if several else a + b
        with watch(step, loss=loss, individual_losses=la + lb):
            grads = torch.autograd.grad(loss, parameters)
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad
        output = watch.get_output()[step]
        assert_close(output["Gradients"]["g"], g, atol=1e-12)
        assert_close(output["GradNorm"], torch.stack([p.grad.norm() for p in parameters]))
        assert_close(flat(p.grad for p in parameters), g.mean(0), atol=1e-12)


# -- what is refused ------------------------------------------------------------------------------


REFUSED: dict[
    str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Tensor, Tensor, Any], None], str]
] = {
    "one given, both passed": (
        lambda a, b: a,
        lambda a, b, w: one_after_the_other(a, b),
        r"backward pass of another loss .* loss=\(loss_a, loss_b\)",
    ),
    "one given, the other first": (
        lambda a, b: a,
        lambda a, b, w: in_the_other_order(a, b),
        r"backward pass of another loss .* loss=\(loss_a, loss_b\)",
    ),
    "the sum given, the parts passed": (
        lambda a, b: a + b,
        lambda a, b, w: one_after_the_other(a, b),
        "took no part in the backward pass",
    ),
    "one of two not passed": (
        lambda a, b: (a, b),
        lambda a, b, w: a.backward(),
        r"loss\[1\], given as 'loss', took no part in the backward passes",
    ),
    "one passed twice": (
        lambda a, b: (a, b),
        lambda a, b, w: (torch.autograd.grad(a, w, retain_graph=True), one_after_the_other(a, b)),
        r"loss\[0\], given as 'loss', was differentiated 2 times",
    ),
    "a single one passed twice": (
        lambda a, b: a,
        lambda a, b, w: (torch.autograd.grad(a, w, retain_graph=True), a.backward()),
        r"backward pass of another loss",
    ),
    "a third one": (
        lambda a, b: (a, b),
        lambda a, b, w: (torch.autograd.grad(a * 2 * b, w, retain_graph=True), a.backward()),
        r"loss\[0\], given as 'loss', was differentiated 2 times",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_was_not_given_is_refused(case: str) -> None:
    given, backward, message = REFUSED[case]
    model, x, y, t = problem()
    watch = Cockpit(model, [Gradients(), quantities.NormTest()])
    la, lb = sample_losses(model, x, y, t)
    a, b = la.mean(), lb.mean()
    with pytest.warns(CockpitWarning, match=message), watch(0, loss=given(a, b)):
        backward(a, b, model.first.weight)
    assert "NormTest" not in watch.get_output().get(0, {})
    assert set(not_checked(watch)) == {"NormTest", "Gradients"}
    # and the next step is right again
    g, _ = truth(model, x, y, t, (1, 1))
    la, lb = sample_losses(model, x, y, t)
    a, b = la.mean(), lb.mean()
    with watch(1, loss=(a, b)):
        one_after_the_other(a, b)
    assert_close(watch.get_output()[1]["Gradients"]["g"], g, atol=1e-12)


def test_a_pass_from_elsewhere_is_refused() -> None:
    """A pass that comes through none of the losses, here from the outputs."""
    model, x, y, t = problem()
    watch = Cockpit(model, [quantities.NormTest()])
    outputs = model(x)
    a, b = F.cross_entropy(outputs[0], y), F.mse_loss(outputs[1], t)

    def backward() -> None:
        torch.autograd.backward([a, b], retain_graph=True)
        outputs[0].sum().backward()

    with pytest.warns(CockpitWarning, match="backward pass of another loss"), watch(0, loss=(a, b)):
        backward()


ARGUMENTS: dict[str, tuple[Callable[[Tensor, Tensor], dict[str, Any]], str]] = {
    "none": (lambda a, b: {"loss": ()}, "'loss' is empty"),
    "None among them": (lambda a, b: {"loss": (a, None)}, "must hold tensors .* got None"),
    "not scalar": (lambda a, b: {"loss": (a, b.expand(2))}, "must have one element"),
    "the same twice": (lambda a, b: {"loss": (a, a)}, r"loss\[0\] is made from loss\[1\]"),
    "one in the other": (lambda a, b: {"loss": (a, a + b)}, r"loss\[1\] is made from loss\[0\]"),
    "too few": (
        lambda a, b: {"loss": (a, b), "individual_losses": (torch.ones(N),)},
        "1 tensors for 2 losses. Give one for each",
    ),
    "of different sizes": (
        lambda a, b: {
            "loss": (a, b),
            "individual_losses": (torch.ones(N), torch.ones(N + 1)),
            "batch_size": N,
        },
        f"has {N + 1} entries, but the batch has {N} samples",
    ),
    "None among the samples": (
        lambda a, b: {"loss": (a, b), "individual_losses": (torch.ones(N), None)},
        "must hold one tensor",
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_do_not_fit(case: str) -> None:
    make, message = ARGUMENTS[case]
    model, x, y, t = problem()
    watch = Cockpit(model, [quantities.NormTest()])
    a, b = scalars(*sample_losses(model, x, y, t), "mean")
    with pytest.raises((ValueError, TypeError), match=message), watch(0, **make(a, b)):
        raise AssertionError("not entered")


def test_one_loss_in_a_tuple_is_one_loss() -> None:
    model, x, y, t = problem()
    watch = Cockpit(model, [Gradients(), Losses()])
    losses = sum(sample_losses(model, x, y, t))
    loss = losses.mean()
    with watch(0, loss=(loss,), individual_losses=(losses,)):
        loss.backward()
    g, of_samples = truth(model, x, y, t, (1, 1))
    assert_close(watch.get_output()[0]["Gradients"]["g"], g, atol=1e-12)
    assert_close(watch.get_output()[0]["Losses"], of_samples)


def test_curvature_of_weighted_losses_is_asked_for_in_the_losses() -> None:
    model, x, y, t = problem()
    watch = Cockpit(model, [quantities.HessMaxEV(tol=1e-9), quantities.NormTest()])
    for step, inside in enumerate((False, True)):
        a, b = scalars(*sample_losses(model, x, y, t), "mean")
        losses, weight = ((a, 0.5 * b), 1.0) if inside else ((a, b), 0.5)

        def backward(pair: tuple[Tensor, Tensor] = losses, weight: float = weight) -> None:
            pair[0].backward(retain_graph=True)
            (weight * pair[1]).backward()

        if inside:
            with watch(step, loss=losses):
                backward()
        else:
            with (
                pytest.warns(CockpitWarning, match=r"HessMaxEV .*loss=\(loss_a, 0.5 \* loss_b\)"),
                watch(step, loss=losses),
            ):
                backward()
    output = watch.get_output()
    assert "HessMaxEV" not in output[0]
    assert output[0]["NormTest"] == pytest.approx(output[1]["NormTest"])
    a, b = scalars(*sample_losses(model, x, y, t), "mean")
    parameters = list(model.parameters())
    total = a + 0.5 * b
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(total, parameters, create_graph=True)]
    )
    rows = [torch.autograd.grad(one, parameters, retain_graph=True) for one in gradient]
    hessian = torch.stack([flat(row) for row in rows])
    largest = float(torch.linalg.eigvalsh(hessian)[-1])
    assert output[1]["HessMaxEV"] == pytest.approx(largest, rel=1e-6)


def test_backpack_knows_one_pass() -> None:
    from backpack import extend

    model, x, y, t = problem()
    watch = Cockpit(extend(model).parameters(), [quantities.NormTest()])
    a, b = scalars(*sample_losses(model, x, y, t), "mean")
    with (
        pytest.raises(ValueError, match="cannot be watched with the hooks of BackPACK"),
        watch(0, loss=(a, b)),
    ):
        raise AssertionError("not entered")


def test_the_closed_form_is_kept_over_several_passes() -> None:
    """What the passes bring is summed at the outputs, and served as if one pass had brought it."""
    model, x, y, t = problem()
    watch = Cockpit(model, [])
    kinds = BatchGradTransforms({"kind": lambda handle: type(handle).__name__})
    found = []
    for step, together in enumerate((True, False)):
        a, b = scalars(*sample_losses(model, x, y, t), "mean")
        loss = a + b if together else (a, b)
        with watch(step, kinds, loss=loss):
            loss.backward() if together else one_after_the_other(a, b)
        found.append([p.grad_batch_transforms["kind"] for p in model.parameters()])
    assert found[0] == found[1]
    assert "Products" in found[0]
