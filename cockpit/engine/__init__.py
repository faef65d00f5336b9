"""One backward pass for all needs: what is observed when, and what is carried from one step to the next."""

from cockpit.engine.engine import Engine, Result
from cockpit.engine.needs import Moment, Next, Observation
from cockpit.engine.plan import Plan
from cockpit.engine.scale import LossScale
from cockpit.engine.step import Missing, NotChecked, PerParameter, Step
from cockpit.engine.transfer import to_host

__all__ = [
    "Engine",
    "LossScale",
    "Missing",
    "Moment",
    "Next",
    "NotChecked",
    "Observation",
    "PerParameter",
    "Plan",
    "Result",
    "Step",
    "to_host",
]
