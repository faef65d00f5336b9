"""Kronecker products A ⊗ B ⊗ ... as they are: never formed, but multiplied, inverted and decomposed.

Rows and columns are numbered with the last factor running fastest, as in `torch.kron`. With a
matrix W `[p, q]` flattened row by row, (A ⊗ B) vec(W) = vec(A W Bᵀ).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from cockpit.errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Kronecker:
    """The Kronecker product of matrices.

    Args:
        factors: The matrices, `[m_1, n_1]`, `[m_2, n_2]`, ...; at least one.

    Raises:
        InvalidArgument: if there is none, or one is no matrix.
    """

    factors: tuple[Tensor, ...]

    def __init__(self, *factors: Tensor) -> None:
        if not factors or any(factor.dim() != 2 for factor in factors):
            shapes = [list(factor.shape) for factor in factors]
            raise InvalidArgument(f"Kronecker takes one or more matrices, got shapes {shapes}.")
        object.__setattr__(self, "factors", factors)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        rows = reduce(lambda total, factor: total * factor.shape[0], self.factors, 1)
        return rows, reduce(lambda total, factor: total * factor.shape[1], self.factors, 1)

    def dense(self) -> Tensor:
        """Return the product as a matrix, `[M, N]`: for small ones."""
        return reduce(torch.kron, [factor.contiguous() for factor in self.factors])

    def __matmul__(self, other: Tensor) -> Tensor:
        """Return the product with a vector `[N]` or a matrix `[N, K]`, factor by factor.

        Raises:
            InvalidArgument: if the sizes do not fit.
        """
        if other.dim() not in (1, 2) or len(other) != self.shape[1]:
            raise InvalidArgument(
                f"A Kronecker product of shape {list(self.shape)} cannot be multiplied with "
                f"{list(other.shape)}; give a vector [{self.shape[1]}] or a matrix "
                f"[{self.shape[1]}, K]."
            )
        result = other.reshape(*(factor.shape[1] for factor in self.factors), -1)
        for axis, factor in enumerate(self.factors):
            result = torch.tensordot(factor, result, dims=([1], [axis])).movedim(0, axis)
        return result.reshape(self.shape[0], *other.shape[1:])

    @property
    def mT(self) -> Kronecker:  # noqa: N802 - as for tensors
        """The transpose."""
        return Kronecker(*(factor.mT for factor in self.factors))

    def trace(self) -> Tensor:
        """Return the trace, the product of the factors' traces, `[]`."""
        return torch.stack([factor.diagonal().sum() for factor in self.factors]).prod()

    def diagonal(self) -> Tensor:
        """Return the diagonal, `[N]`."""
        return products([factor.diagonal() for factor in self.factors])

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of a product of symmetric matrices, ascending, `[N]`."""
        return products([torch.linalg.eigvalsh(factor) for factor in self.factors]).sort().values

    def eigh(self) -> KroneckerEigen:
        """Decompose a product of symmetric matrices."""
        pairs = [torch.linalg.eigh(factor) for factor in self.factors]
        values = products([values for values, _ in pairs])
        return KroneckerEigen(values, Kronecker(*(vectors for _, vectors in pairs)))

    def inverse(self, damping: float = 0.0, truncate: float = 0.0) -> KroneckerEigen:
        """Return (A ⊗ B ⊗ ... + damping · I)⁻¹ of symmetric factors.

        Args:
            damping: Added to all eigenvalues.
            truncate: Eigenvalues below this share of the largest one are taken for zero, and where
                there is no damping, their directions are left out.
        """
        eigen = self.eigh()
        small = eigen.values.abs() < truncate * eigen.values.abs().max()
        values = torch.where(small, 0, eigen.values) + damping
        inverse = torch.where(values == 0, 0, 1 / values)
        return KroneckerEigen(inverse, eigen.vectors)

    def shifted(self, smallest: float) -> Kronecker:
        """Make symmetric factors positive definite.

        Each factor whose smallest eigenvalue is below `smallest` is shifted by a multiple of the
        identity, so that it becomes that.
        """
        shifted = []
        for factor in self.factors:
            shift = (smallest - torch.linalg.eigvalsh(factor)[0]).clamp(min=0)
            shifted.append(factor + shift * torch.eye(len(factor)).to(factor))
        return Kronecker(*shifted)


@dataclass(frozen=True, eq=False)
class KroneckerEigen:
    """A symmetric matrix V diag(λ) Vᵀ whose eigenvectors are a Kronecker product.

    Args:
        values: The eigenvalues in the order of the columns of V, `[N]`.
        vectors: V.
    """

    values: Tensor
    vectors: Kronecker

    def __matmul__(self, other: Tensor) -> Tensor:
        """Return the product with a vector `[N]` or a matrix `[N, K]`."""
        rotated = self.vectors.mT @ other
        scaled = self.values.reshape(-1, *[1] * (other.dim() - 1)) * rotated
        return self.vectors @ scaled

    def dense(self) -> Tensor:
        """Return the matrix, `[N, N]`: for small ones."""
        return self @ torch.eye(len(self.values)).to(self.values)


def products(vectors: Sequence[Tensor]) -> Tensor:
    """Return all products of one element from each vector, the last one running fastest, `[N]`."""
    return reduce(lambda total, vector: torch.outer(total, vector).reshape(-1), vectors)
