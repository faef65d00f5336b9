"""The report: which parameters of a model are tracked, how, and which are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cockpit.coverage import rendering
from cockpit.coverage.grouping import grouped, joined_names
from cockpit.coverage.rows import (
    EXACT,
    FROZEN,
    SHARE,
    UNUSED,
    ParameterCoverage,
)

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 80


@dataclass(frozen=True)
class Coverage:
    """What `cockpit.inspect` found.

    Printed, it is a table; in a notebook, the same as HTML; `frame` gives it to pandas.

    Args:
        model: Kind of the model.
        rows: One entry for each parameter, in the model's order.
        notes: What concerns the model as a whole, a sentence each.
        samples: Number of samples of the batch on which it was checked; 0 without data.
    """

    model: str
    rows: tuple[ParameterCoverage, ...]
    notes: tuple[str, ...] = ()
    samples: int = 0

    def __getitem__(self, name: str) -> ParameterCoverage:
        """Return what is known of the parameter called `name`."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{self.model} has no parameter {name!r}.")

    @property
    def trained(self) -> tuple[ParameterCoverage, ...]:
        """The parameters that there is something to track of."""
        return tuple(row for row in self.rows if row.trained)

    @property
    def tracked(self) -> tuple[ParameterCoverage, ...]:
        """The parameters whose individual gradients are had."""
        return tuple(row for row in self.rows if row.tracked)

    @property
    def gaps(self) -> tuple[ParameterCoverage, ...]:
        """The parameters that are trained, and whose individual gradients are not had."""
        return tuple(row for row in self.rows if row.gap is not None)

    # -- what it says -----------------------------------------------------------------------------

    def summary(self) -> str:
        """Return it in two or three sentences."""
        return " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        trained, tracked = self.trained, self.tracked
        total = sum(row.elements for row in trained)
        closed = sum(row.elements for row in tracked if row.in_closed_form)
        share = f", {_percent(closed, total)} of {_count(total)} elements in closed form"
        yield (
            f"{len(tracked)} of {len(trained)} trained parameters are tracked"
            f"{share if total else ''}."
        )
        frozen = sum(row.served_by == FROZEN for row in self.rows)
        if frozen:
            yield f"{frozen} frozen."
        if self.samples:
            seen = Counter(row.seen for row in tracked)
            found = [f"{seen[kind]} {kind}" for kind in (EXACT, SHARE, UNUSED) if seen[kind]]
            yield f"Checked on a batch of {self.samples}: {', '.join(found) or 'none is tracked'}."
        else:
            yield "Not checked on data."

    def remarks(self) -> Iterator[tuple[str, str]]:
        """Yield what is special, with the names of the parameters that it holds for, if not for all."""
        yield from (("", note) for note in self.notes)
        notes: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                notes.setdefault(note, []).append(row.name)
        yield from ((joined_names(names), note) for note, names in notes.items())

    def excuses(self) -> Iterator[tuple[str, str]]:
        """Yield the names of parameters that are not tracked, why, and what to do."""
        reasons: dict[str, list[str]] = {}
        for row in self.gaps:
            reasons.setdefault(f"{row.gap}. Way out: {row.way_out}.", []).append(row.name)
        yield from ((joined_names(names), reason) for reason, names in reasons.items())

    def lines(self, collapse: bool = True) -> list[tuple[str, str, str, str]]:
        """Return the rows as text: names, shape, layer, what serves them.

        Args:
            collapse: Put parameters of repeated blocks that are alike in one line.
        """
        groups = grouped(self.rows) if collapse else [(row.name, [row]) for row in self.rows]
        return [
            (name, _shape(members[0].shape), members[0].layer, members[0].status)
            for name, members in groups
        ]

    # -- how it is shown --------------------------------------------------------------------------

    def table(self, width: int = WIDTH, collapse: bool = True) -> str:
        """Return it as text.

        Args:
            width: Columns that a line may have.
            collapse: Put parameters of repeated blocks that are alike in one line.
        """
        return rendering.text(self, width, collapse)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<Coverage of {self.model}: {self.summary()}>"

    def _repr_html_(self) -> str:
        return rendering.html(self)

    def __rich__(self) -> Any:
        return rendering.rich(self)

    def frame(self) -> pd.DataFrame:
        """Return one line per parameter as a pandas frame, with the fields of `ParameterCoverage`."""
        import pandas as pd

        columns = list(ParameterCoverage.__dataclass_fields__)
        rows = [[getattr(row, column) for column in columns] for row in self.rows]
        return pd.DataFrame(rows, columns=columns)

    def record(self) -> dict[str, Any]:
        """Return what a run file keeps: counts, what serves how many elements, gaps, notes."""
        elements: Counter[str] = Counter()
        for row in self.rows:
            elements[row.served_by] += row.elements
        return {
            "trained": len(self.trained),
            "tracked": len(self.tracked),
            "elements": dict(elements),
            "frozen": [row.name for row in self.rows if row.served_by == FROZEN],
            "gaps": {row.name: f"{row.gap}; {row.way_out}" for row in self.gaps},
            "notes": [f"{names}: {note}" if names else note for names, note in self.remarks()],
        }


def _shape(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "unknown"
    return "×".join(map(str, shape)) or "scalar"


def _percent(part: int, whole: int) -> str:
    """Return a share, never rounded to all or to nothing where it is neither."""
    if part in (0, whole):
        return "all" if part else "none"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f} %"


def _count(number: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
