"""The quantities of curvature in a training loop, against dense matrices."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backpack import extend
from curvature.networks import CASES, Case, flat_gradient, mlp
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning, configuration
from cockpit.quantities import HessMaxEV, HessTrace, Quantity, TICDiag, TICTrace


def watched(
    case: Case, quantities: list[Quantity], reduction: str = "mean", steps: int = 1, **options: Any
) -> tuple[Cockpit, dict[int, dict[str, Any]]]:
    watch = Cockpit(case.model, quantities, **options)
    for step in range(steps):
        case.model.zero_grad()
        losses = case.individual_losses()
        loss = losses.mean() if reduction == "mean" else losses.sum()
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
    watch.close()
    return watch, watch.get_output()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", CASES)
def test_hess_max_ev(name: str, reduction: str) -> None:
    case = CASES[name]()
    watch, output = watched(case, [HessMaxEV(tol=1e-9)], reduction, steps=2)
    eigenvalues = torch.linalg.eigvalsh(case.hessian())
    magnitude = eigenvalues[eigenvalues.abs().argmax()].item()
    for step in (0, 1):
        assert output[step]["HessMaxEV"] == pytest.approx(eigenvalues[-1].item(), rel=1e-6)
        found = watch.run().series("HessMaxEV", "magnitude")[step]
        assert found == pytest.approx(magnitude, rel=1e-6)
    assert watch.run().series("HessMaxEV", "converged").all()


class Saddle(nn.Module):
    """A loss whose Hessian has the eigenvalues −4 and 0.2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        rotation = torch.tensor([[0.6, 0.8], [-0.8, 0.6]])
        u = rotation @ self.w
        return x * (-2 * u[0] ** 2 + 0.1 * u[1] ** 2)


def test_hess_max_ev_of_an_indefinite_hessian() -> None:
    model = Saddle()
    watch = Cockpit(model, [HessMaxEV()])
    for step in range(3):
        loss = model(torch.ones(4)).mean()
        with watch(step, loss=loss):
            loss.backward()
        assert watch.get_output()[step]["HessMaxEV"] == pytest.approx(0.2, rel=1e-5)
        magnitude = watch.run().series("HessMaxEV", "magnitude")[step]
        assert magnitude == pytest.approx(-4, rel=1e-5)


def repeated(case: Case, times: int) -> Case:
    """The same mean loss, from copies of the samples: each has a draw of its own."""
    x = case.x.repeat(times, *[1] * (case.x.dim() - 1))
    y = case.y.repeat(times, *[1] * (case.y.dim() - 1))
    return Case(case.model, x, y, case.losses)


def individual_gradients(case: Case) -> Tensor:
    """Of all samples, [N, D]."""
    parameters = list(case.parameters().values())
    return torch.stack([flat_gradient(loss, parameters) for loss in case.individual_losses()])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", CASES)
def test_sampled_trace_and_tic(name: str, reduction: str) -> None:
    """The engine's draws, within four standard errors."""
    case, steps = CASES[name](), 12
    diagonal = case.by_parameter(case.ggn().diagonal())
    moment = individual_gradients(case).square().mean(0).sum().item()
    quantities = [HessTrace(), TICTrace(), TICDiag()]
    _, output = watched(repeated(case, 10), quantities, reduction, steps)
    traces = torch.tensor([v["HessTrace"] for v in output.values()], dtype=torch.float64)
    assert traces.shape == (steps, len(case.parameters()))
    error = traces.std(0) / steps**0.5
    expected = torch.stack([values.sum() for values in diagonal])
    assert ((traces.mean(0) - expected).abs() <= 4 * error + 1e-12).all()
    for values in output.values():
        tic = moment / (sum(values["HessTrace"]) + 1e-7)
        assert values["TICTrace"] == pytest.approx(tic, rel=1e-6)
        assert values["TICDiag"] > 0


@pytest.mark.parametrize("name", CASES)
def test_the_mean_of_2000_draws(name: str) -> None:
    case = CASES[name]()
    _, output = watched(repeated(case, 500), [HessTrace()], steps=4)
    total = torch.tensor([sum(values["HessTrace"]) for values in output.values()])
    assert total.mean().item() == pytest.approx(case.ggn().trace().item(), rel=1e-2)


