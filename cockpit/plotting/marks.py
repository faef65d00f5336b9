"""One function per kind of mark: data and axes in, artists out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, Normalize, TwoSlopeNorm

from cockpit.instruments.panel import Array, Band, Bars, Heat, Line, Panel, Points
from cockpit.instruments.thinning import thin_cells, thin_line, thin_points
from cockpit.plotting.extents import round_ticks
from cockpit.plotting.letters import shorten_all, tick_texts
from cockpit.plotting.theme import Theme

__all__ = ["Pen", "apart", "draw_mark", "mark_edges"]


@dataclass(frozen=True)
class Pen:
    """What every mark needs to know besides its own data.

    Args:
        theme: Colours.
        letters: Size of the small letters in points; lines and points are as thick as it asks for.
        width: Width of the axes in points.
        height: Height of the axes in points.
        log_steps: Whether the step axis is logarithmic.
    """

    theme: Theme
    letters: float
    width: float
    height: float
    log_steps: bool = False

    @property
    def stroke(self) -> float:
        """Width of a strong line in points."""
        return 0.24 * self.letters


@singledispatch
def draw_mark(mark: object, axes: Axes, pen: Pen) -> None:
    """Draw one mark of a panel on the axes."""
    raise TypeError(f"{type(mark).__name__} is no mark that this renderer draws")


@draw_mark.register
def _line(mark: Line, axes: Axes, pen: Pen) -> None:
    x, y = np.asarray(mark.x, float), np.asarray(mark.y, float)
    keep = thin_line(x, y, pen.log_steps)
    x, y = x[keep], np.where(np.isfinite(y), y, np.nan)[keep]
    there = np.isfinite(y)
    alone = there & ~np.append(False, there[:-1]) & ~np.append(there[1:], False)
    faint = mark.style == "faint"
    axes.plot(
        x,
        y,
        color=pen.theme.colors[mark.color],
        linewidth=pen.stroke * (0.5 if faint else 1.0),
        alpha=0.38 if faint else 1.0,
        linestyle="--" if mark.style == "dashed" else "-",
        label=mark.label or "_",
        solid_capstyle="round",
        solid_joinstyle="round",
        zorder=2.0 if faint else 3.0,
    )
    if alone.any():  # a line needs two neighbours: a lonely value becomes a dot
        axes.plot(
            x[alone],
            y[alone],
            linestyle="",
            marker="o",
            markersize=pen.stroke * (1.2 if faint else 2.6),
            color=pen.theme.colors[mark.color],
            alpha=0.5 if faint else 1.0,
            markeredgewidth=0,
            label="_",
        )


@draw_mark.register
def _band(mark: Band, axes: Axes, pen: Pen) -> None:
    color = pen.theme.colors[mark.color]
    x, low, high = (np.asarray(v, float) for v in (mark.x, mark.low, mark.high))
    keep = np.union1d(thin_line(x, low, pen.log_steps), thin_line(x, high, pen.log_steps))
    axes.fill_between(
        x[keep],
        low[keep],
        high[keep],
        where=np.isfinite(low[keep]) & np.isfinite(high[keep]),
        color=color,
        alpha=0.2,
        linewidth=0,
        label=mark.label or "_",
        zorder=1.5,
    )


@draw_mark.register
def _points(mark: Points, axes: Axes, pen: Pen) -> None:
    x, y = np.asarray(mark.x, float), np.asarray(mark.y, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = np.log(y) if axes.get_yscale() == "log" else y
    keep = thin_points(x, seen, int(2 * pen.width), int(2 * pen.height))
    axes.plot(
        x[keep],
        np.where(np.isfinite(y), y, np.nan)[keep],
        linestyle="",
        marker="o",
        markersize=pen.letters * (0.5 if mark.faint else 0.72),
        color=pen.theme.colors[mark.color],
        alpha=0.45 if mark.faint else 0.95,
        markeredgecolor=pen.theme.card,
        markeredgewidth=0.0 if mark.faint else 0.08 * pen.letters,
        label=mark.label or "_",
        zorder=3.0 if mark.faint else 4.0,
    )


@draw_mark.register
def _bars(mark: Bars, axes: Axes, pen: Pen) -> None:
    floor = 0.5 if axes.get_yscale() == "log" else 0.0
    axes.stairs(
        np.maximum(np.where(np.isfinite(mark.heights), mark.heights, 0.0), floor),
        mark.edges,
        baseline=None if mark.outline else floor,
        fill=not mark.outline,
        color=pen.theme.colors[mark.color],
        alpha=1.0 if mark.outline else 0.8,
        linewidth=pen.stroke * 0.8 if mark.outline else 0.0,
        label=mark.label or "_",
        zorder=3.0 if mark.outline else 2.0,
    )


@draw_mark.register
def _heat(mark: Heat, axes: Axes, pen: Pen) -> None:
    edges, values = thin_cells(
        np.asarray(mark.x, float), np.asarray(mark.values, float), pen.log_steps
    )
    rows = np.arange(len(values) + 1.0) if mark.edges is None else mark.edges
    norm, two_sided = _norm(values, mark)
    shown = np.ma.masked_where(~np.isfinite(values), np.clip(values, norm.vmin, norm.vmax))
    mesh = axes.pcolormesh(
        edges,
        rows,
        shown,
        norm=norm,
        cmap=pen.theme.two_sided if two_sided else pen.theme.sequential,
        rasterized=True,
        zorder=1.0,
    )
    infinite = np.isinf(values)
    if infinite.any():
        axes.pcolormesh(
            edges,
            rows,
            np.ma.masked_where(~infinite, np.ones_like(values)),
            cmap=ListedColormap([pen.theme.infinite]),
            rasterized=True,
            zorder=1.1,
        )
    axes.grid(False)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(rows[0], rows[-1])
    if mark.names:
        _name_rows(mark.names, axes, pen)
    _color_scale(mesh, mark.label, values, axes, pen)


def _norm(values: Array, mark: Heat) -> tuple[Normalize, bool]:
    """Return how values become colours, and whether the colours have two sides."""
    if mark.limits is not None:
        low, high = mark.limits
        return (LogNorm if mark.scale == "log" else Normalize)(low, high), low < 0 < high
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if mark.scale == "log" and positive.size:
        high = float(positive.max())
        low = max(float(positive.min()), high * 1e-9)
        return LogNorm(low, high if high > low else low * 10), False
    if not finite.size:
        return Normalize(0, 1), False
    low, high = float(finite.min()), float(finite.max())
    if low < 0 < high:
        return TwoSlopeNorm(0.0, min(low, -high), max(high, -low)), True
    return Normalize(low, high if high > low else low + 1), False


def _name_rows(names: tuple[str, ...], axes: Axes, pen: Pen) -> None:
    named = np.flatnonzero([bool(name) for name in names])
    size = 0.95 * pen.letters
    apart = np.diff(named).min(initial=len(names)) * pen.height / len(names)  # points
    shown = named[:: max(1, int(np.ceil(1.15 * pen.letters / apart)))]
    labels = shorten_all([names[i] for i in shown], 0.45 * pen.width, size)
    axes.set_yticks(shown + 0.5, labels, parse_math=False)
    axes.tick_params(axis="y", length=0, labelsize=size)
    axes.invert_yaxis()


def _color_scale(mesh: object, label: str, values: Array, axes: Axes, pen: Pen) -> None:
    """Draw what the colours mean right of the axes, with the colour of infinities above the others."""
    infinite = bool(np.isinf(values).any())
    left, across = 1.0 + 4 / pen.width, 0.55 * pen.letters / pen.width
    square = min(0.55 * pen.letters / pen.height, 0.1) if infinite else 0.0
    if np.isfinite(values).any():
        place = axes.inset_axes((left, 0.0, across, 1.0 - 2.5 * square))
        _color_bar(mesh, label, axes, place, pen)
    if infinite:
        place = axes.inset_axes((left, 1.0 - square, across, square), facecolor=pen.theme.infinite)
        place.spines[:].set_visible(False)
        place.set_xticks([])
        place.set_yticks([0.5], ["∞"])
        place.yaxis.tick_right()
        _small_ticks(place, pen)


def _color_bar(mesh: object, label: str, axes: Axes, place: Axes, pen: Pen) -> None:
    bar = axes.figure.colorbar(mesh, cax=place)  # type: ignore[arg-type]
    bar.outline.set_visible(False)
    low, high = bar.norm.vmin or 0.0, bar.norm.vmax or 0.0
    most = max(2, int(pen.height / (pen.letters * 3.5)))
    ticks = round_ticks(low, high, most, isinstance(bar.norm, LogNorm))
    ticks = apart(ticks, bar.norm, 3.2 * pen.letters / pen.height) or [low, high]
    bar.set_ticks(ticks, labels=tick_texts(ticks))
    bar.ax.minorticks_off()
    _small_ticks(bar.ax, pen)
    bar.ax.set_ylabel(
        label,
        fontsize=pen.letters * 0.92,
        color=pen.theme.muted,
        labelpad=0.2 * pen.letters,
        parse_math=False,
    )


def apart(ticks: list[float], norm: Normalize, gap: float) -> list[float]:
    """Return those of the ticks that are so far from each other, at least the outermost two; or none.

    One number alone gives colours no scale.
    """
    if len(ticks) < 2:
        return []
    kept = [ticks[-1]]  # those on a logarithmic scale are closest at its upper end
    for tick in ticks[-2::-1]:
        if norm(kept[-1]) - norm(tick) >= gap:
            kept.append(tick)
    return kept[::-1] if len(kept) > 1 else [ticks[0], ticks[-1]]


def _small_ticks(axes: Axes, pen: Pen) -> None:
    axes.tick_params(
        which="both",
        labelsize=pen.letters * 0.92,
        length=0,
        pad=0.25 * pen.letters,
        colors=pen.theme.muted,
    )


def mark_edges(panel: Panel, axes: Axes, pen: Pen) -> None:
    """Mark infinities, and values beyond the picture, by triangles at its upper and lower edge."""
    low, high = sorted(axes.get_ylim())
    for mark in panel.marks:
        if not isinstance(mark, Line | Points):
            continue
        if isinstance(mark, Line) and mark.style == "solid" and _has_faint_twin(mark, panel):
            continue  # the raw values below the moving average are marked already
        y = np.asarray(mark.y, float)
        for beyond, place, marker in ((y > high, 0.975, "^"), (y < low, 0.025, "v")):
            x = np.asarray(mark.x, float)[beyond]
            x = x[thin_line(x, np.zeros(len(x)), pen.log_steps, limit=300)]
            if len(x):
                axes.plot(
                    x,
                    np.full(len(x), place),
                    transform=axes.get_xaxis_transform(),
                    linestyle="",
                    marker=marker,
                    markersize=pen.letters * 0.6,
                    color=pen.theme.colors[mark.color],
                    markeredgewidth=0,
                    label="_",
                    clip_on=False,
                    zorder=6,
                )


def _has_faint_twin(line: Line, panel: Panel) -> bool:
    return any(
        isinstance(m, Line) and m.style == "faint" and m.color == line.color for m in panel.marks
    )
