"""The step whose backward passes are under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from cockpit.engine.gathering import Gathered
from cockpit.engine.plan import Plan
from cockpit.engine.step import Step


@dataclass
class Running:
    """The step whose backward passes are under way."""

    step: Step
    plan: Plan
    kept: tuple[str, ...]  # functions of the user's, whose results stay on the parameters
    passes: int  # how many backward passes make up the step
    done: list[Gathered] = field(default_factory=list)  # those so far, with the present one

    @property
    def fault(self) -> str | None:
        """Why the individual gradients cannot be trusted as a whole, if so."""
        return next((g.fault for g in self.done if g.fault is not None), None)

    @property
    def refused(self) -> set[str]:
        """Parameters without individual gradients."""
        return set().union(*(g.refused for g in self.done))
