"""Remembers where the samples of each parameter were found, and decides whether to believe that they are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from cockpit.engine.audit import Audit, Key
from cockpit.gradients import Batch, Call
from cockpit.gradients.collector import served_by
from cockpit.gradients.layout import CONFIRM, Arrangement, Taken, place_of
from cockpit.gradients.nodes import Direct

CHANGED = (
    "its samples seem to lie elsewhere than at earlier steps, which may be a coincidence of lengths: {}; "
    f"{CONFIRM}"
)

MISFIT = (
    "there was no place for the samples in its input at another step, so that there seems to be one now "
    "may be a coincidence of lengths; where that was a mistake in the data, make a new cockpit"
)


class Trust:
    """Judges, parameter by parameter, where the samples were taken to lie.

    Shapes that leave no choice are believed at first sight, and remembered. What is new or left a
    choice has to be confirmed by an audit. A parameter whose layer was once given something that has no
    place for the samples, such as the tokens that were sent to an expert, is not believed any more: an
    audit of one step says nothing of it at the next one.

    Args:
        names: The names of the tracked parameters.
        audit: Confirms.
    """

    def __init__(self, names: Mapping[Tensor, str], audit: Audit) -> None:
        self._names, self._audit = names, audit
        self._seen: defaultdict[str, set[Arrangement]] = defaultdict(set)
        self._misfits: set[str] = set()

    def known(self, parameter: nn.Parameter, where: str) -> int | None:
        """Return the one dimension in which the samples of a parameter have lain in layers of a kind.

        None where there is no such dimension, or more than one.
        """
        seen = self._seen.get(self._names.get(parameter, ""), ())
        dims = {one.dim for one in seen if one.where == where and not one.folded}
        return dims.pop() if len(dims) == 1 else None

    def objection(self, parameter: nn.Parameter, taken: Taken) -> str | None:
        """Return why the individual gradients of a parameter are not to be used, None where they may be.

        Args:
            parameter: The parameter.
            taken: Where its samples were taken to lie.
        """
        name = self._names.get(parameter)
        if name is None or not taken.arrangements:
            return None
        key = name, frozenset(taken.arrangements)
        wrong = self._audit.objection(key)
        if wrong is not None:
            return wrong
        reason = self._doubt(key, taken)
        if reason is not None:
            self._audit.ask(key)
            return reason
        self._seen[name] |= {replace(one, guessed=False) for one in key[1]}
        return None

    def _doubt(self, key: Key, taken: Taken) -> str | None:
        name, arrangements = key
        if name in self._misfits:
            return MISFIT
        seen = self._seen.get(name)
        if self._audit.confirmed(key) or (seen is not None and arrangements <= seen):
            return None
        doubt = taken.doubt()
        if doubt is None and seen is not None:
            return CHANGED.format(", ".join(sorted(map(_described, arrangements - seen))))
        return doubt

    def distrust(self, parameters: Iterable[Tensor]) -> None:
        """Remember parameters that were given something that has no place for the samples."""
        self._misfits |= {self._names[p] for p in parameters if p in self._names}

    def expected(self, calls: Iterable[Call], direct: Direct, batch: Batch) -> set[Key]:
        """Return where the samples will be taken to lie in the backward pass that comes, from the shapes."""
        found: defaultdict[Tensor, Taken] = defaultdict(Taken)
        for call in calls if batch.size > 1 else ():
            own = served_by(call, direct) if call.args or call.kwargs else {}
            for parameter in own.values():
                known = self.known(next(iter(own.values())), type(call.module).__name__)
                found[parameter].add(place_of(call, batch, known))
        for use in direct.all():
            found[use.parameter].add(use.place(batch, self.known(use.parameter, use.kind)))
        return {
            (self._names[parameter], frozenset(taken.arrangements))
            for parameter, taken in found.items()
            if parameter in self._names and taken.arrangements
        }


def _described(one: Arrangement) -> str:
    dim = f"dimension {one.dim}" + (", several entries each" if one.folded else "")
    return f"{dim} in {one.where}"
