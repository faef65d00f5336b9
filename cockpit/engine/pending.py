"""Quantities that wait for needs that have not been met yet, of the next step or of the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cockpit.engine.checkpoint import packed, packed_values, unpacked
from cockpit.engine.distributed import Ranks
from cockpit.engine.joining import agreed
from cockpit.engine.needs import Next, Unknowable
from cockpit.engine.plan import Computation, Plan
from cockpit.engine.reports import Reports, Result
from cockpit.engine.step import NO_SAMPLES, Missing, NotChecked, Step
from cockpit.transforms import Need


@dataclass
class Entry:
    """A quantity that waits.

    Args:
        name: Its name.
        quantity: The quantity.
        needs: What it asked for.
        memory: What it remembered when its step began.
        step: That step.
    """

    name: str
    quantity: Computation
    needs: tuple[Need, ...]
    memory: Any
    step: Step

    def next_needs(self) -> list[Next]:
        """Return what it wants of the next step."""
        return [n for n in self.needs if isinstance(n, Next) and n not in self.step.values]

    def missing(self) -> Missing | None:
        """Return why it can be computed no more, whatever is yet to come; None where it may."""
        values = (self.step.values.get(need) for need in self.needs)
        return next((value for value in values if isinstance(value, Missing)), None)


class Pending:
    """Computes quantities as soon as their needs have been met, and reports their values.

    Args:
        reports: Takes the results.
        ranks: The processes that train the model together, if they are several.
    """

    def __init__(self, reports: Reports, ranks: Ranks | None) -> None:
        self._reports, self._ranks = reports, ranks
        self._entries: list[Entry] = []
        self._memories: dict[str, Any] = {}
        self._results: list[Result] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def awaits_next(self) -> bool:
        """Whether a quantity wants something of the step that comes."""
        return any(entry.next_needs() for entry in self._entries)

    def needs_of(self, name: str, quantity: Computation, global_step: int) -> tuple[Need, ...]:
        """Return what a quantity needs at a step, given what it remembers."""
        try:
            return quantity.needs_at(global_step, self._memories.get(name))
        except Exception as error:
            return (Unknowable(f"{type(error).__name__}: {error}"),)

    def wanted(self, global_step: int) -> dict[Need, str]:
        """Return what quantities of the step before want of this one; the others have waited in vain."""
        needs: dict[Need, str] = {}
        for entry in list(self._entries):
            before = entry.step.global_step
            if before == global_step - 1:
                needs |= {n.need: f"{entry.name} of step {before}" for n in entry.next_needs()}
            else:
                self._fail(entry, f"step {before + 1} did not follow, but {global_step}")
        return needs

    def begin(self, step: Step, plan: Plan) -> None:
        """Let the quantities of a step wait, and give those of the step before what they want of it."""
        for entry in self._entries:
            for need in entry.next_needs():
                missing = Missing("the next step did not deliver what it needs")
                entry.step.values[need] = step.values.get(need.need, missing)
        self._entries += [
            Entry(name, quantity, plan.needs_of[name], self._memories.get(name), step)
            for name, quantity in plan.due.items()
        ]

    def unmet(self, step: Step) -> list[Need]:
        """Return what the quantities of a step still want, in a fixed order."""
        asked = (need for entry in self._entries if entry.step is step for need in entry.needs)
        return [need for need in dict.fromkeys(asked) if need not in step.values]

    def compute(self) -> None:
        """Compute every quantity whose needs have been met."""
        first = len(self._results)
        with torch.no_grad():
            for entry in list(self._entries):
                if entry.step.has(entry.needs):
                    self._compute(entry)
                elif (missing := entry.missing()) is not None:
                    self._fail(entry, missing.reason, usual=missing.usual)
        if self._ranks is not None:
            self._results[first:] = agreed(self._ranks, self._results[first:])

    def _compute(self, entry: Entry) -> None:
        try:
            entry.step.memory = entry.memory
            self._memories[entry.name] = entry.quantity.remember(entry.step)
            value = entry.quantity.compute(entry.step)
        except NotChecked as error:
            self._fail(entry, str(error), usual=error.usual)
        except Exception as error:
            self._fail(entry, f"{type(error).__name__}: {error}")
        else:
            self._entries.remove(entry)
            self.add(Result(entry.step.global_step, entry.name, value))

    def _fail(self, entry: Entry, reason: str, *, usual: bool = False) -> None:
        self._entries.remove(entry)
        if entry.step.is_empty:  # whatever broke without samples
            reason = NO_SAMPLES
        self.add(Result(entry.step.global_step, entry.name, Missing(reason, usual)))

    def add(self, result: Result) -> None:
        """Have a result reported with the others."""
        self._results.append(result)

    def flush(self) -> None:
        """Report the results so far."""
        results, self._results = self._results, []
        if results:
            self._reports.results(results)

    def give_up(self, reason: str) -> None:
        """Report all that waits as not checked."""
        for entry in list(self._entries):
            self._fail(entry, reason, usual=True)
        self.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return what waits and what is remembered, as plain data."""
        waiting = [
            {
                "name": entry.name,
                "global_step": entry.step.global_step,
                "batch_size": entry.step.batch_size,
                "memory": packed(entry.memory),
                "values": packed_values(entry.needs, entry.step.values),
            }
            for entry in self._entries
        ]
        memories = {name: packed(memory) for name, memory in self._memories.items()}
        return {"waiting": waiting, "memories": memories}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        quantities: Mapping[str, Computation],
        parameters: Mapping[str, nn.Parameter],
        put: Callable[[Tensor], Tensor],
    ) -> None:
        """Take up what waited and was remembered, for those of its quantities that are among these."""
        self._memories = {
            name: unpacked(memory, put)
            for name, memory in state["memories"].items()
            if name in quantities
        }
        self._entries = []
        for entry in state["waiting"]:
            name, global_step = entry["name"], entry["global_step"]
            if name not in quantities:
                continue
            memory = unpacked(entry["memory"], put)
            needs = quantities[name].needs_at(global_step, memory)
            values = {needs[place]: unpacked(data, put) for place, data in entry["values"]}
            step = Step(global_step, parameters, batch_size=entry["batch_size"], values=values)
            self._entries.append(Entry(name, quantities[name], needs, memory, step))
