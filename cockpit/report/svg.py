"""A panel as SVG that lies in a page: small, in the page's own colours, and without ids of others."""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cockpit.instruments import Heat, Panel, thinned
from cockpit.plotting.matplotlib import draw_body, pen_for
from cockpit.plotting.theme import THEMES, Theme
from cockpit.plotting.words import missing_glyphs_ignored

__all__ = ["colors", "picture"]

WIDTH, HEIGHT, LETTERS = 4.7, 2.9, 8.0
"""Size in inches, and size of the letters in points."""

PIXELS = 700
"""Width for which long curves are thinned."""

TAG = re.compile("<[^>]*>")
"""Within the values of attributes, matplotlib writes a ``>`` as an entity."""

RC: dict[Any, Any] = {
    "svg.fonttype": "none",  # letters as letters: smaller than their outlines, found by a search
    "svg.hashsalt": "cockpit",  # the same picture has the same text
    "text.usetex": False,
    "text.parse_math": False,  # a name may have a $ in it
}


def colors(theme: Theme) -> dict[str, str]:
    """Return the colours that a picture of this theme has, by the names of the page's variables."""
    named = {"background": theme.background, "card": theme.card, "border": theme.border}
    named |= {"grid": theme.grid, "text": theme.text, "muted": theme.muted}
    named |= {f"c-{name}": color for name, color in theme.colors.items()}
    return named | {f"g-{name.lower().replace(' ', '-')}": c for name, c in theme.groups.items()}


def picture(panel: Panel, prefix: str) -> str:
    """Return a panel as one or two elements ``svg``, without its title.

    A picture takes its colours from variables of the page, so that it suits a light page and a dark
    one. Those of a heat map are pixels: it is there for either, and the page shows one of the two
    (the classes ``light`` and ``dark``).

    Args:
        panel: What to draw.
        prefix: What ids begin with, which are unique within a page.
    """
    panel = thinned(panel, PIXELS)
    if not any(isinstance(mark, Heat) for mark in panel.marks):
        return _svg(panel, THEMES["light"], f"{prefix}-", "")
    return "".join(_svg(panel, theme, f"{prefix}-{name}-", name) for name, theme in THEMES.items())


def _svg(panel: Panel, theme: Theme, prefix: str, kind: str) -> str:
    stream = io.StringIO()
    with mpl.rc_context(RC), missing_glyphs_ignored():
        figure = Figure(figsize=(WIDTH, HEIGHT), facecolor="none")
        axes = figure.add_axes((0.12, 0.14, 0.84, 0.74))
        draw_body(panel, axes, pen_for(axes, theme, False, LETTERS))
        _fit(figure, axes)
        figure.savefig(stream, format="svg", dpi=120, metadata=dict.fromkeys(("Date", "Creator")))
    names = {} if kind else {color: name for name, color in reversed(colors(theme).items())}
    text = _in_page(_stripped(stream.getvalue()), prefix, names)
    label = escape(f"{panel.title}. {panel.how_to_read}")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    body = text[text.index(">", box.end()) + 1 :]
    own = f' class="{kind}"' if kind else ""
    return f'<svg{own} role="img" aria-label="{label}" {box[0]}><title>{label}</title>{body}'


def _fit(figure: Figure, axes: Axes) -> None:
    """Give the axes all the room that labels and legend leave."""
    width, height = (float(v) for v in figure.get_size_inches() * figure.dpi)
    inner, outer = axes.get_window_extent(), axes.get_tightbbox()
    assert outer is not None
    pad = 4.0
    left, bottom = inner.x0 - outer.x0 + pad, inner.y0 - outer.y0 + pad
    right, top = outer.x1 - inner.x1 + pad, outer.y1 - inner.y1 + pad
    across, up = max(width - left - right, width / 4), max(height - bottom - top, height / 4)
    axes.set_position((left / width, bottom / height, across / width, up / height))


def _stripped(text: str) -> str:
    """Return the element without what stands before it, comments, metadata and rules for the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    return re.sub(r">\s+<", "><", text).strip()


def _in_page(text: str, prefix: str, names: dict[str, str]) -> str:
    """Let ids begin with the prefix, colours be variables, and numbers have no more digits than needed.

    Only tags are changed, never the words between them: they are those of a run.
    """
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', "".join(TAG.findall(text))))

    def renamed(found: re.Match[str]) -> str:
        return f' id="{prefix}{found[1]}"' if found[1] in used else ""

    def colored(found: re.Match[str]) -> str:
        return f"var(--{names[found[0]]})" if found[0] in names else found[0]

    def changed(found: re.Match[str]) -> str:
        tag = re.sub(r' id="([^"]*)"', renamed, found[0])
        if "base64," in tag:
            return tag
        tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", tag)
        tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
        tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
        return re.sub(r"(?<=: )#[0-9a-f]{6}", colored, tag)

    return TAG.sub(changed, text)
