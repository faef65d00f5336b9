"""The rule for every other module: its vector-Jacobian products, sample by sample.

The module's `forward` is run again on its inputs. Where it draws no random numbers, that is done for
one sample at a time in the mind and for all at once on the machine. Where it does (dropout), only
the whole batch draws the same numbers again: it is run as a whole in the random state that it had,
and pulled back sample by sample.

Either way the module's output for a sample must depend on that sample alone. This is not taken on
trust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.conditions import Conditions
from cockpit.gradients.handle import Dense, IndividualGradients
from cockpit.gradients.randomness import RandomState, accelerators
from cockpit.gradients.rules.registry import Call, served_parameters
from cockpit.gradients.rules.rerun import Gradients, Rerun, external, named_faults, unseen
from cockpit.gradients.rules.state import refuse_changes


def generic(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch
) -> dict[str, IndividualGradients]:
    """Serve any module whose inputs and outputs have the samples in the first dimension."""
    drew = call.conditions is not None and call.conditions.drew
    with named_faults(call):
        replay = (Redrawn if drew else Mapped)(call, grads, batch)
        own = replay.parameters
        size = sum(parameter.numel() for parameter in own.values())
        pieces = batch.pieces(2 * size * replay.dtype.itemsize)
        first = replay.gradients(pieces[0], tuple(own))
        replay.confirm(pieces[0], first)
        replay.confirm_alike()
    if len(pieces) == 1:
        return {name: Dense(batch, values) for name, values in first.items()}
    return {name: Replayed(replay, name) for name in own}


class Replayed(IndividualGradients):
    """Individual gradients that are too large to be stored, computed anew for each piece."""

    def __init__(self, replay: Replay, name: str) -> None:
        parameter = replay.parameters[name]
        super().__init__(replay.batch, parameter.shape, replay.dtype, parameter.device)
        self._replay, self._name = replay, name

    def piece(self, samples: slice) -> Tensor:
        """Run the module again on some samples."""
        with named_faults(self._replay.call):
            return self._replay.gradients(samples, (self._name,))[self._name]


class Replay(Rerun):
    """Runs a call's module again and pulls the gradients of its output back to its parameters, sample by sample.

    Args:
        call: The call.
        grads: The gradients that arrived.
        batch: The batch.
        dtype: Precision to run in; None for that of the forward.
    """

    def __init__(
        self,
        call: Call,
        grads: tuple[Tensor | None, ...],
        batch: Batch,
        dtype: torch.dtype | None = None,
    ) -> None:
        parameters = served_parameters(call.module)
        super().__init__(call, [grad is not None for grad in grads], parameters, dtype)
        self.batch = batch
        self.dtype = working_dtype(*parameters.values())
        self.batched = [
            isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == batch.size
            for leaf in self.leaves
        ]
        self.grads = [grad.detach() for grad in grads if grad is not None]
        if not any(self.batched) or any(
            grad.dim() == 0 or len(grad) != batch.size for grad in self.grads
        ):
            raise Unsupported(
                f"its inputs and outputs do not have the {batch.size} samples in their first "
                "dimension"
            )

    def gradients(self, samples: slice, names: tuple[str, ...]) -> Gradients:
        """Return the individual gradients of the parameters called `names` for some samples, each `[n, *shape]`."""
        raise NotImplementedError

    def confirm(self, samples: slice, found: Gradients) -> None:
        """Refuse a module that couples the samples, or has them in another dimension than the first.

        Args:
            samples: Some of the samples.
            found: Their gradients.
        """
        raise NotImplementedError

    def confirm_alike(self) -> None:
        """Refuse a module that computes with buffers or attributes that are not as they were.

        They were changed after the forward, or by it. What the forward itself changes may be a
        counter, or what it caches: it is seen whether the output depends on that.
        """
        refuse_changes(self.call, self.module.changes)
        if not self.module.changes:
            return
        first, second = ([output.detach() for output in run] for run in self._twice())
        sizes = [output.square().sum() for output in first]
        rounding = min(ROUNDING, torch.finfo(first[0].dtype).eps ** 0.5)  # they compute alike
        if _differ(first, second, torch.stack(sizes).sum(), rounding):
            raise Unsupported(_CHANGING)

    def _twice(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outputs of two runs, the second with the buffers and attributes that the first one left."""
        raise NotImplementedError


