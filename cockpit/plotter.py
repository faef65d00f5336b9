"""`CockpitPlotter`: all pictures of a run in one matplotlib figure, in a window or in a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cockpit.errors import CockpitWarning, InvalidArgument, InvalidType
from cockpit.instruments import INSTRUMENTS, Instrument, Readable, panel_of, panels
from cockpit.instruments.reading import curve, number
from cockpit.plotting import draw, draw_figure
from cockpit.plotting.layout import figure_size
from cockpit.plotting.notebook import NotebookPlace, Picture, notebook
from cockpit.plotting.theme import theme_of
from cockpit.plotting.words import missing_glyphs_ignored

__all__ = ["CockpitPlotter"]

WITHOUT_WINDOW = frozenset({"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"})

PANEL_SIZE = (6.4, 4.8)
"""Size in inches of a figure with one picture."""


class CockpitPlotter:
    """Draws all pictures of a run in one figure.

    The short way: ``CockpitPlotter().plot("runs/first.db", save_plot=True)``.

    Args:
        secondary_screen: Put the window on a second screen, right of the first.
        style: ``"light"`` or ``"dark"``.
        figsize: Width and height in inches; unless told otherwise 16 × 9, or taller where there are
            too many pictures for that.
        instruments: What to show; every other quantity gets the default instrument.

    Raises:
        InvalidArgument: There is no such style.
    """

    def __init__(
        self,
        secondary_screen: bool = False,
        *,
        style: str = "light",
        figsize: tuple[float, float] | None = None,
        instruments: Iterable[Instrument] = INSTRUMENTS,
    ) -> None:
        theme_of(style)
        self.secondary_screen = secondary_screen
        self.style = style
        self.figsize = figsize
        self.instruments = tuple(instruments)
        self._window: Figure | None = None
        self._place: NotebookPlace | None = None

    def plot(
        self,
        source: Any,
        show_plot: bool = True,
        block: bool = False,
        save_plot: bool = False,
        savedir: str | os.PathLike[str] | None = None,
        savename: str = "cockpit",
        savename_append: str | None = None,
        savefig_kwargs: Mapping[str, Any] | None = None,
        show_log_iter: bool = False,
        discard: int | None = None,
        plot_title: str | None = None,
        debug: bool = False,
        *,
        style: str | None = None,
    ) -> Figure:
        """Draw the run as it is now; called again, the same window is drawn anew.

        Args:
            source: A run, the path of its file, or the cockpit that is recording it.
            show_plot: Show the figure in a window or, in a notebook, below the cell; called again while
                the same cell runs, it is drawn anew there. Elsewhere, this does nothing.
            block: Wait until the window is closed.
            save_plot: Save the figure as ``<savedir>/<savename><savename_append>.png``.
            savedir: Folder to save to; that of the run by default. It is made if need be.
            savename: Name of the file, without its ending.
            savename_append: What to append to the name, such as a counter.
            savefig_kwargs: More arguments for `matplotlib.figure.Figure.savefig`; ``format`` sets
                the ending, too.
            show_log_iter: Logarithmic step axes.
            discard: Leave out what came after this step.
            plot_title: Title of the figure; the name of the run by default.
            debug: Raise the error of an instrument that fails, instead of leaving out its picture
                with a warning.
            style: ``"light"`` or ``"dark"``, instead of the plotter's own.

        Returns:
            The figure.

        Raises:
            InvalidArgument: There is no such style.
            InvalidType: `source` is nothing that can be drawn.
        """
        style = style or self.style
        theme = theme_of(style)
        run = _run_of(source)
        shown: Readable = run if discard is None else _Until(run, discard)
        pictures = panels(shown, self.instruments, None if debug else _warn)
        figure = self._figure(show_plot, self.figsize or figure_size(pictures))
        with mpl.rc_context(theme.rc):
            figure.clear()
            draw_figure(
                pictures,
                figure,
                style=style,
                title=plot_title if plot_title is not None else _name(run),
                subtitle=_subtitle(shown, getattr(run, "status", "")),
                log_steps=show_log_iter,
            )
            if save_plot:
                _save(figure, run, savedir, savename + (savename_append or ""), savefig_kwargs)
        if figure is self._window:
            self._show(figure, block)
        elif show_plot and isinstance(figure, Picture) and (shell := notebook()) is not None:
            self._place = self._place or NotebookPlace(shell)
            self._place.show(figure)
        return figure

    def plot_panel(
        self,
        source: Any,
        name: str,
        *,
        ax: Axes | None = None,
        show_log_iter: bool = False,
        discard: int | None = None,
        style: str | None = None,
        how_to_read: bool = False,
    ) -> Axes:
        """Draw one picture of a run, on your own axes or on a figure of its own.

        Args:
            source: A run, the path of its file, or the cockpit that is recording it.
            name: Name of the picture, such as ``"alpha"``, or of a quantity, whose first picture is
                drawn.
            ax: Where to draw; what is on the axes stays. On a figure of its own unless given. Where
                there are several, make them with ``plt.subplots(..., layout="constrained")``, which
                gives titles, legends and names of rows the room that they need.
            show_log_iter: Logarithmic step axis.
            discard: Leave out what came after this step.
            style: ``"light"`` or ``"dark"``, instead of the plotter's own.
            how_to_read: Whether to write how to read it on axes of yours, too; on a figure of its own
                it always stands there.

        Returns:
            The axes; ``axes.figure`` is the figure.

        Raises:
            InvalidArgument: There is no such picture, the run has no data for it, or there is no such
                style.
            InvalidType: `source` is nothing that can be drawn.
        """
        style = style or self.style
        run = _run_of(source)
        shown: Readable = run if discard is None else _Until(run, discard)
        panel = panel_of(shown, name, self.instruments)
        with mpl.rc_context(theme_of(style).rc):
            if ax is not None:
                return draw(
                    panel, ax, style=style, log_steps=show_log_iter, how_to_read=how_to_read
                )
            figure = Picture(figsize=self.figsize or PANEL_SIZE)
            draw_figure([panel], figure, style=style, log_steps=show_log_iter)
            return figure.axes[0]

    def build_animation(
        self, logpath: str | os.PathLike[str], duration: int = 200, loop: int = 0
    ) -> Path:
        """Write how the pictures grew as a GIF beside the run, with its name and ``.gif``.

        The frames are drawn from the run itself: no pictures have to be saved in the training. Up
        to 30 steps are shown, evenly spaced over the tracked ones, the first and the last included.

        Args:
            logpath: Path of the run file, or of the JSON of Cockpit 1.0.
            duration: Milliseconds for which a frame is shown.
            loop: How often the animation is played; 0 is for ever.

        Returns:
            Path of the GIF.

        Raises:
            NotARunFile: There is no run at that path.
            InvalidArgument: Nothing has been tracked in it, or the arguments cannot be used.
        """
        from cockpit.plotting.animation import write_animation
        from cockpit.run import open_run

        run = open_run(logpath)
        if not len(run.steps):
            raise InvalidArgument(
                f"{run.path} has no tracked steps yet, so nothing can be animated."
            )
        target = run.path.with_suffix(".gif")
        size = self.figsize or figure_size(panels(run, self.instruments, _warn))
        frames = CockpitPlotter(style=self.style, figsize=size, instruments=self.instruments)
        write_animation(
            lambda step: frames.plot(run, show_plot=False, discard=step),
            run.steps,
            target,
            duration=duration,
            loop=loop,
        )
        return target

    def _figure(self, show_plot: bool, size: tuple[float, float]) -> Figure:
        """Return the open window's figure, that of a new window, or one that no window shows."""
        if not show_plot or not _has_windows():
            return Picture(figsize=size)
        from matplotlib import pyplot as plt

        if self._window is None or not plt.fignum_exists(getattr(self._window, "number", -1)):
            self._window = plt.figure(figsize=size)
            if self.secondary_screen:
                _move_to_second_screen(self._window)
        return self._window

    def _show(self, figure: Figure, block: bool) -> None:
        from matplotlib import pyplot as plt

        figure.canvas.draw_idle()
        plt.show(block=block)
        figure.canvas.flush_events()


