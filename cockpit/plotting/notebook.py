"""Figures in a notebook: shown once, and drawn anew in the same place while a cell runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure

from cockpit.plotting.words import missing_glyphs_ignored

__all__ = ["NotebookPlace", "Picture", "notebook"]


class Picture(Figure):
    """A figure that a notebook shows also where pyplot was never imported."""

    in_place = False
    """Whether a `NotebookPlace` shows it, so that it must not be shown a second time."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw all that is on the figure, letters that the font lacks as boxes."""
        with missing_glyphs_ignored():
            super().draw(renderer)

    def png(self) -> bytes:
        """Return the figure as PNG."""
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()

    def _ipython_display_(self) -> None:
        if not self.in_place:
            _display(self.png())


@dataclass
class NotebookPlace:
    """Where a notebook shows a figure: below a cell, until another one runs."""

    shell: Any
    cell: int = -1
    handle: Any = None

    def show(self, figure: Picture) -> None:
        """Show a figure, in place of the one before if it is still the same cell that runs."""
        figure.in_place = True
        if self.handle is not None and self.cell == self.shell.execution_count:
            self.handle.update({"image/png": figure.png()}, raw=True)
        else:
            self.cell = self.shell.execution_count
            self.handle = _display(figure.png(), display_id=True)


def notebook() -> Any:
    """Return the shell of the notebook that this runs in, `None` elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if hasattr(shell, "kernel") else None


def _display(png: bytes, **options: Any) -> Any:
    display = sys.modules["IPython"].display.display
    return display({"image/png": png}, raw=True, **options)
