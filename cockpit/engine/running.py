"""The step whose backward passes are under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from cockpit.engine.gathering import Gathered
from cockpit.engine.plan import Plan
from cockpit.engine.step import Step
from cockpit.gradients import Draw


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

    @property
    def draw(self) -> Draw | None:
        """The samples whose individual gradients were looked at, where these are not all."""
        draws = [gathered.draw for gathered in self.done if gathered.draw is not None]
        if len(draws) <= 1 or len(draws) < len(self.done):
            return draws[0] if draws and self.passes == 1 else None
        return Draw.joined(draws, [gathered.batch_size for gathered in self.done])

    def uneven_draws(self) -> str | None:
        """Return why what was drawn from the passes cannot be put together, if so."""
        sizes = [gathered.batch_size for gathered in self.done]
        counts = [g.batch_size if g.draw is None else g.draw.batch.size for g in self.done]
        pairs = list(zip(counts, sizes, strict=True))
        if all(count * sizes[0] == counts[0] * size for count, size in pairs):
            return None
        told = ", ".join(f"{count} of {size}" for count, size in pairs)
        return (
            f"the samples drawn are unequal shares of the micro-batches ({told}), so that they do not stand "
            "for the whole batch; with subsample= give micro-batches of one size"
        )
