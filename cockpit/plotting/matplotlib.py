"""The matplotlib renderer: draws one panel on one pair of axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from cockpit.instruments.panel import Panel, Reference
from cockpit.plotting.letters import shorten, width_of, wrap
from cockpit.plotting.marks import Pen, draw_mark, mark_edges
from cockpit.plotting.references import draw_references
from cockpit.plotting.scales import has_data, heights, set_limits, set_scale, set_ticks
from cockpit.plotting.theme import Theme, theme_of
from cockpit.plotting.words import missing_glyphs_ignored, printable_panel

__all__ = ["caption", "caption_height", "draw", "draw_body", "pen_for"]

TITLE = 1.35
"""Size of a title relative to the small letters."""


def draw(
    panel: Panel,
    axes: Axes,
    *,
    style: str = "light",
    log_steps: bool = False,
    how_to_read: bool = False,
) -> Axes:
    """Draw a panel on your own axes, with its title above.

    Where there are several, make them with ``plt.subplots(..., layout="constrained")``, which gives
    titles, legends and names of rows the room that they need.

    Args:
        panel: What to draw.
        axes: Where; what is on them stays.
        style: ``"light"`` or ``"dark"``.
        log_steps: Whether a step axis is logarithmic.
        how_to_read: Whether to write how to read it below the title; it takes up to four lines.

    Returns:
        The axes.

    Raises:
        InvalidArgument: There is no such style.
    """
    pen = pen_for(axes, theme_of(style), log_steps)
    panel = printable_panel(panel if how_to_read else replace(panel, how_to_read=""))
    with missing_glyphs_ignored():
        draw_body(panel, axes, pen)
        caption(panel, axes, pen, pen.width, caption_height(panel, axes, pen, pen.width))
    return axes


def pen_for(axes: Axes, theme: Theme, log_steps: bool, letters: float | None = None) -> Pen:
    """Return the pen that suits axes of this size."""
    box = axes.get_window_extent()
    scale = 72.0 / axes.figure.dpi
    width, height = max(box.width * scale, 1.0), max(box.height * scale, 1.0)
    if letters is None:
        letters = float(np.clip(np.sqrt(width * height) / 26, 6.0, 11.0))
    return Pen(theme, letters, width, height, log_steps)


def draw_body(panel: Panel, axes: Axes, pen: Pen) -> None:
    """Draw all that lies on and below the axes, and the legend on top of them."""
    panel, theme = printable_panel(panel), pen.theme
    axes.set_facecolor(theme.card)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.border)
    axes.tick_params(colors=theme.muted, labelsize=pen.letters, length=0, pad=0.35 * pen.letters)
    axes.grid(True, color=theme.grid, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    values = heights(panel)
    set_scale(panel, axes, values)
    for mark in panel.marks:
        if not isinstance(mark, Reference):
            draw_mark(mark, axes, pen)
    set_limits(panel, axes, values, pen)
    set_ticks(panel, axes, pen)
    draw_references(panel, axes, pen)
    mark_edges(panel, axes, pen)
    if not has_data(panel):
        axes.text(
            0.5,
            0.5,
            "no finite values",
            transform=axes.transAxes,
            ha="center",
            va="center",
            fontsize=pen.letters,
            color=theme.muted,
            bbox={"facecolor": theme.card, "edgecolor": "none"},
            zorder=6,
        )
    unit = f" [{panel.unit}]" if panel.unit else ""
    label: dict[str, Any] = {
        "fontsize": pen.letters,
        "color": theme.muted,
        "labelpad": 0.3 * pen.letters,
        "parse_math": False,
    }
    axes.set_xlabel(panel.x_label, **label)
    axes.set_ylabel(f"{panel.y_label}{unit}", **label)
    if len(panel.y_label) == 1 and not unit:
        axes.yaxis.label.set(rotation=0, va="center", ha="right")
    _legend(axes, pen)


def caption_height(panel: Panel, axes: Axes, pen: Pen, width: float, room: float = np.inf) -> float:
    """Return the height in points of the words above the axes and of the legend.

    Where there is not enough `room`, the sentence on how to read the picture goes first, and the
    legend next.
    """
    legend = axes.get_legend()
    if legend and pen.letters * (0.85 + 1.2 * TITLE) + _legend_height(axes, pen) > room:
        legend.remove()
    title, lines, _ = _break(panel, axes, pen, width, room)
    return _legend_height(axes, pen) + pen.letters * (
        0.55 + 1.22 * len(lines) + 0.3 * bool(lines) + 1.2 * TITLE * len(title)
    )


def caption(
    panel: Panel,
    axes: Axes,
    pen: Pen,
    width: float,
    height: float,
    left: float = 0.0,
    room: float = np.inf,
) -> None:
    """Write title, headline and how to read it above the axes.

    Args:
        panel: Whose words.
        axes: Above which.
        pen: Sizes and colours.
        width: How wide the text may be, in points.
        height: How far above the axes the text starts, in points; at least `caption_height`.
        left: How far left of the axes the text starts, in points.
        room: As in `caption_height`.
    """
    theme, letters, big = pen.theme, pen.letters, TITLE * pen.letters
    title, lines, headline = _break(panel, axes, pen, width, room)
    level = height - big * 1.2 * len(title) + 0.2 * big
    axes.set_title(
        "\n".join(title),
        loc="left",
        x=-left / pen.width,
        y=1.0,
        pad=level,
        fontsize=big,
        fontweight="bold",
        color=theme.text,
        linespacing=1.1,
        parse_math=False,
    )
    if headline:
        first = level + 1.2 * big * (len(title) - 1)
        _write(axes, headline, width - left, first, big, theme.text, ha="right", weight="bold")
    level -= 0.3 * letters
    for line in lines:
        level -= 1.22 * letters
        _write(axes, line, -left, level, letters, theme.muted)


def _break(
    panel: Panel, axes: Axes, pen: Pen, width: float, room: float
) -> tuple[list[str], list[str], str]:
    """Return the lines of title and how to read it, and the headline, as far as there is room."""
    letters, big = pen.letters, TITLE * pen.letters
    taken = width_of(panel.headline, big, "bold") + letters
    fits = panel.headline not in ("", "NaN") and taken + width_of(panel.title, big, "bold") <= width
    title, lines = wrap(panel.title, width, big, "bold"), wrap(panel.how_to_read, width, letters)
    taken = _legend_height(axes, pen) + letters * 0.85 + 1.2 * big * len(title)
    if taken + 1.22 * letters * len(lines) > room:
        lines = []
        title = title if len(title) < 2 or taken <= room else [shorten(panel.title, width, big)]
    return title, lines, panel.headline if fits else ""


def _legend_height(axes: Axes, pen: Pen) -> float:
    """Return the height of the legend above the axes, in points."""
    legend = axes.get_legend()
    if legend is None:
        return 0.0
    rows = -(-len(legend.get_texts()) // legend._ncols)  # type: ignore[attr-defined]
    return float(rows * 1.35 * pen.letters + 0.25 * pen.letters)


def _write(
    axes: Axes,
    text: str,
    x: float,
    y: float,
    size: float,
    color: str,
    ha: str = "left",
    weight: str = "normal",
) -> None:
    axes.annotate(
        text,
        (0, 1),
        (x, y),
        xycoords="axes fraction",
        textcoords="offset points",
        ha=ha,
        va="baseline",
        fontsize=size,
        color=color,
        fontweight=weight,
        annotation_clip=False,
        parse_math=False,
    )


def _legend(axes: Axes, pen: Pen) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if not handles or (len(handles) == 1 and labels[0].startswith("moving")):
        return
    letters = pen.letters
    widths = [width_of(label, letters) + 2.9 * letters for label in labels]
    columns = next(
        (n for n in range(len(labels), 1, -1) if n * max(widths) <= pen.width + letters), 1
    )
    if sum(widths) <= pen.width + letters:
        columns = len(labels)
    legend = axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=letters,
        labelcolor=pen.theme.muted,
        handlelength=1.1,
        handletextpad=0.4,
        columnspacing=1.1,
        borderpad=0.0,
        borderaxespad=0.25,
        labelspacing=0.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