@pytest.mark.parametrize("name", CASES)
def test_hutchinson(name: str) -> None:
    case = CASES[name]()
    watch, output = watched(case, [HessTrace(curvature="hutchinson", probes=100)])
    expected = [block.sum().item() for block in case.by_parameter(case.hessian().diagonal())]
    rows = watch.run().scalars()
    errors = dict(rows[rows["part"].str.contains("standard_error")][["part", "value"]].values)
    errors = {part.split("/", 1)[-1]: value for part, value in errors.items()}
    for name, found, truth in zip(case.parameters(), output[0]["HessTrace"], expected, strict=True):
        assert found == pytest.approx(truth, abs=4 * errors[name] + 1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("curvature", ["diag_h", "diag_ggn_exact"])
def test_exact_diagonals_of_backpack(curvature: str, reduction: str) -> None:
    torch.manual_seed(0)
    case = mlp()
    extend_with_inputs(case)
    module = extend(nn.CrossEntropyLoss(reduction=reduction))
    quantities = [HessTrace(curvature=curvature), TICDiag(curvature=curvature), HessMaxEV()]
    watch = Cockpit(case.model, quantities)
    outputs = case.outputs()
    loss, losses = module(outputs, case.y), case.losses(outputs, case.y)
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    dense = (case.hessian() if curvature == "diag_h" else case.ggn()).diagonal()
    output = watch.get_output()[0]
    traces = [block.sum().item() for block in case.by_parameter(dense)]
    assert output["HessTrace"] == pytest.approx(traces, rel=1e-6)
    assert not any(hasattr(p, curvature) for p in case.model.parameters())
    G = individual_gradients(case)
    tic = (G.square().mean(0) / (dense + 1e-7)).sum().item()
    assert output["TICDiag"] == pytest.approx(tic, rel=1e-6)


def test_an_exact_diagonal_that_cannot_be_had_says_why() -> None:
    case = mlp()
    with pytest.warns(
        CockpitWarning, match=r"Cockpit\(model, \.\.\., loss_function=loss_module\), or extend them"
    ):
        watched(case, [HessTrace(curvature="diag_h")])


def extend_with_inputs(case: Case) -> None:
    """Extend the model; PyTorch warns of its hooks where no input requires a gradient."""
    extend(case.model)
    case.x.requires_grad_()


def test_bare_parameters_of_an_extended_model() -> None:
    case = mlp()
    extend_with_inputs(case)
    watch = Cockpit(case.model.parameters(), configuration("full"))
    for step in range(2):
        losses = case.individual_losses()
        with watch(step, loss=(loss := losses.mean()), individual_losses=losses):
            loss.backward()
    output = watch.get_output()
    eigenvalue = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert output[0]["HessMaxEV"] == pytest.approx(eigenvalue, rel=1e-3)
    assert len(output[0]["HessTrace"]) == 6
    assert output[0]["TICDiag"] > 0


def test_outputs_given_by_the_user() -> None:
    case = mlp(
        lambda z, y: F.binary_cross_entropy_with_logits(z, one_hot(y), reduction="none").sum(1)
    )
    extend_with_inputs(case)
    watch = Cockpit(list(case.model.named_parameters()), [HessTrace()])
    outputs = case.outputs()
    loss = case.losses(outputs, case.y).mean()
    with watch(0, loss=loss, outputs=outputs):
        loss.backward()
    assert sum(watch.get_output()[0]["HessTrace"]) > 0


def one_hot(y: Tensor) -> Tensor:
    return F.one_hot(y, 3).double()


class WithLoss(nn.Module):
    """Returns what models of a well-known hub return: the loss and the logits, in an object."""

    class Output(dict[str, Tensor]):
        @property
        def logits(self) -> Tensor:
            return self["logits"]

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> WithLoss.Output:
        logits = self.head(self.tokens(x).tanh())
        shifted = logits[:, :-1].reshape(-1, 5)
        return self.Output(loss=F.cross_entropy(shifted, x[:, 1:].reshape(-1)), logits=logits)


def test_a_model_that_computes_its_own_loss() -> None:
    model = WithLoss()
    watch = Cockpit(model, [HessTrace(), HessMaxEV(), TICTrace()])
    for step in range(2):
        loss = model(torch.randint(5, (4, 6)))["loss"]
        with watch(step, loss=loss):
            loss.backward()
    assert set(watch.get_output()[1]) == {"HessTrace", "HessMaxEV", "TICTrace"}


def normalised() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(6, 4).double(), torch.randint(3, (6,))


def test_batch_normalisation_in_training_mode() -> None:
    model, x, y = normalised()
    case = Case(model, x, y, mlp().losses)
    running = model[1].running_mean.clone()
    watch = Cockpit(model, [HessMaxEV(tol=1e-9), HessTrace(), HessTrace(curvature="hutchinson")])
    losses = case.individual_losses()
    seen = model[1].running_mean.clone()
    with (
        pytest.warns(CockpitWarning, match=r"1 normalises with the statistics of the batch"),
        watch(0, loss=(loss := losses.mean()), individual_losses=losses),
    ):
        loss.backward()
    assert torch.equal(model[1].running_mean, seen)
    assert not torch.equal(running, seen)
    output = watch.get_output()[0]
    assert set(output) == {"HessMaxEV", "HessTrace-2"}
    eigenvalue = torch.linalg.eigvalsh(case.hessian())[-1].item()
    assert output["HessMaxEV"] == pytest.approx(eigenvalue, rel=1e-6)
    model.eval()
    loss = case.individual_losses().mean()
    with watch(1, loss=loss):
        loss.backward()
    assert "HessTrace" in watch.get_output()[1]


def test_a_kernel_without_second_derivative_is_not_checked_and_harms_nothing() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    watch = Cockpit(model, [HessMaxEV(), HessTrace()])
    loss = model(torch.randn(2, 5, 8)).square().mean()
    with (
        pytest.warns(CockpitWarning, match=r"HessMaxEV was not checked.*MATH.*closure"),
        watch(0, loss=loss),
    ):
        loss.backward()
    assert set(watch.get_output()[0]) == {"HessTrace"}
    assert all(p.grad is not None for p in model.parameters())


def trained(quantities: list[Quantity] | None, extended: bool) -> dict[str, Any]:
    torch.manual_seed(3)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(48, 4)
    )
    module: nn.Module = nn.CrossEntropyLoss()
    if extended:
        model, module = extend(model), extend(module)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = None if quantities is None else Cockpit(model, quantities, optimizer=opt)
    for step in range(10):
        opt.zero_grad()
        x, y = torch.randn(8, 1, 6, 6, requires_grad=True), torch.randint(4, (8,))
        outputs = model(x)
        loss, losses = module(outputs, y), F.cross_entropy(outputs, y, reduction="none")
        if watch is None:
            loss.backward()
        else:
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
        opt.step()
    if watch is not None:
        watch.close()
        assert set(watch.get_output()[5]) >= {q.name for q in quantities or ()}
    return {"model": model.state_dict(), "rng": torch.get_rng_state()}


