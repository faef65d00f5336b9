"""The latest histogram of the individual gradients' entries, parameter by parameter."""

from __future__ import annotations

import numpy as np

from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Array, Group, Heat, Panel
from cockpit.instruments.reading import newest

__all__ = ["by_parameter", "filled", "panel"]


@instrument("GradHist1d", name="grad-histogram-layers")
def panel(run: Readable) -> Panel | None:
    """Return the histograms as a heat map, parameter × value; `None` for a single parameter."""
    found = newest(run, "GradHist1d")
    if found is None or "edges" not in found[1]:
        return None
    step, arrays = found
    edges = arrays["edges"]
    names, counts = by_parameter(run, arrays, edges.shape[0] - 1)
    if len(names) < 2:
        return None
    return shares(
        names,
        counts,
        edges,
        title="Gradients by parameter",
        how_to_read="A row with all its values in the bin of 0 gets no gradient; full outer bins mean "
        "badly scaled inputs.",
        x_label="gradient entry",
        headline=f"step {step}",
    )


def shares(
    names: tuple[str, ...],
    counts: Array,
    edges: Array,
    *,
    title: str,
    how_to_read: str,
    x_label: str,
    headline: str,
    group: Group = "GRADIENTS",
) -> Panel:
    """Return counts `[parameters, bins]` as a heat map of each row's shares, where there are any."""
    first, last = filled(counts.sum(0))
    total = counts.sum(1, keepdims=True)
    percent = np.divide(100 * counts, total, out=np.zeros_like(counts), where=total > 0)
    centers = (edges[first:last] + edges[first + 1 : last + 1]) / 2
    return Panel(
        title=title,
        group=group,
        how_to_read=how_to_read,
        marks=(Heat(centers, percent[:, first:last], "share [%]", names=names, scale="log"),),
        x_label=x_label,
        x_range=(float(edges[first]), float(edges[last])),
        headline=headline,
    )


def by_parameter(
    run: Readable, arrays: dict[str, Array], *shape: int
) -> tuple[tuple[str, ...], Array]:
    """Return which parameters have a histogram of this shape, and these as `[parameters, *shape]`."""
    own = {name: arrays.get(f"hist/{name}") for name in run.parameters}
    fitting = {name: h for name, h in own.items() if h is not None and h.shape == shape}
    return tuple(fitting), np.array(list(fitting.values())).reshape(-1, *shape)


def filled(counts: Array) -> tuple[int, int]:
    """Return from which to before which bin there are counts; all bins when there are none."""
    places = np.flatnonzero(counts)
    return (int(places[0]), int(places[-1]) + 1) if places.size else (0, len(counts))
