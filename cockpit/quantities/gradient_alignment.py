"""How well the samples agree on the direction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.transforms import Gram


@dataclass(frozen=True)
class GradientAlignment(Quantity):
    r"""Cosines between the gradients of the samples.

    Formula: mean and share of negative ones of
    :math:`\cos(g_i, g_j) = \frac{g_i \cdot g_j}{\lVert g_i \rVert \lVert g_j \rVert}` over all pairs
    :math:`i \ne j`. Pairs with a gradient of zero have no angle and are left out; NaN without any pair.

    How to read it: positive early on, when all samples want the same, and falling to about zero. A
    share of negative cosines above one half means that the samples work against each other.

    Source: Fort, Nowak, Jastrzebski & Narayanan (2019), arXiv:1901.09491 (gradient stiffness).

    With accumulation: the pairs are those of the whole batch. With ``Cockpit(..., subsample=k)``: the
    pairs of the k samples that were drawn; the details say how many ``samples`` there were.
    """

    products = Gram()

    def compute(self, step: Step) -> dict[str, Tensor] | Outcome:
        """Return ``mean_cosine`` and ``negative_share``, each `[]`."""
        products = step[self.products].total()  # [N, N]
        norms = products.diagonal().sqrt()
        cosines = products / (norms * norms.unsqueeze(1))
        pairs = (norms != 0) & (norms != 0).unsqueeze(1)
        pairs = pairs & ~torch.eye(len(norms), dtype=torch.bool, device=norms.device)
        count = pairs.sum()
        value = {
            "mean_cosine": torch.where(pairs, cosines, 0).sum() / count,
            "negative_share": (pairs & (cosines < 0)).sum() / count,
        }
        return value if step.draw is None else Outcome(value, {"samples": len(norms)})
