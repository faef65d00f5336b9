"""Measures what each part of a tracked step costs, side by side in one run."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from cockpit.arguments import read_optimizers, read_quantities
from cockpit.cockpit import Cockpit
from cockpit.engine import Next
from cockpit.engine.needs import AlongPreviousUpdate, AlongUpdate
from cockpit.errors import CockpitWarning, InvalidArgument, InvalidType
from cockpit.gradients import IndividualGradients
from cockpit.log import RunFile
from cockpit.profiling.clock import Clock, clock_of
from cockpit.profiling.figures import (
    TOGETHER,
    Figure,
    LayerCost,
    NeedCost,
    QuantityCost,
    StepCost,
    differences,
    intervals,
    ratios,
)
from cockpit.profiling.memory import Around, UnknownMemory, memory_of
from cockpit.profiling.report import Profile
from cockpit.profiling.restoring import resident, restored
from cockpit.profiling.training import LossesOf, Training
from cockpit.quantities import Quantity
from cockpit.schedules import Schedule, at, linear
from cockpit.transforms import Need, Transform

LEARNING_RATE = 1e-3
"""Of the plain SGD that stands in for the user's optimizer."""

OWN = ("log", "resume", "trackers", "strict", "audit")
"""Arguments of `Cockpit` that a profile decides by itself."""

PLAIN, ATTACHED, FETCHED, TRACKED, OBSERVED = "plain", "attached", "fetched", "tracked", "observed"

Label = tuple[str, str]
"""A need, and the parameter that it is met for, if it is met for each."""


