"""GGN and Hessian, and what is logged of where a curvature comes from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from curvature.networks import CASES, Case, mlp
from curvature.test_closure import Opaque
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning
from cockpit.curvature import GGN, Hessian, residual_mat_prod
from cockpit.errors import Unsupported
from cockpit.quantities import (
    DirectionalCurvature,
    HessianSpectrum,
    HessMaxEV,
    HessTrace,
    KroneckerSpectrum,
    TICDiag,
)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", CASES)
def test_spectrum_of_the_ggn(name: str, reduction: str) -> None:
    case = CASES[name]()
    D = sum(p.numel() for p in case.parameters().values())
    quantities = [HessMaxEV(tol=1e-9, matrix="ggn"), HessianSpectrum(steps=D, matrix="ggn")]
    watch = Cockpit(case.model, [*quantities, HessMaxEV(tol=1e-9)])
    losses = case.individual_losses()
    loss = losses.mean() if reduction == "mean" else losses.sum()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    output = watch.get_output()[0]
    expected = torch.linalg.eigvalsh(case.ggn())[-1].item()
    assert output["HessMaxEV"] == pytest.approx(expected, rel=1e-6)
    assert output["HessianSpectrum"]["largest"] == pytest.approx(expected, rel=1e-6)
    assert output["HessianSpectrum"]["smallest"] == pytest.approx(0, abs=1e-8)
    of_hessian = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert output["HessMaxEV-2"] == pytest.approx(of_hessian, rel=1e-6)


def test_the_ggn_of_some_samples() -> None:
    """With the outputs of the closure's own forward pass."""
    case = mlp()
    watch = Cockpit(case.model, [HessMaxEV(tol=1e-9, matrix="ggn", max_samples=3)])
    loss = case.individual_losses().mean()

    def closure(samples: slice = slice(None)) -> Tensor:
        return F.cross_entropy(case.model(case.x[samples]), case.y[samples])

    with watch(0, loss=loss, closure=closure):
        loss.backward()
    part = Case(case.model, case.x[:3], case.y[:3], case.losses)
    expected = torch.linalg.eigvalsh(part.ggn())[-1].item()
    assert watch.get_output()[0]["HessMaxEV"] == pytest.approx(expected, rel=1e-6)


def test_outputs_that_do_not_serve() -> None:
    case = mlp()
    for outputs, message in ((None, "are not known; give them"), (case.outputs(), "not computed")):
        watch = Cockpit(list(case.model.named_parameters()), [HessMaxEV(matrix="ggn")])
        loss = case.individual_losses().mean()
        with pytest.warns(CockpitWarning, match=message), watch(0, loss=loss, outputs=outputs):
            loss.backward()


# -- functions that can be differentiated once only -----------------------------------------------


def test_functions_that_are_differentiable_once_are_seen() -> None:
    """autograd says nothing where it is given the inputs, and the derivative would be wrong."""
    first, last = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
    outputs = last(Opaque.apply(first(x)))
    loss = F.cross_entropy(outputs, y)
    parameters = [*first.parameters(), *last.parameters()]
    vectors = [torch.ones_like(p) for p in parameters]
    with pytest.raises(Unsupported, match="@once_differentiable"):
        Hessian(loss, parameters).times(vectors)
    with pytest.raises(Unsupported, match="@once_differentiable"):
        GGN(loss, outputs, parameters)
    # Where nothing differentiates it twice, it does not matter.
    exact = Hessian(loss, list(last.parameters()))
    assert len(exact.times(vectors[2:])) == 2

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Opaque.apply(x)

    with pytest.raises(Unsupported, match="OpaqueBackward leaves no graph"):
        residual_mat_prod(Layer(), x, torch.ones_like(x), torch.ones(1, *x.shape).double())


class Unmarked(torch.autograd.Function):
    """exp, with a backward pass of a foreign kernel, which has no graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.from_numpy(grad.detach().numpy() * y.detach().numpy())


class Doubled(torch.autograd.Function):
    """Linear, and so no reason to refuse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


