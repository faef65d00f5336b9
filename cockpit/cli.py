"""The command ``cockpit``: a demonstration, and tables and pictures of runs.

What a command needs is imported when it runs: ``cockpit --help`` loads neither pandas nor
matplotlib.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit._version import __version__
from cockpit.errors import CockpitError, InvalidArgument
from cockpit.presets import PRESETS

if TYPE_CHECKING:
    from rich.console import Console

    from cockpit.demo import Progress
    from cockpit.run import Run

__all__ = ["main"]

OK, FAILURE, USER_ERROR, INTERRUPTED = 0, 1, 2, 130
QUICK_STEPS = 24
PLAIN_LINES = 10
EVENTS_SHOWN = 8
PICTURES = ("png", "pdf", "svg", "jpg")
NOT_CLOSED = "not closed: still running elsewhere, or stopped on the way"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    That is 0 for success, 1 for a failure, 2 for a mistake in what was asked for, 130 for Ctrl-C.

    Args:
        arguments: Those of the command line, unless given.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without a sign shows another one
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help(sys.stderr)
        return USER_ERROR
    try:
        chosen.command(chosen)
        sys.stdout.flush()
    except CockpitError as error:
        return _complain(error, USER_ERROR)
    except BrokenPipeError:  # whoever reads has seen enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except OSError as error:
        return _complain(error, FAILURE)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    return OK


def _complain(problem: object, code: int) -> int:
    sys.stderr.write(f"cockpit: {' '.join(str(problem).split())}\n")
    return code


# -- the arguments --------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cockpit",
        description="Look inside PyTorch training runs.",
        epilog="Example: cockpit demo",
    )
    parser.add_argument("--version", action="version", version=f"torch-cockpit {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    demo = _add(
        commands,
        "demo",
        _demo,
        "train a small network on real images and watch it",
        "cockpit demo --lr 0.5 --out runs/too-fast",
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="where demo.db and demo.png go (default: runs)",
    )
    demo.add_argument("--epochs", type=_at_least(1), help="how often every image is seen")
    demo.add_argument("--lr", type=_at_least(0.0), help="learning rate at the start")
    demo.add_argument("--batch-size", type=_at_least(2), help="images per step")
    demo.add_argument("--preset", choices=PRESETS, help="what is tracked")
    demo.add_argument(
        "--seed", type=_at_least(0), help="of the weights and the order of the images"
    )
    demo.add_argument("--quick", action="store_true", help=f"stop after {QUICK_STEPS} steps")

    show = _add(
        commands,
        "show",
        _show,
        "print what a run is, and the last value of every quantity with its meaning",
        "cockpit show runs/demo.db",
    )
    show.add_argument("run", type=Path, metavar="RUN", help="a run file")

    plot = _add(
        commands,
        "plot",
        _plot,
        "draw all pictures of a run into one file",
        "cockpit plot runs/demo.db -o demo.svg --dark",
    )
    plot.add_argument("run", type=Path, metavar="RUN", help="a run file")
    plot.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the picture: .png, .pdf, .svg, ... (default: the run's name with .png)",
    )
    plot.add_argument("--dark", action="store_true", help="light on dark")
    return parser


def _add(
    commands: Any, name: str, command: Callable[[argparse.Namespace], None], what: str, example: str
) -> argparse.ArgumentParser:
    description = f"{what[0].upper()}{what[1:]}."
    parser = commands.add_parser(
        name, help=what, description=description, epilog=f"Example: {example}"
    )
    parser.set_defaults(command=command)
    return parser


def _at_least(least: float) -> Callable[[str], float]:
    """Make a reader of numbers, whole ones if `least` is whole."""

    def read(text: str) -> float:
        kind = type(least)
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what} of at least {least}, got {text!r}")
        return value

    return read


# -- the commands ---------------------------------------------------------------------------------


def _demo(chosen: argparse.Namespace) -> None:
    from cockpit.demo import train
    from cockpit.run import open_run

    console = _console()
    path = chosen.out / "demo.db"
    names = ("epochs", "lr", "batch_size", "preset", "seed")
    options = {name: value for name in names if (value := getattr(chosen, name)) is not None}
    with _Reporter(console) as report:
        accuracy = train(
            path, max_steps=QUICK_STEPS if chosen.quick else None, on_step=report, **options
        )
    run = open_run(path)
    picture = _draw(run, path.with_suffix(".png"), title="A small CNN on Fashion-MNIST")
    _print_table(console, run)
    _say(
        console,
        f"Test accuracy  {100 * accuracy:.1f} %",
        f"Pictures       {picture}",
        f"Run file       {path}",
        "",
        f"Next: look at the pictures; cockpit show {path} prints this table again;",
        "      cockpit demo --lr 0.5 --out runs/fast shows what too large steps look like.",
    )


def _show(chosen: argparse.Namespace) -> None:
    from cockpit.run import open_run

    console = _console()
    run = open_run(chosen.run)
    _say(console, *_header(run))
    _print_table(console, run)


def _plot(chosen: argparse.Namespace) -> None:
    from cockpit.run import open_run

    run = open_run(chosen.run)
    name = run.path.name.removesuffix(".db").removesuffix(".json")
    drawn = _draw(run, chosen.output or run.path.with_name(f"{name}.png"), dark=chosen.dark)
    _say(_console(), str(drawn))


# -- what they share ------------------------------------------------------------------------------


def _draw(run: Run, picture: Path, *, title: str | None = None, dark: bool = False) -> Path:
    """Draw all pictures of a run into one file, and return its path."""
    from cockpit.plotter import CockpitPlotter

    ending = picture.suffix[1:].lower()
    if not ending:
        picture, ending = picture.with_name(f"{picture.name}.png"), "png"
    if ending not in PICTURES:
        raise InvalidArgument(
            f"cannot draw into {picture}: choose a name that ends in .{', .'.join(PICTURES)}."
        )
    CockpitPlotter(style="dark" if dark else "light").plot(
        run,
        show_plot=False,
        save_plot=True,
        savedir=picture.parent,
        savename=picture.stem,
        savefig_kwargs={"format": picture.suffix[1:]},
        plot_title=title,
    )
    return picture


def _header(run: Run) -> Iterator[str]:
    """Say in a few lines what a run is."""
    from cockpit.log import open_file

    with open_file(run.path) as file:
        sizes = [math.prod(parameter.shape) for parameter in file.parameters if parameter.dtype]
        count = len(file.parameters)
        status = file.status if file.status != "running" or file.is_live else NOT_CLOSED
    steps, settings = run.steps, run.settings
    yield f"Run        {run.path}, {status}"
    yield f"Steps      {len(steps)} tracked" + (
        f", {steps[0]} to {steps[-1]}" if len(steps) else ""
    )
    yield f"Model      {settings.get('model') or 'not known'}, {count} parameters" + (
        f" with {sum(sizes)} elements" if len(sizes) == count else ""
    )
    for optimizer in settings.get("optimizers") or ():
        yield f"Optimizer  {_options(optimizer)}"
    yield from _events(run)


def _options(optimizer: Mapping[str, Any]) -> str:
    """Return the kind of an optimizer with those of its settings that are switched on."""
    options = [
        f"{k}={v}" for k, v in optimizer.items() if k != "class" and v not in (None, False, 0)
    ]
    return " ".join([str(optimizer.get("class", "not known")), *options])


def _events(run: Run) -> Iterator[str]:
    """Count the events of a run, equal ones together."""
    events = run.events()
    is_basis = events["kind"] == "basis"
    bases = events[is_basis].groupby("subject", sort=False)["message"].last()
    yield from (f"Computed   {subject}: {basis}" for subject, basis in bases.items())
    events = events[~is_basis]
    if events.empty:
        yield "Events     none: everything that was due was checked"
        return
    counted = Counter(zip(events["kind"], events["subject"], events["message"], strict=True))
    yield f"Events     {len(events)}"
    for (kind, subject, message), count in counted.most_common(EVENTS_SHOWN):
        times = f" ({count} times)" if count > 1 else ""
        yield f"  {kind.replace('-', ' ')}: {subject}{times}: {message}"
    if len(counted) > EVENTS_SHOWN:
        yield f"  and {len(counted) - EVENTS_SHOWN} other kinds"


def _console() -> Console:
    from rich.console import Console

    return Console()


def _say(console: Console, *lines: str) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _print_table(console: Console, run: Run) -> None:
    from cockpit.summary import as_table, readings

    console.print()
    console.print(as_table(readings(run)))
    console.print()


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
            _say(self._console, f"step {progress.done}/{progress.total}  {text}")

    def __enter__(self) -> _Reporter:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
