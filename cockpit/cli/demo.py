"""``cockpit demo``: train a small network and watch it."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.cli.command import Command, at_least
from cockpit.cli.output import print_table, say, standard_output
from cockpit.cli.pictures import draw
from cockpit.cli.serve import open_page

if TYPE_CHECKING:
    from rich.console import Console

    from cockpit.demo import Progress

__all__ = ["COMMAND"]

QUICK_STEPS = 24
PRESETS = ("economy", "business", "full", "health")  # those of cockpit.presets, which loads torch
PLAIN_LINES = 10

FAST = "cockpit demo --lr 0.5 --out runs/fast shows what too large steps look like."
USUAL = "cockpit demo --out runs/usual trains at the usual rate, to be compared with this one."
"""What to try next, after a training at the usual learning rate and at another one."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where demo.db and demo.png go (default: runs)",
    )
    parser.add_argument("--epochs", type=at_least(1), help="how often every image is seen")
    parser.add_argument("--lr", type=at_least(0.0), help="learning rate at the start")
    parser.add_argument("--batch-size", type=at_least(2), help="images per step")
    parser.add_argument("--preset", choices=PRESETS, help="what is tracked")
    parser.add_argument(
        "--seed", type=at_least(0), help="of the weights and the order of the images"
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="open the live page on the training, and keep it until Ctrl-C",
    )
    parser.add_argument("--quick", action="store_true", help=f"stop after {QUICK_STEPS} steps")


def _run(chosen: argparse.Namespace) -> None:
    if not chosen.serve:
        _demonstrate(chosen)
        return
    from cockpit import dashboard

    chosen.out.mkdir(parents=True, exist_ok=True)
    with dashboard.start(chosen.out) as page:
        say(standard_output(), f"Page  {page.url}#run=demo.db")
        open_page(page, "#run=demo.db")
        _demonstrate(chosen)
        say(standard_output(), "", f"The page stays on {page.url} until Ctrl-C.")
        with suppress(KeyboardInterrupt):
            page.wait()


def _demonstrate(chosen: argparse.Namespace) -> None:
    from cockpit.demo import train
    from cockpit.run import open_run

    console = standard_output()
    path = chosen.out / "demo.db"
    names = ("epochs", "lr", "batch_size", "preset", "seed")
    options = {name: value for name in names if (value := getattr(chosen, name)) is not None}
    with _Reporter(console) as report:
        accuracy = train(
            path, max_steps=QUICK_STEPS if chosen.quick else None, on_step=report, **options
        )
    run = open_run(path)
    picture = draw(run, path.with_suffix(".png"), title="A small CNN on Fashion-MNIST")
    print_table(console, run)
    say(
        console,
        f"Test accuracy  {100 * accuracy:.1f} %",
        f"Pictures       {picture}",
        f"Run file       {path}",
        "",
        f"Next: look at the pictures; cockpit show {path} prints this table again;",
        f"      {FAST if chosen.lr is None else USUAL}",
    )


class _Reporter:
    """Shows how a training goes on: a bar in a terminal, a few plain lines anywhere else."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = console
        self._bar = Bar(
            TextColumn("Training"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __call__(self, progress: Progress) -> None:
        text = f"loss {progress.loss:.3f}"
        if progress.accuracy is not None:
            text += f"  accuracy {100 * progress.accuracy:.1f} %"
        self._bar.update(
            self._task, completed=progress.done, total=progress.total, description=text
        )
        if self._bar.disable and progress.done % max(1, progress.total // PLAIN_LINES) == 0:
            say(self._console, f"step {progress.done}/{progress.total}  {text}")

    def __enter__(self) -> _Reporter:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


COMMAND = Command(
    "demo",
    "train a small network on real images and watch it",
    "cockpit demo --lr 0.5 --out runs/too-fast",
    _arguments,
    _run,
)
