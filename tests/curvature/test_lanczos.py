"""Both ends of spectra that are known."""

from __future__ import annotations

import pytest
import torch

from cockpit.curvature import extremes


def matrix(values: list[float]) -> torch.Tensor:
    torch.manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64))
    return Q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ Q.T


@pytest.mark.parametrize(
    "values",
    [
        [-4, 0.2],
        [0.2],
        [-3.0],
        [0.0, 0.0],
        [-1.0, -2.0, -5.0, -5.5],
        [2.0, 2.0, 2.0],
        [1e-9, -1.0, 3e-10],
        [*torch.linspace(-1, 1.01, 60).tolist()],
        [*torch.linspace(-7, 1, 200).tolist(), 1.5],
        [*([1e-3] * 50), 10, 9.99, -10.01],
    ],
)
@pytest.mark.parametrize("max_basis", [40, 10])
def test_indefinite_spectra(values: list[float], max_basis: int) -> None:
    A = matrix(values)
    start = torch.randn(len(values), dtype=torch.float64)
    found = extremes(A.__matmul__, start, 1e-9, 2000, max_basis)
    assert found.converged
    assert found.largest == pytest.approx(max(values), rel=1e-6, abs=1e-13)
    assert found.magnitude == pytest.approx(max(values, key=abs), rel=1e-6, abs=1e-13)
    residual = (A @ found.upper - found.largest * found.upper).norm()
    assert residual <= 1e-4 * max(map(abs, values))


def test_a_near_start_saves_products() -> None:
    A = matrix([*torch.linspace(-1, 1, 300).tolist(), 3, 4])
    cold = extremes(A.__matmul__, torch.randn(302, dtype=torch.float64))
    start = cold.upper + cold.lower + 0.01 * torch.randn(302, dtype=torch.float64)
    warm = extremes(A.__matmul__, start)
    assert warm.products < cold.products
    assert warm.largest == pytest.approx(4, rel=1e-3)


def test_it_gives_up_when_told_and_says_so() -> None:
    A = matrix(torch.linspace(0, 1, 100).tolist())
    found = extremes(A.__matmul__, torch.randn(100, dtype=torch.float64), 1e-9, 5)
    assert found.products == 5
    assert not found.converged


def test_values_that_are_not_finite_end_it() -> None:
    found = extremes(lambda v: v * float("nan"), torch.randn(10))
    assert found.products == 1
    assert found.largest != found.largest
    assert not found.converged