def profile(
    model: nn.Module,
    losses: LossesOf,
    quantities: str | Iterable[Quantity] = "economy",
    *,
    optimizer: Any = None,
    repeats: int = 5,
    overhead: float = 0.05,
    memory: bool = True,
    info: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Profile:
    r"""Measure what tracking costs: time and memory of a step, by quantity, by need and by layer.

    ::

        x, y = next(iter(loader))

        def losses():
            return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

        print(cockpit.profile(model, losses, "economy", optimizer=opt))

    The forward pass is handed over as a function without arguments, since that is what loops have in
    common, whatever their models take and return, and however they are optimised: everything
    around it (gradients to zero, backward pass, update, cockpit) is done here.

    Compared are the plain step; a step with a cockpit at which nothing is due; one whose individual
    gradients are fetched but not used; the tracked step; and for each quantity the step at which it
    is tracked alone, and the step at which it alone is left out. They take turns, `repeats` times, and
    differences are taken round by round, so that the moods of the machine meet all alike. Every turn
    begins with the present state and takes two steps on the same batch, of which the second one is
    timed: what a cockpit does only once is not counted, and neither is the audit, one more backward
    pass at the tracked steps 1, 2, 4, 8, ... On CUDA and XPU events in the stream give the times, so
    that nobody waits within a turn.

    Afterwards everything is as it was, to the last bit and after an exception as well: parameters,
    gradients, buffers, modes, the optimizer, hooks and random states. Only what `losses` draws from
    an iterator is gone; give it a fixed batch. No other cockpit should be attached to the model. A graph
    that was made before cannot be backpropagated afterwards, since PyTorch does not know that the weights
    that it needs are the same again.

    Args:
        model: The model, on its device and in its mode.
        losses: Runs the model on a batch. It returns the losses of the samples, `[N]`, whose mean is
            backpropagated; or the loss, a tensor with one element; or ``(loss, losses)``, where the
            loss is something else than that mean.
        quantities: What to track, as in `Cockpit`. Their schedules are ignored: all are due at every
            step.
        optimizer: The optimizer, or a list of them. Without it, SGD with a small learning rate
            stands in, so that there are updates to look at.
        repeats: How often every kind of step is timed.
        overhead: Share of the training time for which the intervals are proposed.
        memory: Whether to measure peaks, once for each kind of step. On the CPU that takes PyTorch's
            profiler, and as long as several repeats.
        info: What else the quantities need of a step, as in ``watch(step, info=...)``.
        progress: Whether to show a progress bar; None where the standard error is a terminal.
        settings: Further arguments of `Cockpit`, such as `loss_function` and `batch_dim`.

    Returns:
        The figures; printed, they are tables.

    Raises:
        InvalidType: if an argument is of the wrong kind.
        InvalidArgument: if one has a value that cannot be used.
        Unsupported: if an optimizer holds what could not be put back.
    """
    if not isinstance(model, nn.Module) or isinstance(model, nn.parallel.DistributedDataParallel):
        raise InvalidType(
            f"profile takes a torch.nn.Module in one process, got {type(model).__name__}. Give it the "
            "model itself; of DistributedDataParallel that is ddp_model.module."
        )
    if not callable(losses):
        raise InvalidType(
            "losses must be a function without arguments that runs the model on a batch and returns the "
            f"losses of the samples, got {type(losses).__name__}. Write "
            "lambda: loss_function(model(x), y), with reduction='none'."
        )
    _check_numbers(repeats, overhead)
    if info is not None and not isinstance(info, Mapping):
        raise InvalidType(
            f"info must be a dict of what the quantities need of a step, as in watch(step, info=...), got "
            f"{type(info).__name__}: {info!r}."
        )
    if own := settings.keys() & set(OWN):
        raise InvalidArgument(
            f"profile decides on {', '.join(sorted(own))} by itself: it writes no run, and leaves the "
            "audit out."
        )
    every_step = _at_every_step(read_quantities(quantities))
    trained = _trained(model)
    optimizers = read_optimizers(optimizer) or [torch.optim.SGD(trained, lr=LEARNING_RATE)]
    measuring = _Measuring(
        Training(model, losses, optimizers, info or {}), optimizers, settings, memory
    )
    return measuring.profile(every_step, repeats, overhead, progress)


def _check_numbers(repeats: Any, overhead: Any) -> None:
    if isinstance(repeats, bool) or not isinstance(repeats, int):
        raise InvalidType(f"repeats must be an integer, got {type(repeats).__name__}: {repeats!r}.")
    if repeats < 1:
        raise InvalidArgument(f"repeats must be at least 1, got {repeats!r}.")
    if isinstance(overhead, bool) or not isinstance(overhead, int | float):
        raise InvalidType(
            f"overhead is a share of the training time, a number such as 0.05 for 5 %, got "
            f"{type(overhead).__name__}: {overhead!r}."
        )
    if not 0 < overhead < 1:
        raise InvalidArgument(
            f"overhead is a share of the training time, such as 0.05, got {overhead!r}."
        )


def _at_every_step(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    if not quantities:
        raise InvalidArgument("profile got no quantities, so there is nothing to measure.")
    found: dict[str, Quantity] = {}
    for name, quantity in quantities.items():
        every_step = _scheduled(quantity, linear(1))
        if every_step not in found.values():  # they differed in their schedules only
            found[name] = every_step
    return found


def _scheduled(quantity: Quantity, schedule: Schedule) -> Quantity:
    """Return a quantity with another schedule, which prints nothing."""
    # Not dataclasses.replace, which would call an __init__ that may be somebody's own.
    other = copy.copy(quantity)
    object.__setattr__(other, "track_schedule", schedule)
    object.__setattr__(other, "verbose", False)
    return other


def _trained(model: nn.Module) -> list[nn.Parameter]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InvalidArgument(
            f"{type(model).__name__} has no parameter that is trained, so there is nothing to track."
        )
    return trained


@dataclass(frozen=True)
class _Untouched(Transform):
    """Nothing of the individual gradients: they are fetched, and dropped."""

    def __call__(self, gradients: IndividualGradients) -> int:
        return 0


@dataclass(frozen=True)
class _Fetched(Quantity):
    """Has the individual gradients fetched, and no more."""

    untouched = _Untouched()

    def compute(self, step: Any) -> float:
        return 0.0


class _Measuring:
    """Makes turns of two steps, and measures them."""

    def __init__(
        self, training: Training, optimizers: list[Any], settings: Mapping[str, Any], memory: bool
    ) -> None:
        self._training, self._optimizers, self._settings = training, optimizers, settings
        self._model = training.model
        device = next(self._model.parameters()).device
        self._device, self._clock = device, clock_of(device)
        self._memory = memory_of(device) if memory else UnknownMemory()
        self._seconds: dict[str, list[float]] = {}
        self._peaks: dict[str, int | None] = {}
        self._met: dict[Label, list[float]] = {}
        self._met_peaks: Mapping[Any, int] = {}
        self._carried: dict[Need, Any] = {}

    def profile(
        self, quantities: dict[str, Quantity], repeats: int, overhead: float, progress: bool | None
    ) -> Profile:
        """Measure everything."""
        variants = _variants(quantities)
        turns = len(variants) * (1 + repeats)
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            # A new cockpit is made for every turn; what each would warn of stands in the notes.
            warnings.simplefilter("ignore", CockpitWarning)
            advance = stack.enter_context(_progress_bar(turns, progress))
            with restored(self._model, self._optimizers):
                batch_size = self._training.batch_size()
            held = resident(self._model, self._optimizers)
            notes = self._first_round(variants, advance)
            for repeat in range(repeats):
                # Back and forth, so that a machine that grows slower favours nobody.
                for name in list(variants)[:: -1 if repeat % 2 else 1]:
                    self._timed_turn(name, variants[name])
                    advance()
        return Profile(
            model=type(self._model).__name__,
            batch_size=batch_size,
            device=str(self._device),
            threads=torch.get_num_threads(),
            repeats=repeats,
            overhead=overhead,
            steps={
                name: self._step(name, held)
                for name in (PLAIN, ATTACHED, FETCHED, TRACKED)
                if name in variants
            },
            quantities=self._of_quantities(quantities, overhead),
            needs=self._of_needs(quantities),
            layers=self._of_layers(),
            notes=notes,
        )

    # -- turns ------------------------------------------------------------------------------------

    def _first_round(
        self, variants: Mapping[str, list[Quantity] | None], advance: Callable[[], None]
    ) -> tuple[str, ...]:
        """Look at the memory, which also warms everything up; return what the tracked step notes."""
        notes: list[str] = []
        for name, tracked in variants.items():
            with restored(self._model, self._optimizers):
                if name == OBSERVED:
                    self._met_peaks = self._memory.peaks(
                        partial(self._observed_turn, tracked or [])
                    )
                else:
                    heard = notes.extend if name == TRACKED else None
                    work = partial(self._turn, tracked, heard=heard)
                    self._peaks[name] = self._memory.peak(work)
            advance()
        return tuple(dict.fromkeys(notes))

    def _timed_turn(self, name: str, tracked: list[Quantity] | None) -> None:
        clock = self._clock
        with restored(self._model, self._optimizers):
            if name == OBSERVED:
                watch = _StopWatch(clock)
                self._observed_turn(tracked or [], watch.around)
                for label, seconds in watch.read().items():
                    self._met.setdefault(label, []).append(seconds)
            else:
                marks: list[Any] = []
                clock.wait()
                self._turn(tracked, lambda: marks.append(clock.mark()))
                clock.wait()
                self._seconds.setdefault(name, []).append(clock.seconds(*marks))

    def _observed_turn(self, tracked: list[Quantity], around: Around) -> None:
        """Take two steps, and put `around` around what meets needs in the second one."""

        def observe(need: Need, parameter: str, function: Callable[[], Any]) -> Any:
            if not parameter and _leaves_as_it_is(need):
                return function()
            with around((type(need).__name__, parameter)):
                return function()

        with self._cockpit(tracked) as watch:
            self._training.step(watch, 0)
            watch._engine.observer = observe
            self._training.step(watch, 1)

    def _turn(
        self,
        tracked: list[Quantity] | None,
        mark: Callable[[], Any] = lambda: None,
        heard: Callable[[list[str]], None] | None = None,
    ) -> None:
        """Take two steps, with marks before and after the second one."""
        with ExitStack() as stack:
            watch = None if tracked is None else stack.enter_context(self._cockpit(tracked))
            self._training.step(watch, 0)
            mark()
            self._training.step(watch, 1)
            mark()
            if watch is not None and heard is not None:
                heard(_events(watch))

    @contextmanager
    def _cockpit(self, quantities: list[Quantity]) -> Iterator[Cockpit]:
        """Yield a new cockpit; searches for eigenvalues go on from what earlier ones have found."""
        with Cockpit(
            self._model, quantities, optimizer=self._optimizers, audit=False, **self._settings
        ) as watch:
            if (
                self._seconds
            ):  # the first round looks at the memory, which these would be missing from
                watch._engine._carried.update(self._carried)
            yield watch
            self._carried |= watch._engine._carried

    # -- what they have shown ---------------------------------------------------------------------

    def _step(self, name: str, held: int) -> StepCost:
        seconds, plain, peak = self._seconds[name], self._seconds[PLAIN], self._peaks[name]
        return StepCost(
            Figure.of(seconds), ratios(seconds, plain), None if peak is None else held + peak
        )

    def _of_quantities(
        self, quantities: Iterable[str], overhead: float
    ) -> tuple[QuantityCost, ...]:
        seconds, peaks = self._seconds, self._peaks
        alone = {n: differences(seconds[_alone(n)], seconds[PLAIN]) for n in quantities}
        every = intervals(self._shares(alone), overhead)
        found = [
            QuantityCost(
                name,
                alone=cost,
                saved=differences(seconds[TRACKED], seconds[_without(name)]),
                alone_peak=_difference(peaks[_alone(name)], peaks[PLAIN]),
                saved_peak=_difference(peaks[TRACKED], peaks[_without(name)]),
                every=every[name],
            )
            for name, cost in alone.items()
        ]
        return tuple(sorted(found, key=lambda cost: -cost.alone.median))

    def _shares(self, alone: Mapping[str, Figure]) -> dict[str, float]:
        """Return what each quantity costs in plain steps, with what they share shared out in proportion."""
        costs = {name: max(0.0, cost.median) for name, cost in alone.items()}
        together = differences(self._seconds[TRACKED], self._seconds[PLAIN]).median
        plain, total = Figure.of(self._seconds[PLAIN]).median, sum(costs.values())
        shared = min(1.0, max(0.0, together) / total) if total else 1.0
        return {name: shared * cost / plain for name, cost in costs.items()}

    def _of_layers(self) -> tuple[LayerCost, ...]:
        of_each = {need for need, name in self._met if name}
        found = [
            LayerCost(name or TOGETHER, need, Figure.of(seconds), self._met_peaks.get((need, name)))
            for (need, name), seconds in self._met.items()
            if need in of_each
        ]
        return tuple(sorted(found, key=lambda cost: -cost.seconds.median))

    def _of_needs(self, quantities: Mapping[str, Quantity]) -> tuple[NeedCost, ...]:
        users: dict[str, list[str]] = {}
        for name, quantity in quantities.items():
            for need in dict.fromkeys(type(need).__name__ for need in _needs(quantity)):
                users.setdefault(need, []).append(name)
        rounds: dict[str, list[float]] = {}
        peaks: dict[str, int] = {}
        for (need, parameter), seconds in self._met.items():
            sums = rounds.get(need, [0.0] * len(seconds))
            rounds[need] = [a + b for a, b in zip(sums, seconds, strict=True)]
            peak = self._met_peaks.get((need, parameter))
            if peak is not None:
                peaks[need] = max(peak, peaks.get(need, 0))
        found = [
            NeedCost(need, Figure.of(seconds), peaks.get(need), tuple(users.get(need, ())))
            for need, seconds in rounds.items()
        ]
        return tuple(sorted(found, key=lambda cost: -cost.seconds.median))


def _variants(quantities: dict[str, Quantity]) -> dict[str, list[Quantity] | None]:
    """Return the kinds of steps: what is tracked in each; None for no cockpit."""
    everything = list(quantities.values())
    variants: dict[str, list[Quantity] | None] = {PLAIN: None}
    variants[ATTACHED] = [_scheduled(quantity, at([])) for quantity in everything]
    if any(isinstance(n, OF_GRADIENTS) for quantity in everything for n in _needs(quantity)):
        variants[FETCHED] = [_Fetched()]
    variants[TRACKED] = variants[OBSERVED] = everything
    for name, quantity in quantities.items():
        variants[_alone(name)] = [quantity]
        variants[_without(name)] = [other for other in everything if other is not quantity]
    return variants


OF_GRADIENTS = (Transform, AlongUpdate, AlongPreviousUpdate)


def _needs(quantity: Quantity) -> list[Need]:
    """Return what a quantity needs of a step, or of the one that follows."""
    needs = quantity.needs_at(0, None)
    return [need.need if isinstance(need, Next) else need for need in needs]


def _leaves_as_it_is(need: Need) -> bool:
    """Whether nothing is done for all parameters together when each of them has been looked at."""
    return isinstance(need, Transform) and type(need).finish is Transform.finish


def _alone(name: str) -> str:
    return f"{name} alone"


def _without(name: str) -> str:
    return f"without {name}"


def _difference(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def _events(watch: Cockpit) -> list[str]:
    """Return what the run file of a cockpit notes of what is not as one would expect."""
    watch._writer.flush()
    with RunFile(watch.path) as file:
        return [
            f"{event.subject}: {event.message}"
            for event in file.events()
            if event.kind in ("not-checked", "not-tracked", "mismatch", "doubt")
        ]


class _StopWatch:
    """Takes the times of pieces of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: list[tuple[Any, Any, Any]] = []

    @contextmanager
    def around(self, label: Any) -> Iterator[None]:
        """Take the time of what happens within, also where that fails."""
        start = self._clock.mark()
        try:
            yield
        finally:
            self._marks.append((label, start, self._clock.mark()))

    def read(self) -> dict[Label, float]:
        """Return the seconds by label, once everything is done."""
        self._clock.wait()
        total: dict[Label, float] = {}
        for label, start, end in self._marks:
            total[label] = total.get(label, 0.0) + self._clock.seconds(start, end)
        return total


@contextmanager
def _progress_bar(turns: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """Show how far it has come; yields what to call after each turn."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("profiling", total=turns)
        yield lambda: bar.advance(task)