@pytest.mark.parametrize("extended", [False, True])
def test_the_training_is_bit_identical(extended: bool) -> None:
    plain = trained(None, extended)
    seen = trained([*configuration("full"), HessTrace(curvature="hutchinson")], extended)
    assert torch.equal(plain["rng"], seen["rng"])
    for name, value in plain["model"].items():
        assert torch.equal(value, seen["model"][name]), name


def test_the_graph_is_gone_after_the_step() -> None:
    case = mlp()
    watch = Cockpit(case.model, configuration("full"))
    losses = case.individual_losses()
    loss = losses.mean()
    gc.collect()
    gc.disable()
    try:
        with watch(0, loss=loss, individual_losses=losses):
            loss.backward()
        freed = [weakref.ref(loss), weakref.ref(losses)]
        del loss, losses
        assert [reference() for reference in freed] == [None, None]
    finally:
        gc.enable()
    watch.close()


def test_losses_of_nan_are_recorded() -> None:
    case = mlp(lambda z, y: F.cross_entropy(z, y, reduction="none") * math.nan)
    _, output = watched(case, [HessMaxEV(), HessTrace()])
    assert math.isnan(output[0]["HessMaxEV"])
    assert all(math.isnan(trace) for trace in output[0]["HessTrace"])


def test_settings_are_checked() -> None:
    for make, message in (
        (lambda: HessTrace(curvature="exact"), "'auto', 'diag_ggn_mc', 'diag_h'"),
        (lambda: HessTrace(probes=1), "at least 2 probes"),
        (lambda: TICDiag(curvature="hutchinson"), "TICDiag has no curvature 'hutchinson'"),
        (lambda: TICTrace(epsilon=-1), "epsilon >= 0"),
        (lambda: HessMaxEV(tol=2), r"tol in \[0, 1\)"),
        (lambda: HessMaxEV(max_products=0), "max_products of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_the_presets() -> None:
    economy, business, full = (
        [q.name for q in configuration(label)] for label in ("economy", "business", "full")
    )
    assert business == [*economy, "TICDiag", "HessTrace"]
    assert full == [*business, "HessMaxEV", "GradHist2d"]
