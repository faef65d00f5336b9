"""Every public quantity has a picture: it is tracked in a small training, and its panels are drawn."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit import Cockpit, quantities
from cockpit.instruments import (
    GROUPS,
    INSTRUMENTS,
    WITHOUT_PICTURE,
    Band,
    Bars,
    Heat,
    Line,
    Panel,
    Points,
    default,
    panels,
)
from cockpit.plotting import draw, draw_figure
from cockpit.plotting.layout import figure_size
from cockpit.quantities import Quantity
from cockpit.run import Run, open_run
from cockpit.summary import readings

KINDS: dict[str, type[Quantity]] = {
    name: kind
    for name in quantities.__all__
    if isinstance(kind := getattr(quantities, name), type)
    and issubclass(kind, Quantity)
    and kind is not Quantity
}

SETTINGS: dict[str, dict[str, Any]] = {"GradHist2d": {"keep_individual": True}}

STEPS = 5


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.tokens(x)).mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def train(path: Path, quantity: Quantity) -> Run:
    """Train with AdamW and log the learning rate; the encoder for what needs attention."""
    torch.manual_seed(0)
    needs_attention = quantity.name == "AttentionStats"
    model = Encoder() if needs_attention else perceptron()
    module = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch = Cockpit(model, [quantity], optimizer=optimizer, log=path)
    with watch, sdpa_kernel(SDPBackend.MATH):
        for step in range(STEPS):
            x = torch.randint(11, (8, 5)) if needs_attention else torch.randn(8, 6)
            y = torch.randint(3, (8,))
            optimizer.zero_grad()
            outputs = model(x)
            losses = F.cross_entropy(outputs, y, reduction="none")
            loss = module(outputs, y)
            closure = partial(lambda x, y: module(model(x), y), x, y)
            with watch(step, loss=loss, individual_losses=losses, closure=closure):
                loss.backward()
            optimizer.step()
            watch.log(step, learning_rate=0.01)
    return open_run(path)


def claimed(run: Run, name: str) -> list[Panel]:
    """Return the panels that show a quantity, of its own instruments or of the default one."""
    own = [item for item in INSTRUMENTS if name in item.quantities]
    makers = own or [partial(default.panel, quantity=name)]
    return [panel for make in makers if (panel := make(run)) is not None]


def finite_marks(panel: Panel) -> int:
    count = 0
    for mark in panel.marks:
        if isinstance(mark, Line | Points):
            values = mark.y
        elif isinstance(mark, Band):
            values = mark.high
        elif isinstance(mark, Bars):
            values = mark.heights
        elif isinstance(mark, Heat):
            values = mark.values
        else:
            continue
        count += bool(np.isfinite(values).any())
    return count


def test_there_are_quantities_to_look_at() -> None:
    assert len(KINDS) > 25
    assert {name for name in WITHOUT_PICTURE if name in KINDS} == {"Parameters"}


@pytest.mark.parametrize("name", KINDS)
def test_every_quantity_has_a_picture(name: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run.db", KINDS[name](**SETTINGS.get(name, {})))
    assert name in run.quantities
    shown = [(panel.title, panel.group) for panel in panels(run)]
    if name in WITHOUT_PICTURE:
        assert shown == [("Learning rate", "HYPERPARAMETERS")]
        return
    found = claimed(run, name)
    assert found, f"{name} has no picture"
    assert sum(map(finite_marks, found)), f"no picture of {name} has anything to see"
    for panel in found:
        assert (panel.title, panel.group) in shown
        assert panel.title
        assert panel.group in GROUPS
        assert panel.how_to_read.endswith(".")
        assert panel.how_to_read.count(". ") == 0, "one sentence"
        assert len(panel.how_to_read) <= 110, "it has to fit"
        figure = Figure(figsize=(4, 3))
        canvas = FigureCanvasAgg(figure)
        axes = draw(panel, figure.add_subplot())
        canvas.draw()
        assert axes.get_title("left").replace("\n", " ") == panel.title
        meshes = [c for c in axes.collections if isinstance(c, QuadMesh)]
        assert len(meshes) == sum(isinstance(mark, Heat) for mark in panel.marks)
        seen = [np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in axes.lines]
        seen += [not np.ma.getmaskarray(mesh.get_array()).all() for mesh in meshes]
        seen += [bool(axes.patches)]
        assert any(seen) or not finite_marks(panel)


@pytest.mark.parametrize("name", KINDS)
def test_every_quantity_has_a_line_in_the_summary(name: str, tmp_path: Path) -> None:
    if name in WITHOUT_PICTURE:
        return
    run = train(tmp_path / "run.db", KINDS[name](**SETTINGS.get(name, {})))
    (line,) = (line for line in readings(run) if line.quantity == name)
    assert line.value
    assert line.meaning
    assert line.meaning != "nothing to show yet"


def test_many_panels_make_a_taller_figure_and_fit_a_small_one() -> None:
    x = np.arange(5.0)
    items = [Panel("T", group, "Read.", (Line(x, x),)) for group in GROUPS for _ in range(7)]
    width, height = figure_size(items)
    assert (width, figure_size(items[:8])) == (16.0, (16.0, 9.0))
    assert height > 20
    figure = draw_figure(items, Figure(figsize=(10, 6)))
    assert len([axes for axes in figure.axes if axes.get_title("left")]) == len(items)
