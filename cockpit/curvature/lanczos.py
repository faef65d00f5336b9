"""Lanczos iteration with full reorthogonalisation: eigenvalues from products with vectors alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


class Krylov:
    """An orthonormal basis of the Krylov space of a symmetric matrix, and the matrix within it.

    Args:
        product: Multiplies the matrix with a vector `[D]`.
        start: The vector that the space starts from, `[D]`, not zero.
    """

    def __init__(self, product: Product, start: Tensor) -> None:
        self._product = product
        self._basis: list[Tensor] = []
        self._next: Tensor | None = start / torch.linalg.vector_norm(start)
        self.diagonal: list[float] = []
        self.off_diagonal: list[float] = []  # the last one leads out of the space

    def __len__(self) -> int:
        """Dimension of the space, the number of products so far."""
        return len(self._basis)

    def grow(self) -> bool:
        """Add a dimension, by one product. Return whether there can be more."""
        assert self._next is not None
        vector = self._next
        self._basis.append(vector)
        image = self._product(vector)
        alpha = torch.dot(image, vector)
        size = torch.linalg.vector_norm(image)
        image = torch.addcmul(image, vector, alpha, value=-1)  # from here on it is ours
        for others in (self._basis[:-1], self._basis):  # rounding leaves a part along the basis
            for other in reversed(others):
                image.addcmul_(other, torch.dot(image, other), value=-1)
        beta = torch.linalg.vector_norm(image)
        alpha_, beta_, size_ = torch.stack([alpha, beta, size]).tolist()
        self.diagonal.append(alpha_)
        self.off_diagonal.append(beta_)
        invariant = not beta_ > 10 * torch.finfo(image.dtype).eps * size_
        ended = invariant or len(self) >= vector.numel()
        self._next = None if ended else image.div_(beta)
        if ended:
            self.off_diagonal[-1] = 0.0
        return not ended

    def eigen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the eigenvalues within the space, ascending, and the eigenvectors in its basis, as columns."""
        k = len(self)
        matrix = np.diag(np.array(self.diagonal, dtype=np.float64))
        rows = np.arange(k - 1)
        matrix[rows, rows + 1] = matrix[rows + 1, rows] = self.off_diagonal[: k - 1]
        if not np.isfinite(matrix).all():
            return np.full(k, np.nan), np.full((k, k), np.nan)
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors

    def vector(self, coordinates: np.ndarray) -> Tensor:
        """Return a vector of the space from its coordinates in the basis, `[D]`."""
        total = torch.zeros_like(self._basis[0])
        for coordinate, vector in zip(coordinates.tolist(), self._basis, strict=True):
            total.add_(vector, alpha=coordinate)
        return total


@dataclass(frozen=True)
class Spectrum:
    """Both ends of a spectrum.

    Args:
        largest: The algebraically largest eigenvalue.
        smallest: The algebraically smallest eigenvalue, as far as it is known: it is as precise as
            `largest` where it is the larger one in magnitude.
        upper: Eigenvector of `largest`, `[D]`.
        lower: Eigenvector of `smallest`, `[D]`.
        products: Number of products with the matrix.
        residual: ‖A v − λ v‖ of `largest`.
        converged: Whether the tolerance was met.
    """

    largest: float
    smallest: float
    upper: Tensor
    lower: Tensor
    products: int
    residual: float
    converged: bool

    @property
    def magnitude(self) -> float:
        """The eigenvalue of the largest magnitude, with its sign."""
        return self.largest if abs(self.largest) >= abs(self.smallest) else self.smallest


def extremes(
    product: Product,
    start: Tensor,
    tolerance: float = 1e-3,
    max_products: int = 100,
    max_basis: int = 40,
) -> Spectrum:
    """Find the algebraically largest eigenvalue, and the one of the largest magnitude.

    An eigenvalue is taken for found when its error is at most `tolerance` of itself. The error is
    estimated by the smaller one of two bounds: the residual r, and r² over the distance to the next
    eigenvalue.

    Args:
        product: Multiplies the symmetric matrix with a vector `[D]`.
        start: Vector to start from, `[D]`, with a part along every eigenvector; the nearer it is to
            the wanted ones, the fewer products it takes.
        tolerance: Relative error that is accepted.
        max_products: When to give up.
        max_basis: Number of vectors that may be stored; with more, the iteration starts again from
            the best ones.
    """
    spent = 0
    while True:
        space = Krylov(product, start)
        growing = True
        while growing and len(space) < max_basis and spent < max_products:
            growing = space.grow()
            spent += 1
            values, vectors = space.eigen()
            residuals = np.abs(space.off_diagonal[-1] * vectors[-1])
            finite = bool(np.isfinite(values).all())
            converged = finite and (not growing or _converged(values, residuals, tolerance))
            if converged or not finite:
                break
        if converged or not finite or spent >= max_products:
            return Spectrum(
                float(values[-1]),
                float(values[0]),
                space.vector(vectors[:, -1]),
                space.vector(vectors[:, 0]),
                spent,
                float(residuals[-1]),
                converged,
            )
        start = space.vector(vectors[:, -1]) + space.vector(vectors[:, 0])


def _converged(values: np.ndarray, residuals: np.ndarray, tolerance: float) -> bool:
    if len(values) < 3:
        return False
    spread = max(abs(values[-1]), abs(values[0]))
    rounding = 1e-14 * spread
    if _error(residuals[-1], values[-1] - values[-2]) > tolerance * abs(values[-1]) + rounding:
        return False
    if values[-1] > 0 and -values[0] + residuals[0] < values[-1]:
        return True  # the lower end is smaller in magnitude, wherever exactly it is
    return bool(_error(residuals[0], values[1] - values[0]) <= tolerance * spread + rounding)


def _error(residual: float, gap: float) -> float:
    return min(residual, residual**2 / gap) if gap > 0 else residual
