"""Curvature along directions, in the optimizer's metric, and from the loss alone; spectra and sketches."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from backpack import backpack, extend, extensions
from curvature.networks import CASES, Case, flat_gradient, mlp
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning
from cockpit.curvature import density, diagonal_samples
from cockpit.quantities import (
    CriticalSharpness,
    DirectionalCurvature,
    HessianSpectrum,
    HessTrace,
    KroneckerSpectrum,
    PreconditionedSharpness,
)


@pytest.mark.parametrize("name", CASES)
def test_directional_curvature(name: str) -> None:
    case = CASES[name]()
    opt = torch.optim.SGD(case.model.parameters(), lr=0.1, momentum=0.9)
    watch = Cockpit(case.model, [DirectionalCurvature()], optimizer=opt)
    before: list[Tensor] = []
    for step in range(3):
        parameters = list(case.parameters().values())
        H = case.hessian()
        before.append(torch.cat([p.detach().flatten().clone() for p in parameters]))
        opt.zero_grad()
        loss = case.individual_losses().mean()
        g = flat_gradient(loss, parameters)
        with watch(step, loss=loss):
            loss.backward()
        opt.step()
        found = watch.get_output()[step]["DirectionalCurvature"]
        assert found["gradient"] == pytest.approx((g @ H @ g / (g @ g)).item(), rel=1e-6)
        blocks = watch.run().scalars()
        blocks = blocks[(blocks["step"] == step) & blocks["part"].str.startswith("gradient/")]
        start = 0
        for p, value in zip(parameters, blocks["value"], strict=True):
            rows = slice(start, start := start + p.numel())
            expected = (g[rows] @ H[rows, rows] @ g[rows] / (g[rows] @ g[rows])).item()
            assert value == pytest.approx(expected, rel=1e-6, nan_ok=True)
        if step:
            d = before[step] - before[step - 1]
            assert found["update"] == pytest.approx((d @ H @ d / (d @ d)).item(), rel=1e-6)
        else:
            assert "update" not in found


def stepped(case: Case, opt: torch.optim.Optimizer, watch: Cockpit, steps: int) -> list[Any]:
    seen = []
    for step in range(steps):
        opt.zero_grad()
        loss = case.individual_losses().mean()
        seen.append((case.hessian(), {p: dict(s) for p, s in opt.state.items()}))
        with watch(step, loss=loss):
            loss.backward()
        opt.step()
    return seen


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 20),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 38),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True), 15),
    ],
)
def test_preconditioned_sharpness_of_sgd(make: Any, bound: float) -> None:
    case = mlp()
    opt = make(case.model.parameters())
    watch = Cockpit(case.model, [PreconditionedSharpness(tol=1e-9)], optimizer=opt)
    for step, (H, _) in enumerate(stepped(case, opt, watch, 2)):
        found = watch.get_output()[step]["PreconditionedSharpness"]
        expected = torch.linalg.eigvalsh(H)[-1].item()
        assert found == pytest.approx({"sharpness": expected, "bound": bound}, rel=1e-6)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_preconditioned_sharpness_of_adam(amsgrad: bool) -> None:
    case = mlp()
    opt = torch.optim.AdamW(case.model.parameters(), lr=0.01, amsgrad=amsgrad)
    watch = Cockpit(case.model, [PreconditionedSharpness(tol=1e-9)], optimizer=opt)
    seen = stepped(case, opt, watch, 3)
    output = watch.get_output()
    assert 0 not in output
    events = watch.run().events()
    assert list(events["kind"]) == ["not-checked", "basis"]
    key = "max_exp_avg_sq" if amsgrad else "exp_avg_sq"
    loss = case.individual_losses().mean()
    with watch(3, loss=loss):
        loss.backward()
    P = torch.cat(
        [
            ((opt.state[p][key] / (1 - 0.999**3)).sqrt() + 1e-8).flatten()
            for p in case.model.parameters()
        ]
    )
    assert len(seen) == 3
    H = case.hessian() / P.sqrt() / P.sqrt()[:, None]
    found = watch.get_output()[3]["PreconditionedSharpness"]
    assert found["sharpness"] == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-6)
    assert found["bound"] == pytest.approx(3.8 / 0.1 / 0.01)


def test_preconditioned_sharpness_says_what_it_misses() -> None:
    case = mlp()
    for opt, message in (
        (None, "no known optimizer holds 0.weight"),
        (torch.optim.Rprop(case.model.parameters()), "Rprop is not known here"),
        (
            torch.optim.SGD(
                [{"params": [p], "lr": 0.1 * k} for k, p in enumerate(case.model.parameters(), 1)]
            ),
            "different learning rates",
        ),
    ):
        watch = Cockpit(case.model, [PreconditionedSharpness()], optimizer=opt)
        loss = case.individual_losses().mean()
        with pytest.warns(CockpitWarning, match=message), watch(0, loss=loss):
            loss.backward()
        watch.close()


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
        self.register_buffer("H", torch.diag(torch.tensor([5.0, 1.0, 0.1], dtype=torch.float64)))

    def forward(self) -> Tensor:
        return self.w @ self.H @ self.w / 2


@pytest.mark.parametrize("rate", [1e-5, 1e-3, 0.1, 0.39, 0.7, 5.0, 30.0])
def test_critical_sharpness_of_a_quadratic(rate: float) -> None:
    model = Quadratic()
    opt = torch.optim.SGD(model.parameters(), lr=rate)
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return model()

    loss = model()
    g = model.H @ model.w.detach()
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    expected = model.w.detach().add(model.w.grad, alpha=-rate)
    opt.step()
    value = watch.get_output()[0]["CriticalSharpness"]
    assert value == pytest.approx((g @ model.H @ g / (g @ g)).item(), rel=1e-6)
    assert calls <= 8
    assert torch.equal(model.w, expected)


class Falling(nn.Module):
    """A loss that falls to a plateau, and rises steeply far beyond one update."""

    def __init__(self, far: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.far = far

    def forward(self) -> Tensor:
        s = self.w / self.far
        return s**4 - torch.tanh(5 * s)


@pytest.mark.parametrize("updates", [0.1, 0.7, 1.3, 3.0, 12.0, 30.0, 72.7, 300.0])
def test_critical_sharpness_of_what_is_no_parabola(updates: float) -> None:
    """False position would stay at one end of its bracket."""
    model, calls = Falling(updates), 0
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    rate = updates / 50  # the update goes 1/updates of the way to the crossing
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        return model()

    loss = model()
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    opt.param_groups[0]["lr"] = rate
    opt.step()
    value = watch.get_output()[0]["CriticalSharpness"]
    crossing = (2 / value) / (rate) * model.w.item()
    assert crossing == pytest.approx(updates, rel=0.1)
    assert calls <= 8


def test_a_crossing_that_is_not_found_is_not_guessed() -> None:
    class Cliff(Falling):
        def forward(self) -> Tensor:
            s = self.w / self.far
            return (60 * (s - 1)).exp() - torch.tanh(5 * s)

    model = Cliff(20000.0)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)
    loss = model()
    with watch(0, loss=loss, closure=model):
        loss.backward()
    opt.param_groups[0]["lr"] = 4e4  # the update is 10, and the crossing at 2000 of these
    opt.step()
    (event,) = watch.run().events().to_dict("records")
    assert event["kind"] == "not-checked"
    assert re.search(r"known only that between .* times the update", event["message"])


def test_the_search_begins_where_the_crossing_was() -> None:
    """A crossing that takes most evaluations to reach is known precisely at the second step."""
    model = Falling(3000.0)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)
    for step in range(2):
        model.w.data.zero_()
        opt.zero_grad()
        loss = model()
        with watch(step, loss=loss, closure=model):
            loss.backward()
        opt.param_groups[0]["lr"] = 600.0  # the update is 1
        opt.step()
    value = watch.get_output()[1]["CriticalSharpness"]
    assert 2 / value / 600 == pytest.approx(3000, rel=0.01)


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))

    def forward(self) -> Tensor:
        return self.w


@pytest.mark.parametrize(
    ("maximize", "message"),
    [
        (False, "times the update still does not raise the loss"),
        (True, "even .* the update raises"),
    ],
)
def test_a_loss_that_never_crosses(maximize: bool, message: str) -> None:
    model = Slope()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, maximize=maximize)
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)
    loss = model()
    with watch(0, loss=loss, closure=model):
        loss.backward()
    opt.step()
    (event,) = watch.run().events().to_dict("records")
    assert event["kind"] == "not-checked"
    assert re.search(message, str(event))


def test_critical_sharpness_needs_a_closure() -> None:
    model = Quadratic()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)
    loss = model()
    message = r"CriticalSharpness.*needs 'closure'.*computes the same loss anew"
    with pytest.warns(CockpitWarning, match=message), watch(0, loss=loss):
        loss.backward()


def spectrum(D: int) -> tuple[Tensor, torch.Generator]:
    torch.manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64))
    values = torch.cat([torch.linspace(-1, 1, D - 3), torch.tensor([20.0, 30.0, 50.0])]).double()
    return Q @ torch.diag(values) @ Q.T, torch.Generator().manual_seed(0)


def draw(D: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.randint(2, (D,), generator=generator) - 1).double()


def test_density() -> None:
    A, generator = spectrum(200)
    found = density(A.__matmul__, lambda: draw(200, generator), 100, 40)
    assert found.weights.sum() == pytest.approx(1)
    moments = [torch.trace(torch.linalg.matrix_power(A, k)).item() / 200 for k in (1, 2)]
    for k, moment in enumerate(moments, 1):
        assert found.weights @ found.nodes**k == pytest.approx(moment, rel=0.35)
    grid, values = found.on(2000)
    assert (values.sum() * (grid[1] - grid[0])) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("sketch", [0, 6])
def test_estimates_of_the_trace(sketch: int) -> None:
    A, generator = spectrum(100)
    estimates = []
    for _ in range(40):
        exact, samples = diagonal_samples(A.__matmul__, lambda: draw(100, generator), 10, sketch)
        rest = torch.stack([sample.sum() for sample in samples])
        estimates.append((0 if exact is None else exact.sum()) + rest.mean())
    found = torch.stack(estimates)
    error = found.std() / len(found) ** 0.5
    assert abs(found.mean() - A.trace()) <= 4 * error
    assert (error < 1) == bool(sketch)


@pytest.mark.parametrize("name", CASES)
def test_hutch_plus_plus_and_the_spectrum_in_the_loop(name: str) -> None:
    case = CASES[name]()
    D = sum(p.numel() for p in case.parameters().values())
    quantities = [HessTrace(curvature="hutch++", probes=60), HessianSpectrum(probes=30, steps=D)]
    watch = Cockpit(case.model, quantities)
    loss = case.individual_losses().sum()
    with watch(0, loss=loss, individual_losses=case.individual_losses()):
        loss.backward()
    output, H = watch.get_output()[0], case.hessian()
    rows = watch.run().scalars()
    rows = rows[rows["part"].str.startswith("standard_error/")]
    expected = [block.sum().item() for block in case.by_parameter(H.diagonal())]
    for found, truth, error in zip(output["HessTrace"], expected, rows["value"], strict=True):
        assert found == pytest.approx(truth, abs=4 * error + 1e-9)
    run = watch.run()
    nodes = run.series("HessianSpectrum", "nodes")[0]
    weights = run.series("HessianSpectrum", "weights")[0]
    eigenvalues = torch.linalg.eigvalsh(H)
    assert nodes[-1] == pytest.approx(eigenvalues[-1].item(), rel=1e-6)
    assert weights @ nodes**2 == pytest.approx(eigenvalues.square().mean().item(), rel=0.3)
    assert len(output["HessianSpectrum"]["density"]) == 200


@pytest.mark.parametrize("approximation", ["kfac", "kflr", "kfra"])
def test_kronecker_spectrum(approximation: str) -> None:
    case = mlp()
    extend(case.model)
    case.x.requires_grad_()
    module = extend(nn.CrossEntropyLoss())
    watch = Cockpit(case.model, [KroneckerSpectrum(approximation=approximation)])
    loss = module(case.outputs(), case.y)
    random = torch.get_rng_state()
    with watch(0, loss=loss):
        loss.backward()
    assert torch.equal(random, torch.get_rng_state())
    found = watch.get_output()[0]["KroneckerSpectrum"]
    extension = getattr(extensions, approximation.upper())()
    torch.manual_seed(0)
    with backpack(extension):
        module(case.outputs(), case.y).backward()
    for index, parameter in enumerate(case.model.parameters()):
        factors = getattr(parameter, approximation)
        dense = factors[0] if len(factors) == 1 else torch.kron(*factors)
        values = torch.linalg.eigvalsh(dense).clamp(min=0)
        share = values / values.sum()
        expected = {
            "largest": values[-1],
            "trace": values.sum(),
            "effective_rank": torch.special.entr(share).sum().exp(),
            "condition": (values[-1] + 1e-3) / (values[0] + 1e-3),
        }
        for key, value in expected.items():
            assert found[key][index] == pytest.approx(value.item(), rel=1e-6)
