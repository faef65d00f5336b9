"""Writes the gallery, ``docs/gallery.md`` and ``docs/gallery/``, from two real trainings.

Run it from the root of the repository with ``make gallery``. A small CNN is trained with SGD and
momentum, and a small transformer with AdamW; every quantity is tracked in one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit import Cockpit, open_run, quantities
from cockpit.demo import SmallCNN, fashion_mnist
from cockpit.instruments import GROUPS, INSTRUMENTS, Panel, panels
from cockpit.plotter import CockpitPlotter
from cockpit.plotting import draw_figure
from cockpit.quantities import Quantity
from cockpit.schedules import linear

DOCS = Path(__file__).parent
PICTURES = DOCS / "gallery"

STEPS, BATCH_SIZE, EVERY = 300, 64, 3
SIZE, DPI = (4.0, 3.0), 120

RARE = {"HessianSpectrum": 25, "CriticalSharpness": 5, "PreconditionedSharpness": 5}
"""Steps between two values of quantities that take long."""

OF_ADAM = {"AdamStaleness", "PreconditionedSharpness", "LostUpdates", "AttentionStats"}
"""Quantities of the second training: these need Adam, or attention."""

INTRODUCTION = """\
# Gallery

Every picture of the cockpit with its name, the quantities that it needs, and how to read it. They are
from two real trainings on Fashion-MNIST: a small CNN with SGD and momentum, and a small transformer with
AdamW, {steps} steps each. `make gallery` draws them anew. A number with `~` beside a title is the median
of the last tenth of the steps, of ten at least, as in `cockpit show`.

`run.plot("alpha")` draws one of them by its name, `run.plot()` all that a run has data for:

![All pictures of a run](gallery/overview.png)
"""


class Transformer(nn.Module):
    """One encoder layer over the 49 patches of an image `[N, 1, 28, 28]`, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, kernel_size=4, stride=4)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, `[N, 10]`."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)  # [N, 49, 32]
        return self.head(self.encoder(tokens).mean(1))


@dataclass(frozen=True)
class Training:
    """What is trained, how, and what is tracked of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    tracked: list[Quantity]


def kinds() -> dict[str, type[Quantity]]:
    """Return all public quantities by name."""
    found = {name: getattr(quantities, name) for name in quantities.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, Quantity) and kind is not Quantity
    }


def made(name: str) -> Quantity:
    """Return a quantity with a schedule that suits what it costs."""
    schedule = linear(1 if name == "Alpha" else RARE.get(name, EVERY))
    settings = {"keep_individual": True} if name == "GradHist2d" else {}
    return kinds()[name](track_schedule=schedule, **settings)


def trainings() -> Iterator[tuple[str, Training]]:
    """Yield both trainings with their names."""
    torch.manual_seed(0)
    cnn, transformer = SmallCNN(), Transformer()
    sgd = torch.optim.SGD(cnn.parameters(), lr=0.02, momentum=0.9)
    adam = torch.optim.AdamW(transformer.parameters(), lr=2e-3)
    yield "cnn", Training(cnn, sgd, [made(n) for n in kinds() if n not in OF_ADAM])
    yield (
        "transformer",
        Training(transformer, adam, [made(n) for n in sorted(OF_ADAM | {"ActivationStats"})]),
    )


def train(path: Path, training: Training) -> None:
    """Train, and track into a run file."""
    data, (model, optimizer) = fashion_mnist(), (training.model, training.optimizer)
    module = nn.CrossEntropyLoss()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, STEPS, optimizer.defaults["lr"] / 10
    )
    with Cockpit(model, training.tracked, optimizer=optimizer, log=path) as watch:
        for step in range(STEPS):
            batch = torch.randint(len(data.x_train), (BATCH_SIZE,))
            x, y = data.x_train[batch], data.y_train[batch]
            with sdpa_kernel(SDPBackend.MATH):
                optimizer.zero_grad()
                outputs = model(x)
                losses = F.cross_entropy(outputs, y, reduction="none")  # [N]

                def closure(samples: slice = slice(None), x: Tensor = x, y: Tensor = y) -> Tensor:
                    return module(model(x[samples]), y[samples])

                loss = losses.mean()
                with watch(step, loss=loss, individual_losses=losses, closure=closure):
                    loss.backward()
                optimizer.step()
            watch.log(step, learning_rate=schedule.get_last_lr()[0], batch_size=BATCH_SIZE)
            schedule.step()
            if step % 20 == 0 or step == STEPS - 1:
                evaluate(watch, step, model, data.x_test, data.y_test, (outputs, y))


@torch.no_grad()
def evaluate(
    watch: Cockpit, step: int, model: nn.Module, x: Tensor, y: Tensor, seen: tuple[Tensor, Tensor]
) -> None:
    """Log loss and accuracy on the test images, and the accuracy on the mini-batch."""
    outputs = model(x)
    watch.log(
        step,
        test_loss=F.cross_entropy(outputs, y).item(),
        test_accuracy=(outputs.argmax(1) == y).float().mean().item(),
        train_accuracy=(seen[0].argmax(1) == seen[1]).float().mean().item(),
    )


def save(figure: Figure, path: Path, dpi: float) -> None:
    """Save a figure, with 256 colours where they will do, which makes the file small."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
    if len(figure.axes) < 5:  # more colours than that are on a figure with many pictures only
        image = image.quantize(256, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def pictures(folder: Path) -> dict[str, Panel]:
    """Train, draw the overview, and return the panels by name, from the training that shows them best."""
    found: dict[str, Panel] = {}
    for name, training in trainings():
        path = folder / f"{name}.db"
        if not path.exists():
            train(path, training)
        run = open_run(path)
        for panel in panels(run):
            found.setdefault(panel.name, panel)
        if name == "cnn":
            title = "A small CNN on Fashion-MNIST"
            figure = CockpitPlotter().plot(run, show_plot=False, plot_title=title)
            save(figure, PICTURES / "overview.png", 90)
    return found


def write(found: dict[str, Panel]) -> None:
    """Draw every panel, and write the page."""
    shown = [found[item.name] for item in INSTRUMENTS if item.name in found]
    missing = [item.name for item in INSTRUMENTS if item.name not in found]
    if missing:
        sys.exit(f"no picture of {', '.join(missing)}")
    lines = [INTRODUCTION.format(steps=STEPS)]
    for group, items in groupby(
        sorted(shown, key=lambda p: GROUPS.index(p.group)), lambda p: p.group
    ):
        lines.append(f"## {group.capitalize()}\n")
        for panel in items:
            save(draw_figure([panel], Figure(figsize=SIZE)), PICTURES / f"{panel.name}.png", DPI)
            needs = ", ".join(f"`{quantity}`" for quantity in panel.quantities)
            lines.append(
                f"### {panel.title}\n\n`{panel.name}` · from {needs}\n\n{panel.how_to_read}\n\n"
                f"![{panel.title}](gallery/{panel.name}.png)\n"
            )
    (DOCS / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    if len(sys.argv) > 1:  # a folder to keep the runs in, to draw them again without training
        write(pictures(Path(sys.argv[1])))
    else:
        with TemporaryDirectory() as temporary:
            write(pictures(Path(temporary)))
