"""What the processes of one training do together: meet, exchange, and learn of what went wrong elsewhere.

Every process runs the same steps and computes the same quantities, in lockstep. Before they exchange
anything they *meet*: each says where it stands, by step, moment, and place within it. One that
stands behind the others, since something failed on another process only, learns of it there and goes
on to where the others are. So a fault of one process costs a quantity, and never leaves the others
waiting for what does not come.
"""

from __future__ import annotations

import re
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cockpit.engine.needs import Moment
from cockpit.engine.step import Missing, NotChecked
from cockpit.errors import CockpitError, Unsupported
from cockpit.transforms import Need

ELSEWHERE = "it failed on another process"
"""What a process that did not fail itself says of what it did not get."""

HORIZON = 1000
"""Steps for which the schedules of all processes are compared at a time."""

PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others where the process group does not say."""

GLANCE = timedelta(seconds=1)
"""How often one that waits looks whether another has left."""

PHASES = {
    Moment.FORWARD: "about to enter step {}",
    Moment.ENTRY: "at the beginning of step {}",
    Moment.EXIT: "at the end of the backward pass of step {}",
    Moment.UPDATE: "at the update of step {}",
}

LAST = 2**16
"""Place of what all processes come to, whatever happened before."""


@dataclass(frozen=True)
class Place:
    """Where a process stands.

    Args:
        step: Number of the step.
        moment: The moment of the step.
        section: Which need it is at, of those of the moment.
        task: Which part of that.
        call: How many exchanges it has been through there.
    """

    step: int
    moment: Moment
    section: int = 0
    task: int = 0
    call: int = 0

    @property
    def outer(self) -> int:
        """The place among steps and moments, as a number."""
        return self.step * len(Moment) + self.moment

    @property
    def inner(self) -> int:
        """The place within the moment, as a number."""
        return (self.section * 2**20 + self.task) * 2**20 + self.call

    def __str__(self) -> str:
        return PHASES[self.moment].format(self.step)


class Ranks:
    """The processes that train one model together.

    They talk in groups of their own, which what the training itself exchanges does not meet.

    Args:
        model: The model that they train.

    Raises:
        CockpitError: if the other processes do not make their cockpit.
    """

    def __init__(self, model: nn.parallel.DistributedDataParallel) -> None:
        group = model.process_group
        self._model = weakref.ref(model)
        self.members: list[int] = dist.get_process_group_ranks(group)
        self.rank: int = dist.get_rank(group)
        self.patience = _patience_of(group)
        self._device = next(model.parameters()).device
        self._control, self._data = self._groups()
        store = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"cockpit/{self._control.group_name}", store)
        self._place = Place(0, Moment.FORWARD)
        self._horizon = -1

    def _groups(self) -> tuple[Any, Any]:
        if not dist.is_gloo_available():
            raise Unsupported(
                "A cockpit on several processes needs the gloo backend of torch.distributed, which this "
                "build of torch lacks. Give it the model of one of them: Cockpit(model.module, ...)."
            )
        make = partial(
            dist.new_group,
            self.members,
            timeout=self.patience,
            # The other processes, if there are any, train another model, and do not come here.
            use_local_synchronization=self.size < dist.get_world_size(),
        )
        try:
            control = make(backend="gloo")
            data = control
            if self._device.type != "cpu":
                data = make()
        except RuntimeError as error:
            raise CockpitError(
                "The other processes did not make their cockpit. A model in DistributedDataParallel "
                f"needs Cockpit(model, ...) on every process, and not on rank {self.rank} alone: only "
                f"the first one writes the run file ({_first_line(error)})."
            ) from error
        return control, data

    @property
    def size(self) -> int:
        """Number of processes."""
        return len(self.members)

    @property
    def postponed(self) -> str | None:
        """Why nobody but the user may differentiate the loss now, if so."""
        model = self._model()
        if not getattr(model, "static_graph", False):
            return None
        if getattr(model, "_static_graph_delay_allreduce_enqueued", True):
            return None
        return (
            "DistributedDataParallel with static_graph=True takes the first backward pass for the "
            "training's; there is curvature from the next step on"
        )

    def by_itself(self, closure: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None:
        """Return a closure whose forward passes are not taken for the training's by the model."""
        if closure is None:
            return None

        def run(*args: Any, **kwargs: Any) -> Tensor:
            model = self._model()
            if model is None:
                return closure(*args, **kwargs)
            synchronises = model.require_forward_param_sync
            model.require_forward_param_sync = False
            try:
                with model.no_sync():
                    return closure(*args, **kwargs)
            finally:
                model.require_forward_param_sync = synchronises

        return run

    # -- where this process stands ----------------------------------------------------------------

    def begin(self, step: int, moment: Moment, report: Any) -> list[Any]:
        """Meet at a moment of a step, and return the reports of all processes.

        Raises:
            CockpitError: if another process is elsewhere, or gone.
        """
        self._place = Place(step, moment)
        return self.objects(report)

    def section(self) -> None:
        """Go on to the next need of the moment."""
        here = self._place
        self._place = Place(here.step, here.moment, here.section + 1)

    def task(self) -> None:
        """Go on to the next part of the need."""
        here = self._place
        self._place = Place(here.step, here.moment, here.section, here.task + 1)

    def failures(self, reasons: Mapping[Any, Missing]) -> dict[Any, Missing]:
        """Return what failed on any process, by what this calls it, with the reason of where it failed."""
        here = self._place
        self._place = Place(here.step, here.moment, here.section + LAST)
        if not int(self.sum(torch.tensor(len(reasons)))):
            return {}
        found: dict[Any, Missing] = {}
        for rank, of_one in enumerate(self.objects(dict(reasons))):
            for key, missing in of_one.items():
                known = found.get(key)
                if known is None or ELSEWHERE in known.reason:
                    told = ELSEWHERE not in missing.reason and rank > 0
                    reason = f"rank {rank}: {missing.reason}" if told else missing.reason
                    found[key] = Missing(reason, missing.usual)
        return found

    # -- exchanges --------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes, the same to the last bit on each of them."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._meet("sum", tuple(total.shape), str(total.dtype))
        with self._guarded():
            dist.all_reduce(total, group=self._group_of(total))
        return total

    def rows(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all processes, in their order; see `cockpit.gradients.distributed.Exchange`."""
        padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        self._meet("rows", tuple(padded.shape), str(padded.dtype))
        parts = [torch.empty_like(padded) for _ in sizes]
        if padded.numel():
            with self._guarded():
                dist.all_gather(parts, padded, group=self._group_of(padded))
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def objects(self, value: Any) -> list[Any]:
        """Return what each process gives, by value."""
        self._meet("objects")
        found: list[Any] = [None] * self.size
        with self._guarded():
            dist.all_gather_object(found, value, group=self._control)
        return found

    def _group_of(self, tensor: Tensor) -> Any:
        return self._control if tensor.device.type == "cpu" else self._data

    # -- meeting ----------------------------------------------------------------------------------

    def _meet(self, *kind: Any) -> None:
        """Wait for the others to come to the same place, for the same kind of exchange.

        Raises:
            NotChecked: if others are past this place within the moment.
            CockpitError: if they are at another moment, or gone.
        """
        here = self._place
        here = self._place = Place(here.step, here.moment, here.section, here.task, here.call + 1)
        check = zlib.crc32(repr(kind).encode())
        while True:
            mine = [here.outer, here.inner, check]
            state = torch.tensor([*mine, *(-number for number in mine)], dtype=torch.int64)
            self._wait(state)
            most, least = state[:3], -state[3:]
            if torch.equal(most, least):
                return
            if most[0] != least[0]:
                self._part(here, state)
            elif most[1] == least[1] or here.inner == int(least[1]):
                raise NotChecked(ELSEWHERE)

    def _part(self, here: Place, state: Tensor) -> None:
        """Find out who is at another moment, and wait for those who are behind."""
        found: list[Any] = [None] * self.size
        with self._guarded():
            dist.all_gather_object(found, here, group=self._control)
        least = min(found, key=lambda place: place.outer)
        same = len({place.moment for place in found}) == 1
        if same or here.outer == least.outer:
            other, place = next((r, p) for r, p in enumerate(found) if p.outer != here.outer)
            raise CockpitError(
                f"Rank {other} is {place}, while rank {self.rank} is {here}. {self._notes()}Every process "
                "has to enter the same steps, in the same order, and to track the same quantities."
            )

    def _wait(self, state: Tensor) -> None:
        """Take the maximum over the processes, however long another one takes."""
        with self._guarded():
            work = dist.all_reduce(state, op=dist.ReduceOp.MAX, group=self._control, async_op=True)
            waited = timedelta()
            while True:
                try:
                    work.wait(GLANCE)
                    return
                except RuntimeError:
                    waited += GLANCE
                    if work.is_completed() or waited >= self.patience:
                        raise

    def _guarded(self) -> _Guard:
        return _Guard(self)

    # -- leaving ----------------------------------------------------------------------------------

    def leave(self, error: BaseException) -> None:
        """Leave word of why this process does not go on, for those who will wait for it."""
        with suppress(Exception):  # it must not hide the error
            reason = f"{type(error).__name__}: {_first_line(error)}".rstrip(".")
            text = f"in step {self._place.step}: {reason}"
            self._store.set(f"left/{self.rank}", text)

    def _notes(self) -> str:
        """Return what the others have left word of."""
        notes = []
        for rank in range(self.size):
            with suppress(Exception):  # the store goes with the process that keeps it
                if rank != self.rank and self._store.check([f"left/{rank}"]):
                    notes.append(f"Rank {rank} failed {self._store.get(f'left/{rank}').decode()}. ")
        return "".join(notes)

    def lost(self, error: RuntimeError) -> CockpitError:
        """Return what to raise when the others cannot be reached."""
        who = "rank " + str(1 - self.rank) if self.size == 2 else "another process"
        notes = self._notes() or f"It is {who} that does not answer. "
        return CockpitError(
            f"Rank {self.rank} waited {self._place} for the others in vain. {notes}"
            f"({_first_line(error)})"
        )

    # -- the same on all of them ------------------------------------------------------------------

    def compare(self, step: int, described: Callable[[range], Mapping[str, Any]]) -> None:
        """Compare what the processes are to do, once for every `HORIZON` steps.

        Args:
            step: The step that is entered.
            described: Says what this process does in a range of steps, by name.

        Raises:
            CockpitError: if that is not the same on all of them.
        """
        if step < self._horizon:
            return
        self._horizon = step + HORIZON
        first, *others = self.begin(step, Moment.FORWARD, described(range(step, self._horizon)))
        for name in dict.fromkeys(name for of_one in [first, *others] for name in of_one):
            self.require_same(name, [of_one.get(name, "none") for of_one in [first, *others]])

    def require_same(self, what: str, told: Sequence[str]) -> None:
        """Check that all processes tell the same.

        Raises:
            CockpitError: if they do not.
        """
        for rank, text in enumerate(told):
            if text != told[0]:
                raise CockpitError(
                    f"{what} differ between the processes: rank {rank} has {text}, rank 0 has {told[0]}. "
                    "Make the cockpit in the same way on all of them, with the same model and the same "
                    "quantities, due at the same steps."
                )


class _Guard:
    """Turns the errors of an exchange into one that says who does not answer."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise self._ranks.lost(error) from error


def agree(ranks: Ranks, values: dict[Need, Any], needs: Sequence[Need]) -> None:
    """Let all processes miss what one of them could not have."""
    reasons = {
        place: value
        for place, need in enumerate(needs)
        if isinstance(value := values.get(need), Missing)
    }
    for place, missing in ranks.failures(reasons).items():
        values[needs[place]] = missing


def ranks_of(model: Any) -> Ranks | None:
    """Return the processes that train a model together, or None where it is one.

    Raises:
        CockpitError: if the other processes do not make their cockpit.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None
    return Ranks(model) if dist.get_world_size(model.process_group) > 1 else None


def described(quantity: Any) -> str:
    """Return the settings of a quantity as text that is the same on every process."""
    settings = [
        f"{f.name}={getattr(quantity, f.name)!r}"
        for f in fields(quantity)
        if not callable(getattr(quantity, f.name))
    ]
    return re.sub(r" at 0x[0-9a-f]+", "", f"{type(quantity).__name__}({', '.join(settings)})")


def _patience_of(group: Any) -> timedelta:
    """Return how long the operations of a process group may take."""
    with suppress(Exception):  # what kinds of groups there are is torch's own affair
        device = group._device_types[0]
        timeout = group._get_backend(device).options._timeout
        if isinstance(timeout, timedelta):
            return timeout
    return PATIENCE


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