@dataclass(frozen=True)
class _Until:
    """A run without what came after a step."""

    run: Readable
    step: int

    @property
    def parameters(self) -> list[str]:
        return self.run.parameters

    @property
    def steps(self) -> np.ndarray:
        steps = self.run.steps
        return steps[steps <= self.step]

    @property
    def quantities(self) -> list[str]:
        return self.run.quantities

    @property
    def settings(self) -> dict[str, Any]:
        return self.run.settings

    def events(self) -> pd.DataFrame:
        events = self.run.events()
        return events[~(events["step"] > self.step).fillna(False)]

    def scalars(self, quantity: str | None = None) -> pd.DataFrame:
        frame = self.run.scalars(quantity)
        return frame[frame["step"] <= self.step]

    def parts(self, quantity: str, kind: str = "scalar", *, details: bool = True) -> list[str]:
        return self.run.parts(quantity, kind, details=details)

    def curve(self, quantity: str, part: str = "") -> tuple[np.ndarray, np.ndarray]:
        steps, values = self.run.curve(quantity, part)
        seen = int(np.searchsorted(steps, self.step, side="right"))
        return steps[:seen], values[:seen]

    def newest(self, quantity: str) -> tuple[int, dict[str, np.ndarray]] | None:
        found = self.run.newest(quantity)
        if found is None or found[0] <= self.step:
            return found
        frames = [self.arrays(quantity, part) for part in self.parts(quantity, "array")]
        step = max((frame["step"].max() for frame in frames if len(frame)), default=None)
        if step is None:
            return None
        last = [frame[frame["step"] == step] for frame in frames]
        return int(step), {f["part"].iloc[0]: f["value"].iloc[0] for f in last if len(f)}

    def series(self, quantity: str, part: str | None = None) -> pd.Series | pd.DataFrame:
        return self.run.series(quantity, part).loc[: self.step]

    def arrays(self, quantity: str | None = None, part: str | None = None) -> pd.DataFrame:
        frame = self.run.arrays(quantity, part)
        return frame[frame["step"] <= self.step]


