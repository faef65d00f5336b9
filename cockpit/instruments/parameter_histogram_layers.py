"""The latest histograms of the values of every parameter."""

from __future__ import annotations

from cockpit.instruments.grad_histogram_layers import by_parameter, shares
from cockpit.instruments.instrument import Readable, instrument
from cockpit.instruments.panel import Panel
from cockpit.instruments.reading import newest

__all__ = ["panel"]


@instrument("GradHist2d", name="parameter-histogram-layers")
def panel(run: Readable) -> Panel | None:
    """Return the marginals of the joint histograms as a heat map, parameter × value.

    There is none unless the histograms of single parameters were kept.
    """
    found = newest(run, "GradHist2d")
    if found is None or not {"edges/0", "edges/1"} <= set(found[1]):
        return None
    step, arrays = found
    edges = arrays["edges/1"]
    names, joint = by_parameter(run, arrays, len(arrays["edges/0"]) - 1, len(edges) - 1)
    if not names:
        return None
    return shares(
        names,
        joint.sum(1),  # [parameters, bins_y]
        edges,
        title="Values of the parameters",
        how_to_read="A hill around 0 is usual for weights; values that pile up in one bin point at "
        "a bad start or saturation.",
        x_label="parameter",
        headline=f"step {step}",
        group="STEP SIZE",
    )
