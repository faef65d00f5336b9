"""A loss that is computed anew is the one of the user's forward pass, with its dropout masks, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from curvature.networks import Case, rows_of
from curvature.test_closure import Opaque
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit import Cockpit, CockpitWarning
from cockpit.gradients.randomness import RandomState
from cockpit.quantities import CriticalSharpness, HessMaxEV, KroneckerSpectrum


def encoder() -> tuple[nn.Module, Tensor]:
    """With dropout, and an attention kernel without second derivative."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(4, 2, 3, dropout=0.4, batch_first=True).double()
    model.self_attn.dropout = 0.0
    return model, torch.randn(3, 5, 4).double()


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) @ torch.arange(1.0, 5.0).to(x)).sin().mean()


def largest(model: nn.Module, loss: Callable[[], Tensor], state: Tensor) -> float:
    """Of the dense Hessian of a loss that begins in a random state."""
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    with sdpa_kernel(SDPBackend.MATH):
        H = rows_of(loss(), list(model.parameters()))
    torch.set_rng_state(now)
    return torch.linalg.eigvalsh(H)[-1].item()


@pytest.mark.parametrize("calls", [1, 2])
def test_the_masks_are_those_of_the_forward_pass(calls: int) -> None:
    """Those of the first call and the further ones, where the loss has several."""
    model, x = encoder()

    def closure() -> Tensor:
        return sum(loss_of(model, x) for _ in range(calls))  # type: ignore[return-value]

    watch = Cockpit(model, [HessMaxEV(tol=1e-9)])
    for step in range(3):
        torch.rand(step)  # the state is not the one of the step before
        before = torch.get_rng_state()
        loss = closure()
        after = torch.get_rng_state()
        with watch(step, loss=loss, closure=closure):
            loss.backward()
        assert torch.equal(torch.get_rng_state(), after)
        found = watch.get_output()[step]["HessMaxEV"]
        assert found == pytest.approx(largest(model, closure, before), rel=1e-6)
    assert watch.run().events()["message"].tolist() == ["curvature: hessian; source: closure"]


class Masked(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.activation = nn.Linear(4, 5), nn.Linear(5, 3), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(F.dropout(self.first(x), 0.4, self.training)))


def test_differences_have_these_masks_too() -> None:
    torch.manual_seed(0)
    model, twin = Masked(Opaque.apply).double(), Masked(torch.tanh).double()
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
    before = torch.get_rng_state()
    loss = F.cross_entropy(model(x), y)
    watch = Cockpit(model, [HessMaxEV()])
    # Hooks came after the forward pass: its random state is not known, and the masks are others.
    with watch(0, loss=loss, closure=lambda: F.cross_entropy(model(x), y)):
        loss.backward()
    expected = largest(twin, lambda: F.cross_entropy(twin(x), y), before)
    assert watch.get_output()[0]["HessMaxEV"] != pytest.approx(expected, rel=1e-2)
    before = torch.get_rng_state()
    loss = F.cross_entropy(model(x), y)
    with watch(1, loss=loss, closure=lambda: F.cross_entropy(model(x), y)):
        loss.backward()
    expected = largest(twin, lambda: F.cross_entropy(twin(x), y), before)
    assert watch.get_output()[1]["HessMaxEV"] == pytest.approx(expected, rel=1e-4)
    assert "source: differences" in watch.run().events()["message"][0]


def test_a_forward_pass_beside_the_step_does_not_matter() -> None:
    """One whose graph is gone, or without a graph, has no part in the loss."""
    model, x = encoder()
    watch = Cockpit(model, [HessMaxEV(tol=1e-9)])

    def closure() -> Tensor:
        return loss_of(model, x)

    closure().backward()
    before = torch.get_rng_state()
    loss = closure()
    with torch.no_grad():
        model(x)
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    found = watch.get_output()[0]["HessMaxEV"]
    assert found == pytest.approx(largest(model, closure, before), rel=1e-6)


def other_data(model: nn.Module, x: Tensor) -> Tensor:
    return loss_of(model, x + 0.1)


