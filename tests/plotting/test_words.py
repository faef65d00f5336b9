"""Words that models and users choose are drawn as they are, whatever is in them."""

from __future__ import annotations

import warnings
from io import BytesIO

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cockpit.instruments import Bars, Heat, Line, Panel, Points, Reference
from cockpit.plotting import draw, draw_figure
from cockpit.plotting.notebook import Picture
from cockpit.plotting.words import printable_panel

X = np.arange(4.0)
ODD = ("w$\\frac$x", "$x^2$_{", "a\nb", "\x1b[31mred", "\u202etxet", "权重.🚀", "$", "")


def panels_with(word: str) -> list[Panel]:
    """Return panels with a word wherever there can be one."""
    words = {"x_label": word, "y_label": word, "unit": word, "headline": word}
    heat = Heat(X, np.ones((2, 4)), word, names=(word, f"{word}2"))
    curves = (Line(X, X, word), Points(X, X, word), Reference(2.0, word), Reference(1.0, word, "x"))
    two = (Reference(1.0, word), Reference(3.0, word), Line(X, X), Bars(X, X[1:], word))
    return [
        Panel(word, "GRADIENTS", word, marks, **words)  # type: ignore[arg-type]
        for marks in ((heat,), curves, two)
    ] + [Panel("T", "GRADIENTS", "", (Line(X + 1, X),), "x", x_names=(word, word, "c", "d"))]


@pytest.mark.parametrize("word", ODD)
def test_any_word_can_be_drawn_without_a_warning(word: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw_figure(panels_with(word), Picture(figsize=(9, 7)), title=word, subtitle=word)
        file = BytesIO()
        figure.savefig(file, format="png", dpi=40)
    shown = {text.get_text() for text in figure.findobj(mpl.text.Text)}
    if word == ODD[0]:
        assert word in shown


@pytest.mark.parametrize("word", ODD[:2])
def test_dollars_are_no_formulas_on_your_own_axes(word: str) -> None:
    for panel in panels_with(word):
        figure = Figure(layout="constrained")
        draw(panel, figure.add_subplot(), how_to_read=True)
        FigureCanvasAgg(figure).draw()


def test_panels_with_plain_words_stay_what_they_are() -> None:
    (panel, *_) = panels_with("plain")
    assert printable_panel(panel).marks[0] is panel.marks[0]
    (odd, *_) = panels_with("a\nb")
    (heat,) = printable_panel(odd).marks
    assert isinstance(heat, Heat)
    assert (heat.names, heat.label) == (("a b", "a b2"), "a b")
