"""Pictures can be read: at any size, in light and dark, and with every kind of colour vision."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from torch import nn

from cockpit import Cockpit, quantities
from cockpit.instruments import Panel, panels
from cockpit.plotting import draw_figure
from cockpit.plotting.theme import THEMES, Theme
from cockpit.quantities import Quantity
from cockpit.run import open_run

STEPS = 12
NAMES = ("embedding", "a_block_with_a_long_name", "block", "head")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[Panel]:
    """All panels of a training with Adam that tracks everything but attention."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, (before, after) in zip(NAMES, ((6, 7), (7, 5), (5, 5), (5, 3)), strict=True):
        model.add_module(name, nn.Linear(before, after))
        if name != "head":
            model.add_module(f"{name}_act", nn.Tanh() if name == "block" else nn.ReLU())
    module, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.05)
    kinds = [getattr(quantities, name) for name in quantities.__all__]
    tracked = [
        kind(keep_individual=True) if kind is quantities.GradHist2d else kind()
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, Quantity) and kind is not Quantity
    ]
    path = tmp_path_factory.mktemp("run") / "run.db"
    with Cockpit(model, tracked, optimizer=optimizer, log=path) as watch:
        for step in range(STEPS):
            x, y = torch.randn(8, 6), torch.randint(3, (8,))
            optimizer.zero_grad()
            outputs = model(x)
            losses = F.cross_entropy(outputs, y, reduction="none")
            loss = losses.mean()
            closure = partial(lambda x, y: module(model(x), y), x, y)
            with watch(step, loss=loss, individual_losses=losses, closure=closure):
                loss.backward()
            optimizer.step()
            watch.log(step, learning_rate=0.05, test_accuracy=0.1 * step, epoch_count=step / 4)
    return panels(open_run(path))


def words(figure: Figure) -> list[tuple[Text, Bbox]]:
    """Return all words of a figure that are seen, and where."""
    FigureCanvasAgg(figure).draw()
    unseen: set[Text] = set()
    for axes in figure.findobj(mpl.axes.Axes):
        for axis in (axes.xaxis, axes.yaxis):
            place = axis.get_transform().transform
            low, high = sorted(place(np.array(axis.get_view_interval())))
            air = 1e-6 * (high - low)
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low - air <= place(tick.get_loc()) <= high + air:
                    unseen |= {tick.label1, tick.label2}
    found = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    return [(text, text.get_window_extent()) for text in found if text not in unseen]


def unreadable(figure: Figure) -> list[str]:
    """Return the words that are cut off, and the pairs of words that meet."""
    found, page = words(figure), figure.bbox
    faults = [
        f"{text.get_text()} is cut off"
        for text, box in found
        if not (page.x0 <= box.x0 <= box.x1 <= page.x1 and page.y0 <= box.y0 <= box.y1 <= page.y1)
    ]
    for (one, a), (two, b) in combinations(found, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        up = min(a.y1, b.y1) - max(a.y0, b.y0)
        if across >= 2 and up >= 0.35 * min(a.height, b.height):  # a box is taller than its letters
            faults.append(f"{one.get_text()} meets {two.get_text()}")
    return faults


def test_the_training_shows_nearly_everything(shown: list[Panel]) -> None:
    assert len({panel.name for panel in shown}) >= 45


@pytest.mark.parametrize("size", [(8, 14), (16, 26)])
def test_all_pictures_on_one_figure(shown: list[Panel], size: tuple[float, float]) -> None:
    figure = draw_figure(shown, Figure(figsize=size), title="A run", subtitle="step 11")
    figure.set_dpi(150)  # where letters are a little wider than where they were measured
    assert unreadable(figure) == []


@pytest.mark.parametrize("half", [0, 1])
def test_each_picture_alone(shown: list[Panel], half: int) -> None:
    """Half of them on a tiny figure, half of them on a usual one, which takes half the time."""
    size, style = ((2.4, 1.8), "light") if half else ((6.0, 4.5), "dark")
    for panel in shown[half::2]:
        figure = draw_figure([panel], Figure(figsize=size), style=style)
        assert unreadable(figure) == [], panel.name
        title = figure.axes[0].get_title("left")
        assert title[:5] == panel.title[:5]


def test_letters_stay_on_their_card(shown: list[Panel]) -> None:
    figure = draw_figure(shown, Figure(figsize=(16, 26)))
    cards = [
        patch.get_window_extent() for patch in figure.artists if hasattr(patch, "get_boxstyle")
    ]
    assert len(cards) == len(shown)
    for text, box in words(figure):
        middle = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        inside = [card for card in cards if card.contains(*middle)]
        for card in inside:
            assert card.x0 - 1 <= box.x0 <= box.x1 <= card.x1 + 1, text.get_text()


# colours

VISIONS = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}  # fmt: skip
"""What of linear RGB is left: Machado, Oliveira & Fernandes (2009), severity 1."""


def linear(color: str) -> np.ndarray:
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIE Lab of linear sRGB, for white D65."""
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(rgb, 0, 1)
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES.values(), ids=list(THEMES))
@pytest.mark.parametrize("vision", [None, *VISIONS])
def test_colors_can_be_told_apart(theme: Theme, vision: str | None) -> None:
    matrix = np.eye(3) if vision is None else np.array(VISIONS[vision])
    seen = {name: lab(matrix @ linear(color)) for name, color in theme.colors.items()}
    card = lab(matrix @ linear(theme.card))
    for (one, a), (two, b) in combinations(seen.items(), 2):
        assert np.linalg.norm(a - b) > 8, (one, two)
    for name, color in seen.items():
        assert abs(color[0] - card[0]) > 20, f"{name} stands out from the card"


@pytest.mark.parametrize("theme", THEMES.values(), ids=list(THEMES))
def test_larger_values_are_ever_darker_or_ever_lighter(theme: Theme) -> None:
    lightness = np.diff([lab(linear(color))[0] for color in theme.sequence])
    assert (lightness < 0).all() or (lightness > 0).all()
