"""Writes what the engine reports to the run file, and warns of what a user has to know."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from cockpit.arguments import named_parameters
from cockpit.coverage import Coverage
from cockpit.engine import Missing, Result
from cockpit.errors import CockpitError, warn
from cockpit.forwarding import ForwardingWriter
from cockpit.gradients import couples_samples
from cockpit.log import Row, RunWriter, SilentWriter
from cockpit.quantities import Outcome, Quantity
from cockpit.rows import rows_of


class RunReports:
    """Takes the results of one run.

    What is wrong is noted in the run file every time, and warned of once.

    Args:
        writer: Of the run file.
        quantities: The tracked quantities by name.
        strict: Collect what is wrong, to be raised, instead of warning of it.
    """

    def __init__(
        self,
        writer: RunWriter | ForwardingWriter | SilentWriter,
        quantities: Mapping[str, Quantity],
        strict: bool,
    ) -> None:
        self._writer, self._quantities, self._strict = writer, quantities, strict
        self._speaks = not isinstance(writer, SilentWriter)  # one of several processes is enough
        self._recorded = -1
        self._warned: set[tuple[str, str]] = set()
        self._failures: list[str] = []
        self._coupling_noted = False
        self._bases: dict[str, str] = {}  # what each quantity was computed from last

    def results(self, results: list[Result]) -> None:
        """Write the results of a moment, of one step or two."""
        results, written = _written(results)
        of_steps: dict[int, list[Row]] = {}
        for result, rows in written:
            of_steps.setdefault(result.global_step, []).extend(rows)
        for step in sorted(of_steps):
            self._writer.record(step, of_steps[step], tracked=step > self._recorded)
            self._recorded = max(self._recorded, step)
            self._print(step, of_steps[step])
        for result in results:
            if isinstance(result.value, Missing):
                self._missing(result.global_step, result.quantity, result.value)
            elif isinstance(result.value, Outcome):
                self._basis(result.global_step, result.quantity, result.value.basis)

    def tracked(self, step: int) -> None:
        """Write that a step was tracked, if it has no results yet."""
        if step > self._recorded:
            self._recorded = step
            self._writer.record(step, [])

    def _print(self, step: int, rows: list[Row]) -> None:
        for row in rows:
            quantity = self._quantities.get(row.quantity)
            if self._speaks and quantity is not None and quantity.verbose and not row.detail:
                part = "/".join(filter(None, (row.key, row.parameter)))
                label = f"{row.quantity} {part}" if part else row.quantity
                sys.stdout.write(f"[Step {step}] {label}: {row.value}\n")

    def state_dict(self) -> dict[str, Any]:
        """Return what has been reported and is not to be repeated, as plain data."""
        return {
            "recorded": self._recorded,
            "warned": sorted(map(list, self._warned)),
            "coupling_noted": self._coupling_noted,
            "bases": dict(self._bases),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what has been reported."""
        self._recorded = state["recorded"]
        self._warned |= {(subject, reason) for subject, reason in state["warned"]}
        self._coupling_noted = state["coupling_noted"]
        self._bases = dict(state["bases"])

    # -- what is to be known of them --------------------------------------------------------------

    def _missing(self, step: int, name: str, missing: Missing) -> None:
        message = f"Step {step}: {name} was not checked: {missing.reason}."
        self._note(step, "not-checked", name, missing.reason, None if missing.usual else message)

    def _basis(self, step: int, name: str, basis: str) -> None:
        """Note what a quantity is computed from, where that has changed."""
        if basis != self._bases.get(name, ""):
            self._bases[name] = basis
            self._note(step, "basis", name, basis, None)

    def gaps(self, coverage: Coverage) -> None:
        """Note the parameters of which it is known beforehand that they cannot be tracked."""
        for row in coverage.gaps:
            reason = f"{row.gap}; {row.way_out}"
            message = f"The individual gradients of {row.name} will not be tracked: {reason}."
            self._note(None, "not-tracked", row.name, reason, message)

    def untracked(self, global_step: int, parameter: str, reason: str) -> None:
        """Note a parameter whose individual gradients cannot be had."""
        message = (
            f"Step {global_step}: the individual gradients of {parameter} are not tracked: {reason}. "
            "Quantities made from individual gradients are those of the other parameters."
        )
        self._note(global_step, "not-tracked", parameter, reason, message)

    def mismatch(self, global_step: int, parameter: str, layer: str, apart: float) -> None:
        """Note a parameter whose individual gradients do not add up to its gradient."""
        owner = parameter.rpartition(".")[0]
        reason = (
            f"those that the {layer} layer{owner and f' {owner}'} delivered do not add up to its "
            f"gradient (they miss it by {apart:.2g} of its norm), so a part of that does not come "
            "through the output of the layer, such as a penalty on the weights in the loss, or a "
            "use of the parameter elsewhere; add the penalty to the optimizer as weight_decay, or "
            "call the layer"
        )
        message = f"Step {global_step}: the individual gradients of {parameter}: {reason}."
        self._note(global_step, "mismatch", parameter, reason, message)

    def doubt(self, global_step: int, times: float) -> None:
        """Note a loss that is neither a mean nor a sum of the samples' losses."""
        reason = (
            f"it is {times:.3g} times the mean of the individual losses, neither a mean nor a sum "
            "of them, so the scale of the individual gradients was guessed; say what it is with "
            "Cockpit(..., reduction='mean' or reduction='sum')"
        )
        self._note(global_step, "doubt", "loss", reason, f"Step {global_step}: the loss: {reason}.")

    def drawn(self, global_step: int, count: int, size: int) -> None:
        """Note that individual gradients are those of some of the samples."""
        reason = (
            f"those of {count} of {size} samples, drawn without replacement at every step; sums over the "
            "samples are estimated from them, and the mini-batch gradient is that of all"
        )
        self._note(global_step, "basis", "individual gradients", reason, None)

    def layout(self, global_step: int, subject: str, reason: str) -> None:
        """Note what is not known for sure of where the samples lie."""
        self._note(global_step, "layout", subject, reason, None)

    def coupling(self, step: int, model: nn.Module | None) -> None:
        """Note once which modules make the loss of one sample depend on the others."""
        if model is None or self._coupling_noted:
            return
        self._coupling_noted = True
        reason = (
            "it normalises with the statistics of the batch, so the loss of a sample depends on all "
            "of them; its individual gradient is what flows through its slice of the outputs"
        )
        for name, module in model.named_modules():
            if couples_samples(module):
                self._note(step, "batch-coupled", name, reason, None)

    def changed(
        self, step: int, model: nn.Module | None, parameters: Mapping[str, nn.Parameter]
    ) -> None:
        """Note what of the model's parameters is not as it was when the cockpit was made."""
        if model is None:
            return
        now = named_parameters(model)
        for name, parameter in now.items():
            if parameter.requires_grad and parameters.get(name) is not parameter:
                what = "was replaced" if name in parameters else "began to be trained"
                self._stale(step, name, f"it {what} after the cockpit was made; make a new one")
        for name in parameters.keys() - now.keys():
            self._stale(
                step, name, "it has left the model since the cockpit was made; make a new one"
            )

    def _stale(self, step: int, name: str, reason: str) -> None:
        if (name, reason) not in self._warned:
            message = f"Step {step}: {name} is not tracked as it is now: {reason}."
            self._note(step, "not-tracked", name, reason, message)

    def incomplete(self, step: int, number: int, passes: int) -> None:
        """Note a step whose batch did not come as a whole."""
        reason = f"only {number} of {passes} micro-batches came"
        message = f"Step {step} was not checked: {reason}."
        self._note(step, "not-checked", "micro_batch", reason, message)

    def _note(
        self, step: int | None, kind: str, subject: str, reason: str, message: str | None
    ) -> None:
        self._writer.note(step, kind, subject, reason)
        if message is None:
            return
        self._failures.append(message)
        if (subject, reason) not in self._warned:
            self._warned.add((subject, reason))
            if isinstance(self._writer, ForwardingWriter):
                self._writer.alert(step, kind, subject, reason)
            if self._speaks and not self._strict:
                warn(message)

    def raise_failures(self) -> None:
        """Raise what went wrong since the last time, where that was asked for.

        Raises:
            CockpitError: with all that went wrong.
        """
        failures, self._failures = self._failures, []
        if self._strict and failures:
            raise CockpitError("\n".join(failures))


def _written(results: list[Result]) -> tuple[list[Result], list[tuple[Result, list[Row]]]]:
    """Return the rows of the results that have a value; one that cannot be written becomes a `Missing`."""
    good = [result for result in results if not isinstance(result.value, Missing)]
    try:
        return results, list(zip(good, rows_of([(r.quantity, r.value) for r in good]), strict=True))
    except Exception as error:
        if len(results) == 1:
            result, reason = results[0], f"{type(error).__name__}: {error}"
            return [Result(result.global_step, result.quantity, Missing(reason))], []
    each = [_written([result]) for result in results]  # for the sake of the others
    return [r for one, _ in each for r in one], [row for _, rows in each for row in rows]
