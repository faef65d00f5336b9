"""One backward pass for all needs: what is observed when, and what is carried from one step to the next."""

from cockpit.engine.engine import Engine
from cockpit.engine.extending import Extended
from cockpit.engine.losses import Losses
from cockpit.engine.needs import InForward, Moment, Next, Observation
from cockpit.engine.plan import Plan
from cockpit.engine.reports import Reports, Result
from cockpit.engine.scale import LossScale
from cockpit.engine.step import Missing, NotChecked, PerModule, PerParameter, Step
from cockpit.engine.transfer import to_host

__all__ = [
    "Engine",
    "Extended",
    "InForward",
    "LossScale",
    "Losses",
    "Missing",
    "Moment",
    "Next",
    "NotChecked",
    "Observation",
    "PerModule",
    "PerParameter",
    "Plan",
    "Reports",
    "Result",
    "Step",
    "to_host",
]
