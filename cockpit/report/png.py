"""The pictures of a report in one."""

from __future__ import annotations

import io

import matplotlib as mpl

from cockpit.plotting import draw_figure
from cockpit.plotting.layout import figure_size
from cockpit.plotting.notebook import Picture
from cockpit.plotting.theme import theme_of
from cockpit.report.content import Content, Told
from cockpit.summary import status_text

__all__ = ["png"]

DPI = 150


def png(content: Content, told: Told) -> bytes:
    """Return all pictures in one, light."""
    told(0, 1)
    first = content.runs[0].about
    words = f"{first.extent}  ·  {status_text(first.status)}"
    with mpl.rc_context(theme_of("light").rc):
        figure = draw_figure(
            content.panels,
            Picture(figsize=figure_size(content.panels)),
            title=content.title,
            subtitle=words if len(content.runs) == 1 else f"{len(content.runs)} runs",
        )
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=DPI)
    told(1, 1)
    return stream.getvalue()