class Mapped(Replay):
    """A replay that is mapped over the samples, each in a batch of its own, in working precision."""

    def __init__(self, call: Call, grads: tuple[Tensor | None, ...], batch: Batch) -> None:
        super().__init__(
            call, grads, batch, working_dtype(*served_parameters(call.module).values())
        )
        self.grads = [grad.to(self.dtype) * batch.scale for grad in self.grads]
        if len(self.grads) > 1:
            with unseen(), no_random_numbers(*self.grads):
                outputs = self.outputs(self.leaves, self.differentiable())
            self.grads = external(outputs, self.grads)

    def gradients(self, samples: slice, names: tuple[str, ...]) -> Gradients:
        """Map the vector-Jacobian product over some samples."""
        inputs = [
            leaf[samples]
            for leaf, batched in zip(self.leaves, self.batched, strict=True)
            if batched
        ]
        grads = [grad[samples] for grad in self.grads]

        def one(sample: list[Tensor], grad: list[Tensor]) -> Gradients:
            given = iter(sample)
            leaves = [
                next(given).unsqueeze(0) if batched else leaf
                for leaf, batched in zip(self.leaves, self.batched, strict=True)
            ]
            return self._pull_back(names, leaves, [g.unsqueeze(0) for g in grad])

        with unseen():
            try:
                return vmap(one)(inputs, grads)
            except (RuntimeError, ValueError, Warning) as error:
                if "randomness" in str(error):
                    raise Unsupported(_RANDOM) from error
            return _looped(one, inputs, grads)

    def confirm(self, samples: slice, found: Gradients) -> None:
        """Compare what the samples yield one by one with what they yield in the batch."""
        if self.batch.size == 1:
            return
        masked = [torch.zeros_like(grad) for grad in self.grads]
        for mask, grad in zip(masked, self.grads, strict=True):
            mask[samples] = grad[samples]
        with unseen():
            together = self._pull_back(tuple(found), self.leaves, masked)
        sums = [values.sum(0) for values in found.values()]
        sizes = [values.square().sum() for values in found.values()]
        if _differ(sums, [together[name] for name in found], torch.stack(sizes).sum()):
            raise Unsupported(_COUPLED)

    def _pull_back(
        self, names: tuple[str, ...], leaves: list[Any], grads: list[Tensor]
    ) -> Gradients:
        chosen = {name: self.parameters[name] for name in names}
        outputs, pull = vjp(lambda parameters: self.outputs(leaves, parameters), chosen)[:2]
        if any(o.shape != g.shape for o, g in zip(outputs, grads, strict=True)):
            raise Unsupported(_WHOLE)
        return pull(grads)[0]

    def _twice(self) -> tuple[list[Tensor], list[Tensor]]:
        with unseen(), no_random_numbers(*self.grads):
            return self.twice(nullcontext)


