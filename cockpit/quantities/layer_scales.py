"""What the layers begin with: the scale of their weights and of what they are given, and equal units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.needs import InForward
from cockpit.gradients import Call

WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
"""Layers that sum over their inputs, so that the scale of these matters, with a row of weights for each unit."""

ROWS = 64
"""Units of a layer that are compared with each other."""

EQUAL = 1e-3
"""Distance of two units' weights, relative to their norms, up to which they are the same. Random weights of
n inputs are about the square root of 2 apart, and closer than this with a chance of about 0.001^n."""


@dataclass(frozen=True)
class LayerScales(InForward):
    r"""Of every linear layer and convolution: gain, share of twins, size of the input, and offset, `[4]`.

    The *gain* is the root mean square norm of a unit's weights, :math:`\lVert W \rVert_F / \sqrt{units}`:
    the factor by which the layer scales an uncorrelated input. *Twins* are units whose weights are those of
    another unit; the share is among at most `ROWS` units, evenly spread, and 0 for weights of zeros. The
    size of the input is its root mean square. The *offset* is how much of the weights is their mean,
    :math:`\lvert \bar w \rvert / \mathrm{rms}(w)` of a unit, in the mean over the units: 1 for weights that are
    all the same, and about :math:`0.8 / \sqrt{inputs}` for random ones of mean 0.
    """

    def see(self, name: str, call: Call, output: Any) -> Tensor | None:
        """Return the four."""
        if not isinstance(call.module, WEIGHTED) or not call.args:
            return None
        x, weight = call.args[0], call.module._parameters.get("weight")
        if weight is None or not isinstance(x, Tensor) or not x.numel():
            return None
        rows = rows_of(call.module, weight.detach())
        gain = torch.linalg.vector_norm(rows.float()) / len(rows) ** 0.5
        size = torch.linalg.vector_norm(x.detach().float()) / x.numel() ** 0.5
        return torch.stack([gain, twins(rows), size, offset(rows.float())])

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return those of all processes: their weights are the same, and their inputs equally many."""
        table = torch.stack(list(parts))
        size = table[:, 2:3].square().mean(0).sqrt()
        return torch.cat([table[0, :2], size, table[0, 3:]])


@dataclass(frozen=True)
class Norms(InForward):
    """Which modules are normalisation layers, by the names of their classes: 1 for each of them."""

    def see(self, name: str, call: Call, output: Any) -> int | None:
        """Return 1 for one of them."""
        return 1 if "Norm" in type(call.module).__name__ else None

    def joined(self, parts: Sequence[int]) -> int:
        """Return 1."""
        return 1


def rows_of(module: nn.Module, weight: Tensor) -> Tensor:
    """Return the weights of each unit, `[units, inputs]`."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        weight = weight.transpose(0, 1)
    return weight.flatten(1)


def offset(rows: Tensor) -> Tensor:
    """Return the mean of a unit's weights over their root mean square, without sign, in the mean over units, `[]`."""
    size = rows.square().mean(1).sqrt()
    return (rows.mean(1).abs() / torch.where(size > 0, size, 1.0)).mean()


def twins(rows: Tensor) -> Tensor:
    """Return the share of units that have the weights of another one, `[]`."""
    rows = rows[:: -(-len(rows) // ROWS)].float()
    if len(rows) < 2:
        return rows.new_zeros(())
    products = rows @ rows.T
    squares = products.diagonal()
    apart = squares[:, None] + squares - 2 * products
    apart.fill_diagonal_(torch.inf)
    nearest = apart.amin(1)
    return ((nearest <= EQUAL**2 * squares) & (squares > 0)).float().mean()
