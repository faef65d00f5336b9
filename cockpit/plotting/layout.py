"""The figure: panels in rows by group, each on a card, so that no text ever meets another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from matplotlib.transforms import Affine2D, Transform

from cockpit.instruments.panel import Group, Panel
from cockpit.plotting.letters import shorten, width_of
from cockpit.plotting.marks import Pen
from cockpit.plotting.matplotlib import caption, caption_height, draw_body, pen_for
from cockpit.plotting.scales import set_steps, set_ticks, step_range
from cockpit.plotting.theme import Theme, theme_of
from cockpit.plotting.words import missing_glyphs_ignored, printable_panel
from cockpit.printable import printable

__all__ = ["Section", "arrange", "draw_figure", "figure_size"]

ASPECT = 1.25
"""Width over height that a card should have."""

BREAK = 0.03
"""What it costs to continue a group in a row that it shares, in squares of logarithms of shapes."""

BODY = 0.4
"""Share of a card's height that is kept for the picture itself, whatever is written above it."""

READABLE = 7.5
"""Points of the small letters where there is room for them, however small the figure is."""

HINTED = 1.1
"""By how much a word may be wider than measured: small letters are rounded to pixels."""

WIDTH, HEIGHT, COLUMNS = 16.0, 9.0, 5
"""Size in inches of a figure of few panels; with more of them, it has so many columns and is taller."""


@dataclass(frozen=True)
class Section:
    """Panels of one group that stand side by side."""

    group: Group
    panels: tuple[Panel, ...]


Row = list[Section]


@dataclass(frozen=True)
class Cell:
    """One card: `left`, `bottom`, `width` and `height` in inches, and the axes on it."""

    panel: Panel
    axes: Axes
    left: float
    bottom: float
    width: float
    height: float


def arrange(panels: Sequence[Panel], width: float, height: float) -> list[Row]:
    """Return the rows in which panels, ordered by group, fill `width` × `height` best."""
    groups = [Section(group, tuple(items)) for group, items in groupby(panels, lambda p: p.group)]
    if not groups:
        return []
    choices = [
        rows
        for columns in range(1, 13)
        for rows in (_rows(groups, columns), _flow(panels, columns))
    ]
    return min(choices, key=lambda rows: _strain(rows, width, height))