def _run_of(source: Any) -> Any:
    """Return the run that `source` is, names, or records."""
    if isinstance(source, str | os.PathLike):
        from cockpit.run import open_run

        return open_run(source)
    if hasattr(source, "scalars"):
        if hasattr(source, "refresh"):
            source.refresh()  # it keeps what it has read, and there may be more by now
        return source
    if callable(getattr(source, "run", None)):
        return source.run()
    raise InvalidType(
        f"source must be a run, the path of a run file, or a cockpit, got {type(source).__name__}"
    )


def _name(run: Any) -> str:
    path = getattr(run, "path", None)
    return Path(path).stem if path else "cockpit"


def _subtitle(run: Readable, status: str) -> str:
    """Return in a few words how far the run has come."""
    steps = run.steps
    words = []
    if len(steps):
        words = [f"step {steps.max():,}", f"{len(steps):,} step{'s' * (len(steps) != 1)} tracked"]
        epoch = curve(run, "epoch_count")
        words[:0] = [f"epoch {number(float(epoch.values[-1]))}"] if epoch is not None else []
        words += [f"{len(run.parameters)} parameters"] if run.parameters else []
    return "  ·  ".join([*words, status] if status else words)


def _warn(name: str, error: Exception) -> None:
    warnings.warn(
        f"no picture of {name}: {type(error).__name__}: {error}; plot(..., debug=True) raises it",
        CockpitWarning,
        stacklevel=4,
    )


def _save(
    figure: Figure,
    run: Any,
    savedir: str | os.PathLike[str] | None,
    name: str,
    savefig_kwargs: Mapping[str, Any] | None,
) -> None:
    options = {"dpi": 150, "format": "png", **(savefig_kwargs or {})}
    if not name:
        raise InvalidArgument("savename must not be empty")
    path = getattr(run, "path", None)
    folder = Path(savedir) if savedir is not None else Path(path).parent if path else Path()
    folder.mkdir(parents=True, exist_ok=True)
    with missing_glyphs_ignored():
        figure.savefig(folder / f"{name}.{options['format']}", **options)


def _has_windows() -> bool:
    """Return whether the current backend of matplotlib opens windows."""
    backend = mpl.get_backend().lower()
    return backend not in WITHOUT_WINDOW and "inline" not in backend


def _move_to_second_screen(figure: Figure) -> None:
    """Move the window right of the first screen, under Tk and Qt."""
    window: Any = getattr(figure.canvas.manager, "window", None)
    if hasattr(window, "wm_geometry"):  # Tk
        window.wm_geometry(f"+{window.winfo_screenwidth()}+0")
    elif hasattr(window, "screen") and hasattr(window, "move"):  # Qt
        window.move(window.screen().geometry().right() + 1, 0)
