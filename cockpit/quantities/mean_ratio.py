"""What quantities have in common that average a ratio of signal to noise over all elements."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cockpit.engine.step import Step
from cockpit.quantities.quantity import Quantity
from cockpit.transforms import Need, Transform


@dataclass(frozen=True)
class MeanRatio(Quantity):
    """Base of quantities made from a transform that sums a ratio over a parameter's elements.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        epsilon: Keeps the ratio finite where the noise is zero.
    """

    epsilon: float = 1e-5

    @property
    def ratios(self) -> Transform:
        """The transform of the individual gradients."""
        raise NotImplementedError

    def needs(self) -> tuple[Need, ...]:
        """Return the transform of this epsilon."""
        return (self.ratios,)

    def mean_ratio(self, step: Step) -> Tensor:
        """Return the mean over the elements of all parameters, `[]`."""
        ratios = step[self.ratios]
        return ratios.total() / sum(step.parameters[name].numel() for name in ratios)
