"""The quantities: one small class a file."""

from cockpit.quantities.alpha import Alpha
from cockpit.quantities.distance import Distance
from cockpit.quantities.grad_hist import GradHist1d
from cockpit.quantities.grad_norm import GradNorm
from cockpit.quantities.gradient_tests import InnerTest, NormTest, OrthoTest
from cockpit.quantities.loss import Loss
from cockpit.quantities.parameters import Parameters
from cockpit.quantities.quantity import Outcome, Quantity
from cockpit.quantities.time import Time
from cockpit.quantities.update_size import UpdateSize

__all__ = [
    "Alpha",
    "Distance",
    "GradHist1d",
    "GradNorm",
    "InnerTest",
    "Loss",
    "NormTest",
    "OrthoTest",
    "Outcome",
    "Parameters",
    "Quantity",
    "Time",
    "UpdateSize",
]
