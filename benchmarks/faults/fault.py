"""What a kind of fault is: three functions that change a training, and what should be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.faults.training import OPTIMIZERS, Setup


@dataclass(frozen=True)
class Injected:
    """Where a fault is, and since when.

    Args:
        places: Names of the modules, parameters or samples that may be named; none for a fault of the
            training as a whole.
        step: The first step that is not healthy.
    """

    places: tuple[str, ...] = ()
    step: int = 0


Change = Callable[[Setup], Injected | None]
"""Changes a training; None is a fault of the training as a whole, from its first step on."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Args:
        name: Of the kind.
        rule: Name of the doctor's rule that should be the first to be named.
        a: One variant.
        b: Another one.
        c: A third one, for all of the architectures.
        d: A fourth one, for all of them as well.
        split: The architectures of variant a, and those of variant b. Where it makes sense on one only, that
            is in both.
        also: Names of other rules that name the cause as well.
        optimizers: Those with which it makes sense.
        baselines: The rules of the baselines whose names name the kind.
    """

    name: str
    rule: str
    a: Change
    b: Change
    c: Change
    d: Change
    split: tuple[tuple[str, ...], tuple[str, ...]]
    also: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = OPTIMIZERS
    baselines: tuple[str, ...] = ()

    def change(self, variant: str) -> Change:
        """Return what a variant changes."""
        return {"a": self.a, "b": self.b, "c": self.c, "d": self.d}[variant]

    def architectures(self, variant: str) -> tuple[str, ...]:
        """Return the architectures that a variant is for."""
        first, second = self.split
        every = tuple(dict.fromkeys((*first, *second)))
        return {"a": first, "b": second, "c": every, "d": every}[variant]

    @property
    def named(self) -> tuple[str, ...]:
        """The rules that name the cause."""
        return (self.rule, *self.also)
