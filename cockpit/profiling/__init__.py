"""What tracking costs: measured, and what arithmetic allows."""

from cockpit.profiling.arithmetic import LowerBound, lower_bound
from cockpit.profiling.figures import Figure, LayerCost, NeedCost, QuantityCost, StepCost
from cockpit.profiling.measuring import profile
from cockpit.profiling.memory import peak_memory
from cockpit.profiling.report import Profile

__all__ = [
    "Figure",
    "LayerCost",
    "LowerBound",
    "NeedCost",
    "Profile",
    "QuantityCost",
    "StepCost",
    "lower_bound",
    "peak_memory",
    "profile",
]
