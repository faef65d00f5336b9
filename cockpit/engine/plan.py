"""The plan of one step: what the due quantities need, each need once, sorted by when it can be met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from backpack.extensions.backprop_extension import BackpropExtension

from cockpit.engine.needs import (
    AlongPreviousUpdate,
    AlongUpdate,
    InForward,
    Moment,
    Observation,
    OfUpdate,
)
from cockpit.engine.step import Step
from cockpit.errors import InvalidArgument, InvalidType
from cockpit.gradients import BatchGradTransforms
from cockpit.transforms import Need, Transform


class Computation(Protocol):
    """What the engine knows of a quantity."""

    def needs_at(self, global_step: int, memory: Any) -> tuple[Need, ...]:
        """Return what it asks for at a step, given what it remembers."""

    def remember(self, step: Step) -> Any:
        """Return what it wants to remember from a step on."""

    def compute(self, step: Step) -> Any:
        """Return its value at a step."""


@dataclass
class Plan:
    """What has to be done at one step.

    Args:
        due: The quantities that begin at this step, by name.
        needs_of: What each of them needs at this step.
        continued: Needs of quantities that began at the step before, with the names of these.
        extensions: BackPACK extensions to run along.

    Attributes:
        unmet: Why needs cannot be met, for want of something that the user has not handed over.
    """

    due: Mapping[str, Computation]
    needs_of: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)
    continued: Mapping[Need, str] = field(default_factory=dict)
    extensions: Sequence[BackpropExtension] = ()
    needs: dict[Need, str] = field(init=False)
    functions: dict[str, Callable[[Any], Any]] = field(init=False)
    others: list[BackpropExtension] = field(init=False)
    unmet: dict[Need, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Unite the needs and the extensions."""
        self.needs = dict(self.continued)
        for name, needs in self.needs_of.items():
            for need in needs:
                self.needs.setdefault(need, name)
        self.functions, self.others = merged(self.extensions)

    def observations(self, moment: Moment) -> list[Observation]:
        """Return what has to be observed at a moment."""
        return [n for n in self.needs if isinstance(n, Observation) and n.moment == moment]

    @cached_property
    def in_forward(self) -> list[InForward]:
        """Functions of the outputs of modules."""
        return [need for need in self.needs if isinstance(need, InForward)]

    @cached_property
    def transforms(self) -> list[Transform]:
        """Transforms of the individual gradients."""
        return [need for need in self.needs if isinstance(need, Transform)]

    @cached_property
    def along_previous(self) -> list[AlongPreviousUpdate]:
        """Products of the individual gradients with the update that led here."""
        return [need for need in self.needs if isinstance(need, AlongPreviousUpdate)]

    @cached_property
    def along_update(self) -> list[AlongUpdate]:
        """Products of the individual gradients with the update that follows."""
        return [need for need in self.needs if isinstance(need, AlongUpdate)]

    @cached_property
    def of_update(self) -> list[OfUpdate]:
        """Functions of the update that follows."""
        return [need for need in self.needs if isinstance(need, OfUpdate)]

    @property
    def wants_forward(self) -> bool:
        """Whether it has to be known what the model's layers did in the forward pass."""
        return bool(self.functions or self.others) or any(need.forward for need in self.needs)

    @property
    def wants_gradients(self) -> bool:
        """Whether individual gradients are needed."""
        return bool(self.transforms or self.along_previous or self.along_update or self.functions)

    def require(self, info: Mapping[str, Any], *, strict: bool = False) -> None:
        """Check that the user handed over what the quantities cannot do without.

        What only some quantities want is noted in `unmet`, and the others go on without it.

        Args:
            info: What was handed over, by key.
            strict: Whether to raise for all that is missing.

        Raises:
            InvalidArgument: if the loss is missing.
        """
        given = sorted(key for key, value in info.items() if value is not None)
        for need, name in self.needs.items():
            for key in need.info if isinstance(need, Observation | InForward) else ("loss",):
                if key in given:
                    continue
                reason = (
                    f"needs {key!r}, which is missing: pass it as watch(step, {key}=...) or in "
                    f"info={{{key!r}: ...}}. {HINTS.get(key, '')}Given were {given}"
                )
                if strict or key == "loss":
                    raise InvalidArgument(f"{name} {reason}.")
                self.unmet.setdefault(need, f"it {reason}")


HINTS = {
    "individual_losses": "It is the loss of every sample, a tensor [N], for example from a loss "
    "function with "
    'reduction="none"; in the training_step of Lightning and the compute_loss of a Trainer it is '
    "left on self.individual_losses. ",
    "loss": "It is the loss on which backward() is called, a tensor with one element. ",
    "closure": "It is a function without arguments that computes the same loss anew. ",
}


def merged(
    extensions: Iterable[BackpropExtension],
) -> tuple[dict[str, Callable[[Any], Any]], list[BackpropExtension]]:
    """Unite the functions of all `BatchGradTransforms`, and set the other extensions apart.

    Raises:
        InvalidType: if one is no extension of BackPACK.
        InvalidArgument: if two functions have the same name.
    """
    functions: dict[str, Callable[[Any], Any]] = {}
    others: list[BackpropExtension] = []
    for extension in extensions:
        if not isinstance(extension, BackpropExtension):
            raise InvalidType(
                "watch(step, ...) takes BackPACK extensions, such as BatchGradTransforms(...), "
                f"got {extension!r}."
            )
        if not isinstance(extension, BatchGradTransforms):
            if not any(type(extension) is type(o) and vars(extension) == vars(o) for o in others):
                others.append(extension)
            continue
        for name, function in extension.transforms.items():
            if functions.setdefault(name, function) != function:
                raise InvalidArgument(
                    f"Two different functions of BatchGradTransforms have the name {name!r}: "
                    f"{functions[name]!r} and {function!r}. Rename one of them."
                )
    return functions, others
