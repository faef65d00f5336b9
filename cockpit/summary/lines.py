"""The lines of a run, and the table of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from cockpit.instruments import INSTRUMENTS, Readable
from cockpit.instruments.reading import Curve, curve, number
from cockpit.printable import printable
from cockpit.summary import activations, curvature, gradients, step_size, training
from cockpit.summary.reading import Line, Reader, Reading

__all__ = ["NOTHING", "READERS", "as_table", "ordered", "reading_of", "readings"]

NOTHING = "Nothing has been recorded yet."
"""What there is to say of a run without a quantity."""

FIRST = ("Loss", "Alpha")
"""What everybody looks at first."""

PLACES = {
    quantity: place
    for place, one in reversed(list(enumerate(INSTRUMENTS)))
    for quantity in one.quantities
}
"""The first picture that shows each quantity, counted from 0."""

READERS: dict[str, Reader] = (
    step_size.READERS
    | gradients.READERS
    | curvature.READERS
    | activations.READERS
    | training.READERS
)
"""How to read each known quantity. A reader returns None where it finds nothing that it knows."""


def readings(run: Readable) -> list[Reading]:
    """Return a line for each quantity and metric of a run, in the order of `ordered`."""
    return [reading_of(run, name) for name in ordered(run.quantities)]


def ordered(quantities: Iterable[str]) -> list[str]:
    """Return quantities in the order of their pictures, after loss and step length; others come last."""
    return sorted(quantities, key=_place)


def _place(quantity: str) -> tuple[int, int]:
    kind = _kind(quantity)
    if kind in FIRST:
        return 0, FIRST.index(kind)
    return 1, PLACES.get(kind, len(INSTRUMENTS))


def _kind(quantity: str) -> str:
    return re.sub(r"-\d+$", "", quantity)  # the second of its kind is called "NormTest-2"


def reading_of(run: Readable, quantity: str) -> Reading:
    """Return the line for one quantity or metric of a run."""
    read = READERS.get(_kind(quantity), _anything)
    found = read(run, quantity) or _anything(run, quantity) or ("", "nothing to show yet")
    return Reading(quantity, *found)


def as_table(lines: list[Reading]) -> RichTable:
    """Return the lines as a table for the terminal."""
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    shown.add_column("quantity", style="bold", max_width=24, overflow="fold")
    shown.add_column("now", justify="right", no_wrap=True)
    shown.add_column("what it means", overflow="fold")
    for line in lines:
        texts = (line.quantity, line.value, line.meaning)
        shown.add_row(*(Text(printable(text)) for text in texts))
    if any(line.value.startswith("~") for line in lines):
        shown.caption = "~ median of the last tenth of the steps, of 10 at least"
        shown.caption_justify = "left"
    return shown


def _anything(run: Readable, name: str) -> Line | None:
    """Read a quantity that nothing is known of."""
    single = curve(run, name)
    if single is not None:
        return number(float(single.values[-1])), _extent(single)
    numbers = run.scalars(name)
    if not numbers.empty:
        last = numbers[numbers["step"] == numbers["step"].max()]["value"].to_numpy(float)
        low, high = (float(bound) for bound in (np.min(last), np.max(last)))
        return f"{len(last)} values", f"from {number(low)} to {number(high)}"
    arrays = run.arrays(name)
    if arrays.empty:
        return None
    last = [np.asarray(v, float) for v in arrays[arrays["step"] == arrays["step"].max()]["value"]]
    shape = " × ".join(map(str, last[0].shape)) if len(last) == 1 else f"{len(last)} arrays"
    elements = np.concatenate([array.ravel() for array in last])
    if not elements.size:
        return shape, "empty"
    return (
        shape,
        f"elements from {number(float(elements.min()))} to {number(float(elements.max()))}",
    )


def _extent(data: Curve) -> str:
    finite = data.values[np.isfinite(data.values)]
    if not finite.size:
        return "never a finite number"
    low, high = (number(float(bound)) for bound in (finite.min(), finite.max()))
    if low != high:
        return f"between {low} and {high} so far"
    return "constant so far" if len(data.values) > 1 else "the only value so far"
