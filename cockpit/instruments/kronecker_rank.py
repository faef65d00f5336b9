"""The effective rank of each parameter's Kronecker-factored curvature."""

from __future__ import annotations

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Heat, Panel
from cockpit.instruments.reading import table

__all__ = ["panel"]


@instrument("KroneckerSpectrum", name="kronecker-rank")
def panel(run: Readable) -> Panel | None:
    """Return the ranks as a heat map, parameter × step."""
    rank = table(run, "KroneckerSpectrum", "effective_rank")
    if rank is None:
        return None
    return Panel(
        title="Effective rank by parameter",
        group="CURVATURE",
        how_to_read="The number of directions with curvature: a layer with a few learns in few "
        "directions only.",
        marks=(Heat(rank.steps, rank.values, "effective rank", names=rank.names, scale="log"),),
    )
