"""The profile as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cockpit.profiling.figures import TOGETHER, Figure, LayerCost, StepCost

if TYPE_CHECKING:
    from cockpit.profiling.report import Profile

WIDTH = 80
GAP = "  "
LAYERS = 12
"""Number of parameters that are listed; the others are added up."""

JOINED = "\u00a0"
"""A space at which lines are not broken."""

LISTED_NEEDS = 3
"""Number of needs that are listed for a parameter, if they take a tenth of its time."""

STEPS = {
    "plain": "plain step",
    "attached": "cockpit attached, nothing due",
    "fetched": "individual gradients fetched",
    "tracked": "tracked step",
}

BUSY = 0.1
"""Spread of the plain step, relative to its time, from which on the machine is taken to do other work too."""

LEGEND = (
    "alone: beyond the plain step, where nothing else is tracked. saved: by leaving out this one and "
    "keeping the others. Quantities share their needs, so neither column adds up to the whole. every: "
    "an interval, as in schedules.linear(every), for tracking to take about {:.3g} % of the training time."
)


def text(profile: Profile) -> str:
    """Return the profile in lines of at most `WIDTH` columns."""
    parts = [
        _heading(profile),
        _table(("", "step [ms]", "x plain", "peak [MiB]"), _steps(profile), "lrrr"),
        _table(
            ("quantity", "alone [ms]", "saved [ms]", "alone [MiB]", "saved", "every"),
            _quantities(profile),
            "lrrrrr",
        ),
        _wrapped(LEGEND.format(100 * profile.overhead)),
    ]
    if profile.needs:
        parts.append(
            _table(("need", "[ms]", "peak [MiB]", "asked for by"), _needs(profile), "lrrl")
        )
    if profile.layers:
        head = ("parameter", "[ms]", "peak [MiB]", "most of it [ms]")
        parts.append(_table(head, _layers(profile.layers), "lrrl"))
    if profile.notes:
        parts.append("\n".join(_wrapped(f"- {note}", "  ") for note in profile.notes))
    return "\n\n".join(parts)


def _heading(profile: Profile) -> str:
    batch = f"batch {profile.batch_size}, " if profile.batch_size else ""
    words = (
        f"{profile.model}: {batch}{profile.device}, {_count(profile.threads, 'thread')}. "
        f"Medians ± half the interquartile range of {_count(profile.repeats, 'repeat')} side by side."
    )
    plain = profile.steps["plain"].seconds
    if plain.spread > BUSY * plain.median:
        words += (
            f" The plain step's time varies by {plain.spread / plain.median:.0%}: is something else "
            "running on this machine? More repeats help."
        )
    return _wrapped(words)


def _steps(profile: Profile) -> Iterator[Sequence[str]]:
    for name, cost in profile.steps.items():
        ratio = f"{cost.ratio.median:.2f}"
        yield STEPS[name], _milliseconds(cost.seconds), ratio, _mebibytes(cost.peak)
    yield from _rest(profile.steps["plain"], profile.steps["tracked"])


def _rest(plain: StepCost, tracked: StepCost) -> Iterator[Sequence[str]]:
    beyond = None
    if plain.peak is not None and tracked.peak is not None:
        beyond = tracked.peak - plain.peak
    extra = 1e3 * (tracked.seconds.median - plain.seconds.median)
    yield "beyond the plain step", _number(extra), "", _mebibytes(beyond)


def _quantities(profile: Profile) -> Iterator[Sequence[str]]:
    for cost in profile.quantities:
        yield (
            cost.name,
            _milliseconds(cost.alone),
            _milliseconds(cost.saved),
            _mebibytes(cost.alone_peak),
            _mebibytes(cost.saved_peak),
            str(cost.every),
        )


def _needs(profile: Profile) -> Iterator[Sequence[str]]:
    for cost in profile.needs:
        users = ", ".join(cost.quantities)
        yield cost.need, _number(1e3 * cost.seconds.median), _mebibytes(cost.peak), users


def _layers(layers: Iterable[LayerCost]) -> Iterator[Sequence[str]]:
    of_parameter: dict[str, list[LayerCost]] = {}
    for cost in layers:
        of_parameter.setdefault(cost.parameter, []).append(cost)

    def seconds(costs: list[LayerCost]) -> float:
        return sum(cost.seconds.median for cost in costs)

    ordered = sorted(of_parameter.items(), key=lambda item: -seconds(item[1]))
    parameters = [item for item in ordered if item[0] != TOGETHER]
    # A line for one other is a line for its name.
    others = parameters[LAYERS:] if len(parameters) > LAYERS + 1 else []
    for name, costs in ordered:
        if (name, costs) in others:
            continue
        peaks = [cost.peak for cost in costs if cost.peak is not None]
        by_need = ", ".join(
            f"{c.need}{JOINED}{_number(1e3 * c.seconds.median)}"
            for c in costs[:LISTED_NEEDS]
            if c is costs[0] or c.seconds.median > seconds(costs) / 10
        )
        peak = _mebibytes(max(peaks) if peaks else None)
        yield name, _number(1e3 * seconds(costs)), peak, by_need
    if others:
        rest = sum(seconds(costs) for _, costs in others)
        yield f"{len(others)} others", _number(1e3 * rest), "", ""


# -- words and numbers ----------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """Return a table in columns; a last column of words is wrapped, and a first one that is too wide cut."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    gaps = len(GAP) * (len(head) - 1)
    words = align[-1] == "l"
    if words:
        widths[-1] = max(24, min(widths[-1], WIDTH - sum(widths[:-1]) - gaps))
    widths[0] = max(12, min(widths[0], WIDTH - sum(widths[1:]) - gaps))
    out: list[str] = []
    for number, line in enumerate(lines):
        cells = [_cut(line[0], widths[0]), *line[1:]]
        last = textwrap.wrap(cells[-1], widths[-1]) or [""] if words else [cells[-1]]
        for position, part in enumerate(last):
            shown = [*cells[:-1], part] if position == 0 else [""] * (len(cells) - 1) + [part]
            out.append(
                GAP.join(
                    cell.ljust(width) if side == "l" else cell.rjust(width)
                    for cell, width, side in zip(shown, widths, align, strict=True)
                )
                .replace(JOINED, " ")
                .rstrip()
            )
        if number == 0:
            out.append("─" * min(WIDTH, sum(widths) + gaps))
    return "\n".join(out)


def _cut(name: str, width: int) -> str:
    """Return a name with its middle left out, where it is too long: the end tells parameters apart."""
    if len(name) <= width:
        return name
    end = (width - 1) * 2 // 3
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def _wrapped(words: str, indent: str = "") -> str:
    return textwrap.fill(words, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _milliseconds(figure: Figure) -> str:
    return f"{_number(1e3 * figure.median)} ± {_number(1e3 * figure.spread)}"


def _number(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"


def _mebibytes(size: int | None) -> str:
    return "–" if size is None else _number(size / 2**20)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
