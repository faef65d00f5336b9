"""The subjects of the benchmarks by name, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from benchmarks import breakdown, costs, growth, health, scale
from benchmarks.cases import CASES
from benchmarks.tables import Aim, Section, Table

Subject = Callable[[bool, Callable[[], None]], Section]
"""Measures something, quickly or not, and calls a function from time to time while it does."""


def overhead(quick: bool, tick: Callable[[], None]) -> Section:
    """Measure whether a budget is kept."""
    from benchmarks.overhead import TOLERANCE, Overhead, measure

    rows = measure(quick, lambda network: tick())

    def shares(row: Overhead) -> tuple[float, ...]:
        return row.budget, row.processor, row.wall, row.idle, row.again, row.own

    cells = [
        (
            row.network,
            row.preset,
            f"{row.batch_size}",
            f"{row.steps}",
            *(f"{100 * share:.1f}" for share in shares(row)),
            ", ".join(f"{name} {count}" for name, count in row.tracked.items()),
        )
        for row in rows
    ]
    head = (
        "network",
        "tracked",
        "batch",
        "steps",
        "budget [%]",
        "processor [%]",
        "clock [%]",
        "nothing due [%]",
        "plain again [%]",
        "own account [%]",
        "tracked steps",
    )
    table = Table(
        "A budget: the share of the plain training's time that tracking takes",
        head,
        cells,
        ("network", "tracked", "tracked steps"),
        optional=(
            *("tracked steps", "steps", "batch", "plain again [%]", "own account [%]", "clock [%]"),
        ),
    )
    aims = [
        Aim(
            f"budget, {row.network}, {row.preset}: points beside it",
            100 * abs(row.processor - row.budget),
            100 * TOLERANCE,
        )
        for row in rows
    ]
    return Section([table], aims, {"rows": [asdict(row) for row in rows]})


def log(quick: bool, tick: Callable[[], None]) -> Section:
    """Measure the run file."""
    from benchmarks.log import measure

    figures = measure(quick)
    tick()
    aims = [Aim(f"log: {f.what} [{f.unit}]", f.value, f.limit) for f in figures]
    rows = [
        (figure.what, f"{figure.value:.4g}", figure.unit, aim.verdict)
        for figure, aim in zip(figures, aims, strict=True)
    ]
    head = ("what", "value", "unit", "aim")
    table = Table("The run file", head, rows, ("what", "unit", "aim"))
    return Section([table], aims, {"figures": [asdict(figure) for figure in figures]})


SUBJECTS: dict[str, Subject] = {
    **{name: partial(costs.measured, case) for name, case in CASES.items()},
    "health": health.measured,
    "breakdown": breakdown.measured,
    "scale": partial(scale.measured, scale.CURVES),
    "log": log,
    "overhead": overhead,
    "growth": growth.measured,
}
