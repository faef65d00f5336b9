"""Traces and spectral densities from products with random vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cockpit.curvature.lanczos import Krylov, Product

Draw = Callable[[], Tensor]


def diagonal_samples(
    product: Product, draw: Draw, probes: int, sketch: int = 0
) -> tuple[Tensor | None, list[Tensor]]:
    """Estimate the diagonal of a matrix A from products with random signs.

    Hutchinson's estimate is v ∘ Av. With a sketch (Hutch++), the part of A within the span Q of some
    products is taken exactly, and only (I − QQᵀ)A is estimated; the sums of both have the smaller
    variance the faster the spectrum decays.

    Args:
        product: Multiplies A with a vector `[D]`.
        draw: Returns a new vector of random signs, `[D]`.
        probes: Number of samples.
        sketch: Dimension of Q, which takes twice as many products.

    Returns:
        The exact part, `[D]`, or None without a sketch; and the samples of the rest, `[D]` each.
    """
    exact, basis = None, None
    if sketch:
        images = torch.stack([product(draw()) for _ in range(sketch)], dim=1)
        basis = torch.linalg.qr(images).Q  # [D, sketch]
        exact = torch.zeros_like(images[:, 0])
        for column in basis.T:
            exact += column * product(column)
    samples = []
    for _ in range(probes):
        probe = draw()
        image = product(probe)
        if basis is not None:
            image = image - basis @ (basis.T @ image)
        samples.append(probe * image)
    return exact, samples


@dataclass(frozen=True)
class Density:
    """A density of eigenvalues, as a sum of points with weights.

    Args:
        nodes: Where the points are, ascending, `[K]`.
        weights: Their weights, which add up to 1, `[K]`.
    """

    nodes: np.ndarray
    weights: np.ndarray

    def on(self, points: int = 200, width: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
        """Return a grid and the density on it, each point smeared to a Gaussian.

        Args:
            points: Number of points of the grid.
            width: Standard deviation of the Gaussians, as a share of the spectrum's extent.
        """
        low, high = self.nodes[0], self.nodes[-1]
        sigma = max(width * (high - low), 1e-6 * max(abs(low), abs(high), 1e-30))
        grid = np.linspace(low - 4 * sigma, high + 4 * sigma, points)
        bells = np.exp(-0.5 * ((grid[:, None] - self.nodes) / sigma) ** 2)
        return grid, (bells @ self.weights) / (sigma * np.sqrt(2 * np.pi))


def density(product: Product, draw: Draw, probes: int, steps: int) -> Density:
    """Estimate the density of a symmetric matrix's eigenvalues by stochastic Lanczos quadrature.

    Args:
        product: Multiplies the matrix with a vector `[D]`.
        draw: Returns a new vector of random signs, `[D]`.
        probes: Number of random vectors.
        steps: Number of products for each.
    """
    nodes, weights = [], []
    for _ in range(probes):
        space = Krylov(product, draw())
        while space.grow() and len(space) < steps:
            pass
        values, vectors = space.eigen()
        nodes.append(values)
        weights.append(vectors[0] ** 2 / probes)
    order = np.argsort(np.concatenate(nodes))
    return Density(np.concatenate(nodes)[order], np.concatenate(weights)[order])