class Redrawn(Replay):
    """A replay of the whole batch that draws the random numbers of the forward, pulled back once for each sample."""

    def __init__(self, call: Call, grads: tuple[Tensor | None, ...], batch: Batch) -> None:
        super().__init__(call, grads, batch)
        assert call.conditions is not None
        self._conditions: Conditions = call.conditions
        if len(self.grads) > 1:
            self.grads = external(self._run(self.differentiable()), self.grads)

    def gradients(self, samples: slice, names: tuple[str, ...]) -> Gradients:
        """Run forward once, and pull the gradients of some samples back one after the other."""
        all_of_them = self.differentiable()
        chosen = [all_of_them[name] for name in names]
        outputs = self._run(all_of_them)
        rows = []
        masked = [torch.zeros_like(grad) for grad in self.grads]
        for i in range(*samples.indices(self.batch.size)):
            for mask, grad in zip(masked, self.grads, strict=True):
                mask[i] = grad[i]
            rows.append(
                torch.autograd.grad(
                    outputs,
                    chosen,
                    masked,
                    retain_graph=True,
                    materialize_grads=True,
                )
            )
            for mask in masked:
                mask[i] = 0
        columns = zip(*rows, strict=True)
        return {
            name: torch.stack(column).to(self.dtype) * self.batch.scale
            for name, column in zip(names, columns, strict=True)
        }

    def confirm(self, samples: slice, found: Gradients) -> None:
        """See that the outputs of half of the samples do not change when the other half does."""
        size = self.batch.size
        if size == 1:
            return
        first = torch.arange(size, device=self.grads[0].device) < size // 2
        as_it_was = self._run({})
        for kept in (first, ~first):
            changed = [
                _exchanged(leaf, kept) if batched else leaf
                for leaf, batched in zip(self.leaves, self.batched, strict=True)
            ]
            now = self._run({}, changed)
            sizes = [output[kept].square().sum() for output in as_it_was]
            before, after = ([output[kept] for output in run] for run in (as_it_was, now))
            if _differ(before, after, torch.stack(sizes).sum()):
                raise Unsupported(_COUPLED)

    def _twice(self) -> tuple[list[Tensor], list[Tensor]]:
        with unseen(mappable=False):
            return self.twice(self._conditions.restored)

    def _run(self, parameters: Gradients, leaves: list[Any] | None = None) -> list[Tensor]:
        """Run forward with random numbers as the first time; with a graph of `parameters`."""
        with unseen(mappable=False), self._conditions.restored():
            return self.outputs(self.leaves if leaves is None else leaves, parameters)


def _exchanged(values: Tensor, kept: Tensor) -> Tensor:
    """Give the samples that are not kept the values of other samples."""
    return torch.where(kept.reshape(-1, *[1] * (values.dim() - 1)), values, values.roll(1, 0))


def _differ(
    first: list[Tensor], second: list[Tensor], square: Tensor, rounding: float | None = None
) -> bool:
    """Whether two lists of tensors differ by more than rounding, relative to a squared norm."""
    errors = [(a - b).square().sum() for a, b in zip(first, second, strict=True)]
    return bool(torch.stack(errors).sum() > (rounding or ROUNDING) ** 2 * square)


_RANDOM = (
    "it draws random numbers, and the random state of its forward pass is not known; put what draws "
    "them into modules without parameters, such as nn.Dropout"
)
_WHOLE = (
    "its output for one sample alone has another shape than for that sample in the batch: it has no "
    "batch dimension, or it reads what belongs to the samples and is not among its arguments; give it as "
    "an argument of its forward"
)
_CHANGING = (
    "its forward changes a buffer or an attribute that it computes with, so that running it again gives "
    "something else; change it outside of the forward, or in eval mode only"
)
_COUPLED = (
    "its output for a sample does not depend on that sample alone, or the samples are not "
    "in the first dimension"
)

ROUNDING = 1e-2
"""Relative difference that may be rounding (TF32 has ten bits); coupled samples differ by much more."""


def _looped(
    one: Callable[[list[Tensor], list[Tensor]], Gradients],
    inputs: list[Tensor],
    grads: list[Tensor],
) -> Gradients:
    """Do the same sample by sample, for modules that cannot be mapped."""
    with no_random_numbers(*grads):
        results = [
            one([value[i] for value in inputs], [grad[i] for grad in grads])
            for i in range(len(grads[0]))
        ]
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}


@contextmanager
def no_random_numbers(*tensors: Tensor) -> Iterator[None]:
    """Refuse what moves the global random state of the CPU, or of where the tensors are, and put that back."""
    before = RandomState.capture(*accelerators(tensors))
    with before.restored():
        yield
        moved = not before.is_present
    if moved:
        raise Unsupported(_RANDOM)
