"""Instruments: what to show of a run, as data that any renderer can draw.

`INSTRUMENTS` lists them; `panels` applies them to a run and gives every other quantity a default
instrument. Add your own with the `instrument` decorator and pass ``(*INSTRUMENTS, mine)``::

    @instrument("MyQuantity")
    def mine(run):
        data = run.series("MyQuantity")
        return Panel("Mine", "GRADIENTS", "Lower is better.", (Line(data.index, data.values),))
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from cockpit.errors import InvalidArgument
from cockpit.instruments import (
    accuracy,
    activation_depth,
    activation_dormant,
    activation_outliers,
    activation_saturated,
    activation_scale,
    activation_zeros,
    adam_staleness,
    adam_staleness_layers,
    alpha,
    alpha_distribution,
    alpha_fit,
    attention_entropy,
    attention_logits,
    cabs,
    critical_sharpness,
    default,
    directional_curvature,
    distance,
    early_stopping,
    grad_histogram,
    grad_histogram_2d,
    grad_histogram_2d_layers,
    grad_histogram_history,
    grad_histogram_layers,
    grad_norm,
    grad_norm_layers,
    grad_tests,
    grad_tests_bands,
    gradient_alignment,
    gradient_noise_scale,
    hess_max_ev,
    hess_trace,
    hess_trace_layers,
    hessian_spectrum,
    hessian_spectrum_history,
    kronecker_rank,
    kronecker_spectrum,
    learning_rate,
    loss,
    lost_updates,
    mean_gsnr,
    non_finite,
    parameter_extremes,
    parameter_histogram_layers,
    parameter_norm,
    per_sample_outliers,
    preconditioned_sharpness,
    step_time,
    tic,
    update_ratio,
    update_ratio_layers,
)
from cockpit.instruments.data import panel_data, thinned
from cockpit.instruments.instrument import Instrument, Readable, instrument
from cockpit.instruments.panel import (
    GROUPS,
    Band,
    Bars,
    Color,
    Group,
    Heat,
    Line,
    Mark,
    Panel,
    Points,
    Reference,
    Scale,
)

__all__ = [
    "GROUPS",
    "INSTRUMENTS",
    "WITHOUT_PICTURE",
    "Band",
    "Bars",
    "Color",
    "Group",
    "Heat",
    "Instrument",
    "Line",
    "Mark",
    "Panel",
    "Points",
    "Readable",
    "Reference",
    "Scale",
    "available",
    "instrument",
    "panel_data",
    "panel_of",
    "panels",
    "thinned",
]

INSTRUMENTS: tuple[Instrument, ...] = (
    alpha.panel,
    alpha_distribution.panel,
    alpha_fit.panel,
    distance.panel,
    update_ratio.panel,
    update_ratio_layers.panel,
    lost_updates.panel,
    adam_staleness.panel,
    adam_staleness_layers.panel,
    parameter_norm.panel,
    parameter_extremes.panel,
    grad_norm.panel,
    grad_norm_layers.panel,
    grad_tests.panel,
    grad_tests_bands.panel,
    gradient_noise_scale.panel,
    cabs.panel,
    mean_gsnr.panel,
    early_stopping.panel,
    gradient_alignment.panel,
    per_sample_outliers.panel,
    grad_histogram.panel,
    grad_histogram_history.panel,
    grad_histogram_layers.panel,
    grad_histogram_2d.panel,
    grad_histogram_2d_layers.panel,
    parameter_histogram_layers.panel,
    hess_max_ev.panel,
    hess_trace.panel,
    hess_trace_layers.panel,
    hessian_spectrum.panel,
    hessian_spectrum_history.panel,
    kronecker_spectrum.panel,
    kronecker_rank.panel,
    directional_curvature.panel,
    preconditioned_sharpness.panel,
    critical_sharpness.panel,
    tic.panel,
    activation_zeros.panel,
    activation_dormant.panel,
    activation_saturated.panel,
    activation_scale.panel,
    activation_depth.panel,
    activation_outliers.panel,
    attention_entropy.panel,
    attention_logits.panel,
    non_finite.panel,
    loss.panel,
    accuracy.panel,
    step_time.panel,
    learning_rate.panel,
)
"""The instruments, in the order in which their pictures stand within a group."""

WITHOUT_PICTURE = frozenset({"Parameters", "Wiring", "epoch_count"})
"""Quantities that are recorded to be read, not to be looked at."""


def available(
    run: Readable, instruments: Iterable[Instrument] = INSTRUMENTS
) -> tuple[Instrument, ...]:
    """Return the instruments that may have something to show of a run, without reading its values.

    Each can be called by itself, so that a page reads no more than what it shows. Every recorded
    quantity that none of them shows gets the default instrument, called ``"quantity:<quantity>"``.

    Args:
        run: The run.
        instruments: Those to choose from.
    """
    instruments = tuple(instruments)
    shown = WITHOUT_PICTURE.union(*(item.quantities for item in instruments))
    others = (quantity for quantity in run.quantities if quantity not in shown)
    return (*(item for item in instruments if item.fits(run)), *map(default.of, others))


def panel_of(run: Readable, name: str, instruments: Iterable[Instrument] = INSTRUMENTS) -> Panel:
    """Return one panel of a run.

    Args:
        run: The run.
        name: Name of the instrument, such as ``"alpha"``, or of a quantity, of which it is the first
            panel that there is.
        instruments: Those to choose from.

    Raises:
        InvalidArgument: There is no such panel, or the run has no data for it.
    """
    instruments = tuple(instruments)
    fitting = available(run, instruments)
    chosen = [item for item in fitting if item.name == name]
    for item in chosen or [item for item in fitting if name in item.quantities]:
        panel = item(run)
        if panel is not None:
            return panel
    if any(name == item.name or name in item.quantities for item in instruments):
        raise InvalidArgument(f"the run has no data for a picture of {name!r}.")
    known = [item.name for item in fitting]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InvalidArgument(
        f"there is no picture {name!r}; of this run there are: {', '.join(known) or 'none'}.{hint}"
    )


def panels(
    run: Readable,
    instruments: Iterable[Instrument] = INSTRUMENTS,
    on_error: Callable[[str, Exception], None] | None = None,
) -> list[Panel]:
    """Return the panels of a run, ordered by group.

    Args:
        run: The run; an unfinished one is fine.
        instruments: What to apply; every recorded quantity that none of them shows gets the default
            instrument.
        on_error: Called with the name of an instrument that fails and its error, which then costs
            no more than its own picture. Without it, errors are raised.

    Returns:
        The panels; an empty list when nothing has been recorded.
    """
    found: list[Panel] = []
    for item in available(run, instruments):
        try:
            panel = item(run)
        except Exception as error:
            if on_error is None:
                raise
            on_error(", ".join(item.quantities), error)
        else:
            found += [panel] if panel is not None else []
    return sorted(found, key=lambda panel: GROUPS.index(panel.group))
