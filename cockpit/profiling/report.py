"""The profile: what tracking costs, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cockpit.profiling import rendering
from cockpit.profiling.figures import LayerCost, NeedCost, QuantityCost, StepCost

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("quantities", "needs", "layers")


@dataclass(frozen=True)
class Profile:
    """What `cockpit.profile` measured.

    Printed, it is tables of 80 columns; `to_dict` gives all figures for JSON, and `frame` one table
    to pandas. Times are in seconds and sizes in bytes; the rows come with the dearest first.

    Args:
        model: Kind of the model.
        batch_size: Number of samples, 0 where the losses do not tell.
        device: Where it was trained.
        threads: Number of threads that PyTorch uses on the host.
        repeats: How often every kind of step was timed.
        overhead: Share of the training time for which intervals are proposed.
        steps: The cost of whole steps: ``"plain"``; ``"attached"``, with a cockpit and nothing due;
            ``"fetched"``, with individual gradients of which nothing is made (the graph is read, the
            hooks are heard, a row is written), where some quantity wants these; and ``"tracked"``.
        quantities: What each quantity costs.
        needs: What each need costs, and who asks for it.
        layers: What each need costs for each parameter.
        notes: What was not tracked as one would expect, and why.
    """

    model: str
    batch_size: int
    device: str
    threads: int
    repeats: int
    overhead: float
    steps: Mapping[str, StepCost]
    quantities: tuple[QuantityCost, ...]
    needs: tuple[NeedCost, ...]
    layers: tuple[LayerCost, ...]
    notes: tuple[str, ...] = ()

    @property
    def plain(self) -> StepCost:
        """The cost of the plain step."""
        return self.steps["plain"]

    @property
    def tracked(self) -> StepCost:
        """The cost of the tracked step."""
        return self.steps["tracked"]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dicts, lists, numbers and strings, for JSON."""
        return asdict(self)

    def frame(self, table: str = "quantities") -> pd.DataFrame:
        """Return one of the tables as a pandas frame; medians with their quartiles beside.

        Args:
            table: ``"quantities"``, ``"needs"`` or ``"layers"``.
        """
        import pandas as pd

        if table not in TABLES:
            raise KeyError(f"There is no table {table!r}. Choose from {', '.join(TABLES)}.")
        return pd.json_normalize([asdict(row) for row in getattr(self, table)], sep="_")

    def __str__(self) -> str:
        return rendering.text(self)

    def __repr__(self) -> str:
        ratio = self.tracked.ratio.median
        return f"<Profile of {self.model}: {len(self.quantities)} quantities, {ratio:.2f}x a plain step>"
