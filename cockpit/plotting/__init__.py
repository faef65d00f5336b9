"""Renderers: they draw panels. Here is the one for matplotlib.

`draw` puts one panel on your own axes, `draw_figure` many on one figure; both keep no state.
"""

from cockpit.plotting.layout import draw_figure
from cockpit.plotting.matplotlib import draw
from cockpit.plotting.theme import Style

__all__ = ["Style", "draw", "draw_figure"]
