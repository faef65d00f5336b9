"""What is known of one parameter's individual gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GRAPH, REPLAYED, UNDECIDED = "graph", "replayed", "graph or replay"
FROZEN, EMPTY, NOTHING = "frozen", "empty", "nothing"
"""What serves a parameter, and what stands there where nothing is needed, or nothing helps."""

EXACT, SHARE, UNUSED = "exact", "share", "unused"
"""What a pass on data says of a parameter that is tracked."""


@dataclass(frozen=True)
class ParameterCoverage:
    """One parameter, and how its individual gradients are had.

    Args:
        name: As in ``model.named_parameters()``.
        shape: Its shape; None while a lazy module has not seen its first input.
        elements: Number of scalars in it.
        module: Name of the module at whose calls it is served, empty for the model itself.
        layer: Kind of that module, such as ``"Linear"``.
        served_by: What computes them: ``"closed form"``, without ever storing N gradients;
            ``"closed form, run again"``, so, once the layer has been run again to see what is
            inside; ``"dense"``, they are small and stored; ``"graph"``, from the operation that uses the
            parameter; ``"replayed"``, the layer runs again, sample by sample, and its backward pass
            with it; ``"graph or replay"``, one of these, and only data tell which. Where there is
            nothing to compute, ``"frozen"`` or ``"empty"``, and ``"nothing"`` where no rule helps.
        rule: Name of the rule.
        notes: What is special about it, a sentence each.
        gap: Why it is not tracked; None where it is, and where there is nothing to track.
        way_out: What to do about the gap.
        seen: What a pass on data has shown. ``"exact"``: the gradients of the samples that were
            looked at agree with brute force. ``"share"``: the loss of a sample depends on other
            samples, too, and these are the shares of the samples in the gradient, to which they add
            up. ``"unused"``: the parameter had no part in the outputs. None without data.
        calls: How often its modules were called in that pass.
        error: Largest relative difference from brute force, over the samples that were looked at.
    """

    name: str
    shape: tuple[int, ...] | None
    elements: int
    module: str
    layer: str
    served_by: str
    rule: str = ""
    notes: tuple[str, ...] = ()
    gap: str | None = None
    way_out: str | None = None
    seen: str | None = None
    calls: int | None = None
    error: float | None = None

    @property
    def trained(self) -> bool:
        """Whether there is something to track: the parameter is neither frozen nor empty."""
        return self.served_by not in (FROZEN, EMPTY)

    @property
    def tracked(self) -> bool:
        """Whether its individual gradients are had."""
        return self.trained and self.gap is None

    @property
    def in_closed_form(self) -> bool:
        """Whether the N gradients are never stored."""
        return self.tracked and self.served_by.startswith("closed form")

    @property
    def status(self) -> str:
        """What the table says of it, in one or two words."""
        if self.gap is not None:
            return "not tracked"
        if self.seen is None:
            return self.served_by
        return f"{self.served_by}, {self.seen}"

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What parameters have in common that stand in one line of the table."""
        return (self.shape, self.layer, self.status)