@pytest.mark.parametrize("last", [torch.Tensor.mean, lambda z: z.square().mean()])
def test_backward_passes_without_a_graph_are_seen(last: Any) -> None:
    layer, x = nn.Linear(4, 5).double(), torch.randn(6, 4).double()
    vectors = [torch.ones_like(p) for p in layer.parameters()]
    with pytest.raises(Unsupported, match=r"UnmarkedBackward leaves no graph.*closure"):
        Hessian(last(Unmarked.apply(layer(x))), list(layer.parameters())).times(vectors)
    found = Hessian(last(Doubled.apply(layer(x))), list(layer.parameters())).times(vectors)
    plain = Hessian(last(2 * layer(x)), list(layer.parameters())).times(vectors)
    for value, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(value, expected)


# -- what is logged -------------------------------------------------------------------------------


def bases(watch: Cockpit) -> dict[str, list[str]]:
    events = watch.run().events()
    events = events[events["kind"] == "basis"]
    return events.groupby("subject")["message"].apply(list).to_dict()


def test_what_a_curvature_was_computed_from() -> None:
    """Once, and again when it changes."""
    case = mlp()
    quantities = [
        HessMaxEV(),
        HessMaxEV(max_samples=3),
        HessTrace(),
        HessTrace(curvature="hutchinson"),
        TICDiag(),
        KroneckerSpectrum(approximation="kflr"),
        DirectionalCurvature(),
    ]
    watch = Cockpit(case.model, quantities)
    whole = case.x, case.y
    for step, size in enumerate((2, 6, 6)):
        case.x, case.y = whole[0][:size], whole[1][:size]
        loss = case.individual_losses().mean()

        def closure(samples: slice = slice(None)) -> Tensor:
            return F.cross_entropy(case.model(case.x[samples]), case.y[samples])

        with watch(step, loss=loss, closure=closure):
            loss.backward()
    assert bases(watch) == {
        "HessMaxEV": ["curvature: hessian; source: graph"],
        "HessMaxEV-2": [
            "curvature: hessian; source: graph",
            "curvature: hessian; source: closure",
        ],
        "HessTrace": ["curvature: ggn, sampled; source: graph"],
        "HessTrace-2": ["curvature: hessian; source: graph"],
        "TICDiag": ["curvature: ggn, sampled; source: graph"],
        "KroneckerSpectrum": ["curvature: kflr; source: graph"],
        "DirectionalCurvature": ["curvature: hessian; source: graph"],
    }
    run = watch.run()
    assert run.series("HessMaxEV-2", "samples").tolist() == [2, 3, 3]
    for name in {*bases(watch)} - {"HessMaxEV-2"}:
        assert run.series(name, "samples").tolist() == [2, 6, 6]


def test_of_several_micro_batches_the_first_one() -> None:
    case = mlp()
    watch = Cockpit(case.model, [HessMaxEV(tol=1e-9), HessTrace()])
    halves = [
        Case(case.model, case.x[part], case.y[part], case.losses)
        for part in (slice(2), slice(2, 6))
    ]
    for k, half in enumerate(halves):
        losses = half.individual_losses()
        loss = losses.mean()
        with watch(0, loss=loss, individual_losses=losses, micro_batch=(k, 2)):
            loss.backward()
    expected = torch.linalg.eigvalsh(halves[0].hessian())[-1].item()
    assert watch.get_output()[0]["HessMaxEV"] == pytest.approx(expected, rel=1e-6)
    first = "; samples: those of the first of 2 micro-batches"
    assert bases(watch) == {
        "HessMaxEV": [f"curvature: hessian; source: graph{first}"],
        "HessTrace": [f"curvature: ggn, sampled; source: graph{first}"],
    }
    assert watch.run().series("HessMaxEV", "samples").tolist() == [2]


def test_a_sum_of_an_unknown_number_of_samples() -> None:
    """Its mean is not known."""
    case = mlp()
    named: list[Any] = list(case.model.named_parameters())
    watch = Cockpit(named, [HessMaxEV(tol=1e-9)], reduction="sum")
    loss = case.individual_losses().sum()
    with pytest.warns(CockpitWarning, match="number of samples is not known"), watch(0, loss=loss):
        loss.backward()
    loss = case.individual_losses().sum()
    with watch(1, loss=loss, batch_size=6):
        loss.backward()
    expected = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert watch.get_output()[1]["HessMaxEV"] == pytest.approx(expected, rel=1e-6)
