"""The algebra of Kronecker products, against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cockpit.curvature import Kronecker

SHAPES = [[(3, 4)], [(2, 3), (4, 2)], [(2, 2), (3, 1), (1, 4)], [(2, 3), (3, 2), (2, 2), (1, 2)]]


def symmetric(sizes: list[int], positive: bool = True) -> list[Tensor]:
    torch.manual_seed(0)
    factors = [torch.randn(n, n + 1, dtype=torch.float64) for n in sizes]
    return [a @ a.mT if positive else a[:, :-1] + a[:, :-1].mT for a in factors]


@pytest.mark.parametrize("shapes", SHAPES)
def test_products(shapes: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    product = Kronecker(*(torch.randn(shape, dtype=torch.float64) for shape in shapes))
    dense = product.dense()
    assert tuple(dense.shape) == product.shape
    M = torch.randn(product.shape[1], 5, dtype=torch.float64)
    torch.testing.assert_close(product @ M, dense @ M)
    torch.testing.assert_close(product @ M[:, 0], dense @ M[:, 0])
    torch.testing.assert_close(product.mT @ dense, dense.mT @ dense)


@pytest.mark.parametrize("sizes", [[4], [3, 4], [2, 3, 2]])
def test_eigenvalues_trace_and_inverse(sizes: list[int]) -> None:
    product = Kronecker(*symmetric(sizes))
    dense = product.dense()
    eye = torch.eye(len(dense), dtype=torch.float64)
    torch.testing.assert_close(product.eigenvalues(), torch.linalg.eigvalsh(dense))
    torch.testing.assert_close(product.trace(), dense.trace())
    torch.testing.assert_close(product.diagonal(), dense.diagonal())
    torch.testing.assert_close(product.eigh().dense(), dense)
    torch.testing.assert_close(product.inverse().dense(), torch.linalg.inv(dense))
    damped = torch.linalg.inv(dense + 0.3 * eye)
    torch.testing.assert_close(product.inverse(0.3).dense(), damped)
    torch.testing.assert_close(product.inverse(0.3) @ dense[0], damped @ dense[0])


def test_truncation() -> None:
    product = Kronecker(*symmetric([3, 4]))
    values, vectors = torch.linalg.eigh(product.dense())
    limit = (values[5] + values[6]) / 2 / values[-1]
    for damping in (0.0, 0.5):
        kept = torch.where(values < limit * values[-1], 0, values) + damping
        expected = vectors @ torch.diag(torch.where(kept == 0, 0, 1 / kept)) @ vectors.mT
        found = product.inverse(damping, truncate=float(limit)).dense()
        torch.testing.assert_close(found, expected)


def test_a_positive_shift() -> None:
    shifted = Kronecker(*symmetric([3, 4], positive=False)).shifted(0.1)
    for factor in shifted.factors:
        assert torch.linalg.eigvalsh(factor)[0] == pytest.approx(0.1)
    assert shifted.eigenvalues()[0] == pytest.approx(0.01)
    positive = Kronecker(*symmetric([3, 4]))
    for before, after in zip(positive.factors, positive.shifted(1e-6).factors, strict=True):
        torch.testing.assert_close(after, before)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one or more matrices"):
        Kronecker()
    with pytest.raises(ValueError, match=r"a vector \[6\]"):
        _ = Kronecker(torch.eye(2), torch.eye(3)) @ torch.ones(5)
