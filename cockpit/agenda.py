"""Which quantities are due at a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cockpit.quantities import Quantity


def due_at(quantities: Mapping[str, Quantity], global_step: int) -> dict[str, Quantity]:
    """Return the quantities that are due at a step, by name.

    A set of quantities mostly shares one schedule, which is asked once: this is all that is done at a step
    at which nothing is due.

    Args:
        quantities: The quantities by name.
        global_step: Number of the step.

    Raises:
        InvalidType: if a schedule returns something that is not a bool.
    """
    answers: dict[int, bool] = {}  # by schedule; those need neither be hashable nor compare
    due = {}
    for name, quantity in quantities.items():
        if type(quantity).is_due is not Quantity.is_due:
            answer = quantity.is_due(global_step)
        else:
            schedule = id(quantity.track_schedule)
            if schedule not in answers:
                answers[schedule] = quantity.is_due(global_step)
            answer = answers[schedule]
        if answer:
            due[name] = quantity
    return due


def may_be_due(quantities: Mapping[str, Quantity], global_step: int) -> Iterable[str]:
    """Return which of them may be due at a step that is yet to come: all, where a schedule cannot say."""
    try:
        return due_at(quantities, global_step)
    except Exception:  # a schedule may end; on entry it can say so
        return quantities
