"""KFLR where outputs are flattened, of another layout, of lower precision, or several, against dense matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from curvature.networks import flat_gradient
from torch import Tensor, nn

from cockpit import Cockpit, CockpitWarning
from cockpit.curvature import closed_forms, exact_root
from cockpit.errors import Unsupported
from cockpit.quantities import KroneckerSpectrum

N, T, V = 3, 4, 5


class Tagger(nn.Module):
    """Classifies every position; with the positions flattened into the first dimension, or not."""

    def __init__(self, flatten: bool) -> None:
        super().__init__()
        self.first, self.last, self.flatten = nn.Linear(4, 6), nn.Linear(6, V), flatten

    def forward(self, x: Tensor) -> Tensor:
        z = self.last(torch.tanh(self.first(x)))
        return z.flatten(0, 1) if self.flatten else z


def tagger(flatten: bool, n: int = N) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return Tagger(flatten).double(), torch.randn(n, T, 4).double(), torch.randint(V, (n, T))


def dense_traces(
    model: nn.Module, outputs: Tensor, loss: Callable[[Tensor], Tensor]
) -> list[float]:
    """Traces of Jᵀ H J with dense J and H of all outputs of the mini-batch, for the biases."""
    H = torch.autograd.functional.hessian(loss, outputs.detach().flatten())
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    found = []
    for bias in biases:
        J = torch.stack([flat_gradient(z, [bias]) for z in outputs.flatten()])  # [outputs, D]
        found.append(torch.trace(J.T @ H @ J).item())
    return found


def bias_traces(watch: Cockpit) -> list[float]:
    scalars = watch.run().scalars("KroneckerSpectrum")
    rows = scalars[scalars["part"].str.fullmatch(r"trace/.*bias")]
    return list(rows["value"])


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("n", [N, T])
@pytest.mark.parametrize("time_first", [False, True])
def test_outputs_at_several_positions(time_first: bool, n: int, flatten: bool) -> None:
    """A column may not reach two positions of a sample, wherever the samples are."""
    model, x, y = tagger(flatten, n)
    if time_first:
        x, y = x.transpose(0, 1), y.T
    watch = Cockpit(
        model, [KroneckerSpectrum(approximation="kflr")], batch_dim=int(time_first) or None
    )
    outputs = model(x)
    losses = F.cross_entropy(outputs.reshape(-1, V), y.flatten(), reduction="none")
    losses = losses.reshape(y.shape).mean(0 if time_first else 1)
    loss = losses.mean()
    with watch(0, loss=loss, individual_losses=losses):
        loss.backward()
    expected = dense_traces(
        model, model(x), lambda z: F.cross_entropy(z.reshape(-1, V), y.flatten())
    )
    assert bias_traces(watch) == pytest.approx(expected, rel=1e-9)


def test_columns_are_shared_where_the_samples_come_first() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape, size, columns in (
        ((N, V), N, V),
        ((N, T, V), N, T * V),
        ((T * N, V), N, T * N * V),
        ((T, N, V), N, T * N * V),
        ((N, N, V), N, N * N * V),
        ((N, V), 0, N * V),
        ((1, T, V), 1, T * V),
    ):
        z = torch.randn(shape, dtype=torch.float64, requires_grad=True) * 1.0
        root = exact_root(z.logsumexp(-1).sum(), z, size, generator)
        assert len(root) == columns
        assert len(list(root.columns())) == columns
        (total,) = torch.autograd.grad(z.logsumexp(-1).sum(), z)
        squares = sum(column([z])[0].square() for column in root.columns())
        torch.testing.assert_close(squares, total * (1 - total))


def test_too_many_columns_say_why() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 30), torch.randn(18, 4)
    watch = Cockpit(nn.Sequential(model), [KroneckerSpectrum(approximation="kflr")])
    loss = F.cross_entropy(model(x), torch.randint(30, (18,)))
    with (
        pytest.warns(CockpitWarning, match=r"540 outputs of the mini-batch.*not sure.*'kfac'"),
        watch(0, loss=loss, outputs=model(x), batch_size=9),
    ):
        loss.backward()


@pytest.mark.parametrize("promoted", [False, True])
def test_a_loss_in_lower_precision_than_the_logits(promoted: bool) -> None:
    """As several model hubs compute it; it may be made double again after that."""
    model, x, y = tagger(flatten=False)
    watch = Cockpit(model, [KroneckerSpectrum(approximation="kflr")])
    outputs = model(x)
    loss = F.cross_entropy(outputs.float().reshape(-1, V), y.flatten())
    if promoted:
        loss = loss.double()
    with watch(0, loss=loss):
        loss.backward()
    expected = dense_traces(
        model, model(x), lambda z: F.cross_entropy(z.reshape(-1, V), y.flatten())
    )
    assert bias_traces(watch) == pytest.approx(expected, rel=1e-5)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.classes, self.value = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.trunk(x))
        return self.classes(h), self.value(h)


def test_a_loss_of_several_outputs() -> None:
    torch.manual_seed(0)
    model, x = TwoHeads().double(), torch.randn(5, 4).double()
    y, target = torch.randint(3, (5,)), torch.randn(5, 1).double()

    def loss_of(classes: Tensor, value: Tensor) -> Tensor:
        return F.cross_entropy(classes, y) + 0.5 * F.mse_loss(value, target)

    watch = Cockpit(model, [KroneckerSpectrum(approximation="kflr")])
    loss = loss_of(*model(x))
    with watch(0, loss=loss):
        loss.backward()

    def of_flat(z: Tensor) -> Tensor:
        return loss_of(z[:15].reshape(5, 3), z[15:].reshape(5, 1))

    expected = dense_traces(model, torch.cat([z.flatten() for z in model(x)]), of_flat)
    assert bias_traces(watch) == pytest.approx(expected, rel=1e-9)


def test_several_outputs_and_a_loss_of_another_form() -> None:
    torch.manual_seed(0)
    model, x = TwoHeads(), torch.randn(5, 4)
    watch = Cockpit(model, [KroneckerSpectrum(approximation="kflr")])
    classes, value = model(x)
    loss = classes.logsumexp(1).mean() + value.square().mean()
    with (
        pytest.warns(CockpitWarning, match=r"no cross-entropy or squared error.*'outputs'"),
        watch(0, loss=loss),
    ):
        loss.backward()


def test_heads_that_feed_each_other_have_no_closed_form() -> None:
    z = torch.randn(N, V, dtype=torch.float64, requires_grad=True)
    p = (z * 1.0).log_softmax(1)
    loss = F.nll_loss(p, torch.zeros(N, dtype=torch.long)) + F.mse_loss(p, torch.zeros_like(p))
    assert closed_forms(loss, None) is None


def test_samples_that_are_coupled_are_refused() -> None:
    generator = torch.Generator()
    for columns in (N, V):
        z = torch.randn(N, columns, dtype=torch.float64, requires_grad=True) * 1.0
        with pytest.raises(Unsupported, match=r"couples the entries of the first dimension"):
            exact_root(-z.log_softmax(0).mean(), None, N, generator)
    z = torch.randn(N, dtype=torch.float64, requires_grad=True) * 1.0
    with pytest.raises(Unsupported, match=r"couples the entries of the first dimension"):
        exact_root(z.logsumexp(0), z, N, generator)


@pytest.mark.parametrize("approximation", ["kfac", "kflr"])
def test_what_has_no_factors_is_said_once(approximation: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    watch = Cockpit(model, [KroneckerSpectrum(approximation=approximation)])
    for step in range(2):
        loss = F.cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,)))
        with watch(step, loss=loss):
            loss.backward()
    (event,) = watch.run().events().to_dict("records")
    assert event["kind"] == "basis"
    assert event["message"].endswith("without: 1.weight, 1.bias")