def figure_size(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the width and height in inches at which all panels are large enough to be read."""
    rows = math.ceil(len(panels) / COLUMNS)
    return WIDTH, max(HEIGHT, 0.6 + rows * WIDTH / COLUMNS / ASPECT)


def draw_figure(
    panels: Sequence[Panel],
    figure: Figure,
    *,
    style: str = "light",
    title: str = "",
    subtitle: str = "",
    log_steps: bool = False,
) -> Figure:
    """Draw panels on an empty figure, by group.

    Args:
        panels: What to draw, ordered by group.
        figure: Where to draw.
        style: ``"light"`` or ``"dark"``.
        title: Headline of the figure.
        subtitle: Small text below it.
        log_steps: Whether the step axes are logarithmic.

    Returns:
        The figure.

    Raises:
        InvalidArgument: There is no such style.
    """
    theme = theme_of(style)
    figure.set_facecolor(theme.background)
    panels = [printable_panel(panel) for panel in panels]
    title, subtitle = printable(title), printable(subtitle)
    with missing_glyphs_ignored():
        _draw(panels, figure, theme, title, subtitle, log_steps)
    return figure


def _draw(
    panels: Sequence[Panel],
    figure: Figure,
    theme: Theme,
    title: str,
    subtitle: str,
    log_steps: bool,
) -> None:
    width, height = (float(v) for v in figure.get_size_inches())
    rows = arrange(panels, width, height)
    letters = _letters(rows, width, height)
    top = _header(figure, theme, title, subtitle, letters)
    if not panels:
        _say_nothing(figure, theme, letters)
        return
    cells = _cells(figure, theme, rows, top, letters)
    for row in cells:
        for cell in row:
            _place(cell, 4.5 * letters, 3.0 * letters, 1.0 * letters, 7.0 * letters)
            draw_body(cell.panel, cell.axes, pen_for(cell.axes, theme, log_steps, letters))
    everything = [cell for row in cells for cell in row]
    _share_steps(everything, theme, log_steps, letters)
    renderer = RendererAgg(width * figure.dpi, height * figure.dpi, figure.dpi)  # to measure words
    for row in cells:
        _fit(row, theme, log_steps, letters, renderer)
    _share_steps(everything, theme, log_steps, letters)  # as many ticks as now have room


def _rows(groups: list[Section], columns: int) -> list[Row]:
    """Return rows of at most `columns` panels; small groups share one, large ones are split."""
    rows: list[Row] = []
    for section in groups:
        count = len(section.panels)
        free = columns - sum(len(s.panels) for s in rows[-1]) if rows else 0
        if count <= free:
            rows[-1].append(section)
            continue
        lines = math.ceil(count / columns)
        rows += [
            [Section(section.group, tuple(section.panels[i] for i in part))]
            for part in np.array_split(np.arange(count), lines)
        ]
    return rows


def _flow(panels: Sequence[Panel], columns: int) -> list[Row]:
    """Return rows of about equal length, at most `columns`, in which groups begin anywhere."""
    lines = math.ceil(len(panels) / columns)
    parts = ([panels[i] for i in part] for part in np.array_split(np.arange(len(panels)), lines))
    return [
        [Section(group, tuple(items)) for group, items in groupby(part, lambda p: p.group)]
        for part in parts
    ]


def _strain(rows: list[Row], width: float, height: float) -> float:
    """Return how far the cards are from the shape that they should have, and groups from one row."""
    counts = [sum(len(section.panels) for section in row) for row in rows]
    shapes = [width / count / (height / len(rows)) for count in counts for _ in range(count)]
    broken = sum(
        before[-1].group == after[0].group and len(before) + len(after) > 2
        for before, after in pairwise(rows)
    )
    return float(np.mean(np.square(np.log(np.array(shapes) / ASPECT)))) + BREAK * broken


def _letters(rows: list[Row], width: float, height: float) -> float:
    """Return the size of the small letters in points that suits cards and figure."""
    size = max(0.8 * math.sqrt(width * height), READABLE)
    for row in rows:
        count = sum(len(section.panels) for section in row)
        size = min(size, 2.6 * math.sqrt(width / count * height / len(rows)))
    return float(np.clip(size, 4.9, 14.0))


def _header(figure: Figure, theme: Theme, title: str, subtitle: str, letters: float) -> float:
    """Write the title at the top and return the height in inches that is left below it."""
    width, height = (float(v) for v in figure.get_size_inches())
    if not title and not subtitle:
        return height - 0.1
    inch = _inches(figure)
    left, size = 0.12 + letters / 60, 1.75 * letters
    line = height - 0.1 - 0.95 * size / 72
    shown = shorten(title, (width - 2 * left) * 72, size)
    _write(
        figure,
        left,
        line,
        shown,
        transform=inch,
        fontsize=size,
        fontweight="bold",
        color=theme.text,
    )
    taken = left + (width_of(shown, size, "bold") + 1.5 * letters) / 72
    room = (width - taken - left) * 72
    if subtitle and width_of(subtitle, letters) <= room:
        _write(
            figure,
            width - left,
            line,
            subtitle,
            transform=inch,
            fontsize=letters,
            color=theme.muted,
            ha="right",
        )
    elif subtitle:
        line -= 1.5 * letters / 72
        small = shorten(subtitle, (width - 2 * left) * 72, letters)
        _write(figure, left, line, small, transform=inch, fontsize=letters, color=theme.muted)
    return line - 0.8 * letters / 72


def _say_nothing(figure: Figure, theme: Theme, letters: float) -> None:
    for y, text, size, color in (
        (0.52, "Nothing recorded yet", 2.2 * letters, theme.text),
        (0.46, "The first tracked step will appear here.", 1.2 * letters, theme.muted),
    ):
        _write(figure, 0.5, y, text, ha="center", fontsize=size, color=color)


def _cells(
    figure: Figure, theme: Theme, rows: list[Row], top: float, letters: float
) -> list[list[Cell]]:
    """Draw headings and cards, and make the axes of every panel."""
    width, height = (float(v) for v in figure.get_size_inches())
    counts = [sum(len(section.panels) for section in row) for row in rows]
    columns = math.lcm(*counts)
    border, gap, heading = 0.1 + letters / 100, 0.05 + letters / 160, 1.9 * letters / 72
    grid = figure.add_gridspec(
        len(rows),
        columns,
        left=border / width,
        right=1 - border / width,
        bottom=border / height,
        top=top / height,
        wspace=0,
        hspace=0,
    )
    cells: list[list[Cell]] = []
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        span, column = columns // count, 0
        line: list[Cell] = []
        for section in row:
            start = len(line)
            for panel in section.panels:
                axes = figure.add_subplot(grid[index, column : column + span])
                column += span
                box = axes.get_position()
                cell = Cell(
                    panel,
                    axes,
                    box.x0 * width + gap / 2,
                    box.y0 * height + gap / 2,
                    box.width * width - gap,
                    box.height * height - gap / 2 - heading,
                )
                line.append(cell)
                _card(figure, theme, cell, letters)
            _heading(figure, theme, section.group, line[start:], letters)
        cells.append(line)
    return cells


def _card(figure: Figure, theme: Theme, cell: Cell, letters: float) -> None:
    figure.add_artist(
        FancyBboxPatch(
            (cell.left, cell.bottom),
            cell.width,
            cell.height,
            boxstyle=f"round,pad=0,rounding_size={letters / 130}",
            transform=_inches(figure),
            facecolor=theme.card,
            edgecolor=theme.border,
            linewidth=0.6,
            zorder=-1,
        )
    )


def _heading(figure: Figure, theme: Theme, group: Group, cells: list[Cell], letters: float) -> None:
    first, last = cells[0], cells[-1]
    color, inch = theme.groups[group], _inches(figure)
    line = first.bottom + first.height + 0.6 * letters / 72
    size = 1.1 * letters
    _write(
        figure,
        first.left + 0.02,
        line,
        group,
        transform=inch,
        fontsize=size,
        fontweight="bold",
        color=color,
    )
    start = first.left + 0.02 + (width_of(group, size, "bold") + letters) / 72
    end = last.left + last.width - 0.02
    if start < end:
        level = line + 0.36 * size / 72
        figure.add_artist(
            Line2D(
                [start, end], [level, level], transform=inch, color=color, linewidth=1.2, alpha=0.45
            )
        )


def _write(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    """Write on the figure, a ``$`` as it is."""
    figure.text(x, y, text, parse_math=False, **style)


def _inches(figure: Figure) -> Transform:
    """Place things in inches that stay where the axes are, also when a figure is cropped as it is saved."""
    width, height = (float(v) for v in figure.get_size_inches())
    return Affine2D().scale(1 / width, 1 / height) + figure.transFigure


def _place(cell: Cell, left: float, bottom: float, right: float, top: float) -> None:
    """Give the axes the card without these margins, in points."""
    width, height = (float(v) for v in cell.axes.figure.get_size_inches())  # type: ignore[union-attr]
    across = max(cell.width - (left + right) / 72, 0.15 * cell.width)
    up = max(cell.height - (top + bottom) / 72, 0.15 * cell.height)
    x, y = cell.left + left / 72, cell.bottom + bottom / 72
    cell.axes.set_position((x / width, y / height, across / width, up / height))


def _share_steps(cells: list[Cell], theme: Theme, log_steps: bool, letters: float) -> None:
    """Give all pictures over the steps the same range, so that they can be compared."""
    drawn = [cell for cell in cells if cell.panel.over_steps]
    ranges = [steps for cell in drawn if (steps := step_range(cell.panel)) is not None]
    if ranges:
        lows, firsts, highs = zip(*ranges, strict=True)
        for cell in drawn:
            pen = pen_for(cell.axes, theme, log_steps, letters)
            set_steps(cell.axes, min(lows), min(firsts), max(highs), pen)


def _fit(
    row: list[Cell], theme: Theme, log_steps: bool, letters: float, renderer: RendererAgg
) -> None:
    """Measure what hangs over the axes of a row, and give each the room that is left."""
    pad = 0.9 * letters
    overhangs = []
    for cell in row:
        # Curves and heat maps are clipped: only words and the bar of colours hang over.
        hanging = [*cell.axes.texts, *cell.axes.child_axes]
        box = cell.axes.get_window_extent()
        all_ = cell.axes.get_tightbbox(renderer, bbox_extra_artists=hanging)
        below = cell.axes.xaxis.get_tightbbox(renderer)  # a long label of the y axis may be dropped
        assert all_ is not None
        assert below is not None
        scale = HINTED * 72.0 / cell.axes.figure.dpi
        sizes = (box.x0 - all_.x0, box.y0 - below.y0, all_.x1 - box.x1)
        overhangs.append([max(0.0, scale * size) for size in sizes])
    bottom = max(overhang[1] for overhang in overhangs) + 0.8 * pad
    for cell, (left, _, right) in zip(row, overhangs, strict=True):
        width = cell.width * 72 - 2 * pad
        room = (1 - BODY) * cell.height * 72 - bottom - 0.6 * pad
        _place(cell, left + pad, bottom, right + pad, 7.0 * letters)
        pen = pen_for(cell.axes, theme, log_steps, letters)
        top = caption_height(cell.panel, cell.axes, pen, width, room)
        _place(cell, left + pad, bottom, right + pad, top + 0.6 * pad)
        pen = pen_for(cell.axes, theme, log_steps, letters)
        set_ticks(cell.panel, cell.axes, pen)  # as many as now have room
        caption(cell.panel, cell.axes, pen, width, top, left, room)
        _drop_long_labels(cell, pen)


def _drop_long_labels(cell: Cell, pen: Pen) -> None:
    """Remove the axis labels that are longer than their axis, as they would touch other cards."""
    for axis in [cell.axes.yaxis, *(child.yaxis for child in cell.axes.child_axes)]:
        label = axis.label
        if label.get_rotation() and width_of(label.get_text(), pen.letters) > pen.height:
            label.set_text("")
    label = cell.axes.xaxis.label
    label.set_text(shorten(label.get_text(), pen.width + pen.letters, pen.letters))