def another_factor(model: nn.Module, x: Tensor) -> Tensor:
    return 2 * loss_of(model, x)


def numbers_before_the_model(model: nn.Module, x: Tensor) -> Tensor:
    torch.rand(1)
    return loss_of(model, x)


@pytest.mark.parametrize("closure", [other_data, another_factor, numbers_before_the_model])
@pytest.mark.parametrize("quantity", [HessMaxEV(), HessMaxEV(max_samples=2), CriticalSharpness()])
def test_another_loss_is_refused(quantity: Any, closure: Any) -> None:
    model, x = encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = Cockpit(model, [quantity], optimizer=opt)

    def train() -> None:
        for step in range(2):
            loss = loss_of(model, x)
            with watch(step, loss=loss, closure=lambda samples=...: closure(model, x[samples])):
                loss.backward()
            opt.step()

    with pytest.warns(CockpitWarning, match="computes another loss than the one given") as warned:
        train()
    assert len(warned) == 1
    assert watch.get_output() == {}
    assert watch.run().events()["kind"].tolist() == ["not-checked"] * 2


@pytest.mark.parametrize(("dtype", "difference"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_rounding_is_no_other_loss(dtype: torch.dtype, difference: float) -> None:
    model, x = encoder()
    model, x = model.to(dtype), x.to(dtype)
    watch = Cockpit(model, [HessMaxEV()])
    loss = loss_of(model, x)
    with watch(0, loss=loss, closure=lambda: loss_of(model, x) * (1 + difference)):
        loss.backward()
    assert watch.run().events()["kind"].tolist() == ["basis"]


def test_the_critical_sharpness_sees_the_masks() -> None:
    """The loss before the update is the one given, to the last bit."""
    model, x = encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    watch = Cockpit(model, [CriticalSharpness()], optimizer=opt)
    seen: list[float] = []

    def closure() -> Tensor:
        loss = loss_of(model, x)
        seen.append(loss.item())
        return loss

    loss = loss_of(model, x)
    with watch(0, loss=loss, closure=closure):
        loss.backward()
    opt.step()
    assert seen[0] == loss.item()
    assert len(seen) == 8
    assert watch.get_output()[0]["CriticalSharpness"] > 0


def test_kfra_runs_the_layers_with_the_masks() -> None:
    """Without the mask, the layers give other outputs, and this is refused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
    late = F.cross_entropy(model(x), y)
    watch = Cockpit(model, [KroneckerSpectrum(approximation="kfra")])
    with pytest.warns(CockpitWarning, match="not known"), watch(0, loss=late):
        late.backward()
    loss = F.cross_entropy(model(x), y)
    with watch(1, loss=loss):
        loss.backward()
    assert len(watch.get_output()[1]["KroneckerSpectrum"]["largest"]) == 4


def test_a_random_state() -> None:
    state = RandomState.capture()
    first = torch.rand(3)
    now = torch.get_rng_state()
    with state.restored():
        assert state.is_present
        assert torch.equal(torch.rand(3), first)
        assert not state.is_present
    assert torch.equal(torch.get_rng_state(), now)
    with RandomState.seeded(3).restored():
        found = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), now)
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(3)))


def test_it_is_put_back_after_a_failure() -> None:
    now = torch.get_rng_state()

    def fail() -> None:
        torch.rand(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), RandomState.seeded(3).restored():
        fail()
    assert torch.equal(torch.get_rng_state(), now)


def test_buffers_are_put_back_where_another_loss_is_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    case = Case(model, torch.randn(6, 4).double(), torch.randint(3, (6,)), F.cross_entropy)
    watch = Cockpit(model, [HessMaxEV(max_samples=2)])
    loss = F.cross_entropy(case.model(case.x), case.y)
    running = model[1].running_mean.clone()
    with (
        pytest.warns(CockpitWarning, match="another loss"),
        watch(0, loss=loss, closure=lambda samples=...: model(case.x[samples]).square().mean()),
    ):
        loss.backward()
    assert torch.equal(model[1].running_mean, running)
