"""Meets needs in the forward pass, module by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from cockpit.engine.needs import InForward
from cockpit.engine.step import Missing, NotChecked, PerModule
from cockpit.gradients import Call, Recorder
from cockpit.transforms import Need


class ForwardWatch:
    """Shows the calls of a model's modules to the needs that are expected to be due.

    The forward pass comes before the number of the step is known. So between two steps it is the
    step expected next whose needs are met, at once and on the outputs as they are: nothing is kept
    but what the needs return. Passes without gradients (an evaluation) are not looked at, of several
    passes of the model the last one counts, and of several micro-batches the first.

    Args:
        recorder: The one whose hooks are on the model; None where the model is not known.
        in_parts: Whether what is seen is a part of the batch, to be joined with others.

    Attributes:
        around: Makes what is put around the look at a call.
    """

    def __init__(self, recorder: Recorder | None, in_parts: bool = False) -> None:
        self._recorder, self._in_parts = recorder, in_parts
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        self._needs: tuple[InForward, ...] = ()
        self._expected = ""
        self._begin()

    def expect(self, needs: Iterable[InForward], why: str) -> None:
        """Meet these needs, and no others, in the forward pass that comes.

        Args:
            needs: The needs.
            why: Why it is these, for those who come later and find theirs unmet.
        """
        self._needs, self._expected = tuple(dict.fromkeys(needs)), why
        self._begin()
        if self._recorder is not None:
            if self._needs:
                self._recorder.watch_all_modules()
            self._recorder.witness = self._see if self._needs else None
            self._recorder.on_pass = self._begin

    def take(
        self, needs: Iterable[InForward]
    ) -> tuple[dict[Need, Any], dict[Need, dict[str, str]]]:
        """Return the values of these needs, or why there are none, and look away from now on.

        The other dictionary has, for each need, the modules that were left out and why.
        """
        needs = list(needs)
        values: dict[Need, Any] = {need: self._value(need) for need in needs}
        refused: dict[Need, dict[str, str]] = {
            need: self._refused[need] for need in needs if need in self._refused
        }
        self.drop()
        return values, refused

    def drop(self) -> None:
        """Forget what was seen, and look away from now on."""
        self._expected = "the step before it was not finished"
        if self._needs:
            self.expect((), self._expected)

    def _value(self, need: InForward) -> Any:
        if self._recorder is None:
            return Missing(
                "the outputs of modules are seen only where the cockpit is given the model, "
                "Cockpit(model, ...), and not its parameters"
            )
        if need not in self._needs:
            return Missing(
                f"the forward pass before this step was not looked at, since {self._expected}; put "
                "watch(step, ...) around every backward pass, and count the steps one by one"
            )
        if not self._calls:
            return Missing(
                "no module of the model was called with gradients since the step before; call the "
                "model that the cockpit was given, after the cockpit has been made"
            )
        return self._values[need]

    def _begin(self) -> None:
        self._calls: Counter[str] = Counter()
        self._values: dict[Need, Any] = {need: PerModule() for need in self._needs}
        self._refused: dict[Need, dict[str, str]] = {}

    def _see(self, name: str, call: Call, output: Any) -> None:
        name = name or type(call.module).__name__
        self._calls[name] += 1
        if self._calls[name] > 1:
            name = f"{name}#{self._calls[name]}"
        with self.around(), torch.no_grad():
            for need in self._needs:
                values = self._values[need]
                if isinstance(values, Missing):
                    continue
                try:
                    see = need.part if self._in_parts else need.see
                    value = see(name, call, output)
                except NotChecked as error:
                    self._refused.setdefault(need, {})[name] = str(error)
                except Exception as error:
                    self._values[need] = Missing(
                        f"{need} of {name}: {type(error).__name__}: {error}"
                    )
                else:
                    if value is not None:
                        values[name] = value
