"""Where the samples lie in what a layer is given, and how they are brought to the first dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cockpit.gradients.batch import Batch
from cockpit.gradients.folded import Folded
from cockpit.gradients.handle import IndividualGradients
from cockpit.gradients.rules.registry import Call, find_rule
from cockpit.gradients.rules.transposed_linear import transposed_linear

Grads = tuple["Tensor | None", ...]

CONFIRM = (
    "give individual_losses that the loss is made from, by which the first tracked step finds out, or "
    "say where the samples are with Cockpit(..., batch_dim=)"
)


Doubt = Callable[[], "str | None"]
"""Says what is taken for granted, None where the values leave no doubt; it may wait for the device."""


@dataclass(frozen=True)
class Arrangement:
    """Where the samples are taken to lie in a call of a layer, or in an operation.

    Args:
        where: Kind of the layer or operation.
        dim: The dimension in which they lie.
        folded: Whether several entries of it belong to each sample.
        guessed: Whether other dimensions are as long, and nothing tells which one it is.
    """

    where: str
    dim: int = 0
    folded: bool = False
    guessed: bool = False


class Place(NamedTuple):
    """An arrangement, and what is to be said against it.

    Args:
        arrangement: The arrangement; None where the samples fit nowhere.
        doubt: What was taken for granted, where the shapes leave a choice.
    """

    arrangement: Arrangement | None
    doubt: Doubt | None = None

    def of(self, batch: Batch) -> Batch:
        """Return the batch with its samples there."""
        there = self.arrangement
        return batch if there is None or there.folded else replace(batch, dim=there.dim)


@dataclass
class Taken:
    """What was taken for granted of the samples of one parameter, in all of its parts."""

    arrangements: set[Arrangement] = field(default_factory=set)
    doubts: list[Doubt] = field(default_factory=list)

    def add(self, place: Place) -> None:
        """Take in one more part."""
        if place.arrangement is not None:
            self.arrangements.add(place.arrangement)
        if place.doubt is not None:
            self.doubts.append(place.doubt)

    def doubt(self) -> str | None:
        """Return what was taken for granted without being sure, None if there is no such thing."""
        reasons = (doubt() for doubt in self.doubts)
        return next((reason for reason in reasons if reason is not None), None)


@dataclass
class Arranged:
    """A call as a rule wants it: the samples come first.

    Args:
        call: The call.
        grads: What arrived at its output.
        batch: The batch that its first dimension is: that of the samples, or where several entries
            belong to each sample, that of the entries.
        place: Where the samples were taken to lie.
        folded: Number of entries that belong to each sample, one after the other.
    """

    call: Call
    grads: Grads
    batch: Batch
    place: Place
    folded: int = 1

    def of_samples(self, handle: IndividualGradients, batch: Batch) -> IndividualGradients:
        """Return the gradients by sample, from those by entry of the first dimension."""
        return handle if self.folded == 1 else Folded(batch, handle, self.folded)


def arranged(call: Call, grads: Grads, batch: Batch, known: int | None = None) -> Arranged:
    """Bring the samples to the front, where the layer works position by position or its input has them folded in.

    Args:
        call: The call.
        grads: What arrived at its output.
        batch: The batch.
        known: The dimension in which its samples lay at other steps, see `place_of`.
    """
    place = place_of(call, batch, known)
    plain = Arranged(call, grads, batch, place)
    x, arrangement = _first_input(call), place.arrangement
    if not isinstance(x, Tensor) or grads[0] is None or arrangement is None:
        return plain
    if feature_dims(call.module) is None:
        return _entries(plain, x) if arrangement.folded else plain
    if arrangement.folded:
        return _unfolded(plain, x)
    return _moved(plain, x, arrangement.dim) if arrangement.dim else plain


def place_of(call: Call, batch: Batch, known: int | None = None) -> Place:
    """Return where the samples lie in what a layer is given, from the shapes.

    What is sure: the samples lie in the batch's own dimension, or there is one other dimension that
    is as long as the batch and nothing else that fits, or of several that fit one is where they lay
    when only one did. What is a guess: several dimensions fit, or samples and positions were
    flattened into one.

    Args:
        call: The call.
        batch: The batch.
        known: The dimension in which its samples lay whenever only one could be, if so.
    """
    x, plain = _first_input(call), Arrangement(type(call.module).__name__)
    features = feature_dims(call.module)
    if not isinstance(x, Tensor) or (features is None and not _takes_entries(call.module)):
        return Place(plain)
    lead = x.shape[: x.dim() - (features or 0)]
    if batch.size < 2:
        return Place(replace(plain, folded=features is not None and lead[:1] not in ((), (1,))))
    if features is None:
        return _place_of_entries(x, plain, batch)
    place = _place_alone(x.shape, len(lead), plain, batch, known)
    if place.doubt is None and isinstance(call.module, nn.Embedding) and len(lead) == 1:
        doubt = partial(_counting, x)
        return place if place.arrangement is None else Place(place.arrangement, doubt)
    return place


def _place_alone(
    shape: Sequence[int], leading: int, plain: Arrangement, batch: Batch, known: int | None
) -> Place:
    """Return where the samples lie among the leading dimensions, along which a layer works position by position."""
    lead = shape[:leading]
    fitting = [dim for dim, size in enumerate(lead) if size == batch.size]
    folds = len(lead) > 0 and lead[0] != batch.size and lead[0] > 0 and lead[0] % batch.size == 0
    if known in fitting and not batch.stated:
        return Place(replace(plain, dim=known))
    if batch.dim in fitting:
        dim, doubtful = batch.dim, len(fitting) > 1 and batch.doubtful
    elif fitting and lead[0] != 1:
        dim, doubtful = fitting[0], len(fitting) > 1 or folds
    elif folds and len(lead) == 1:
        order = "sample by sample" if batch.dim == 0 else "position by position"
        return _place_folded(shape, plain, batch, f"dimension 0, flattened {order}")
    else:
        return Place(None)
    if not doubtful:
        return Place(replace(plain, dim=dim))
    where = f"dimension {' or '.join(map(str, fitting))}"
    return Place(replace(plain, dim=dim, guessed=True), partial(_guess, shape, batch, where))


def _first_input(call: Call) -> Any:
    return next(iter([*call.args, *call.kwargs.values()]), None)


def feature_dims(module: nn.Module) -> int | None:
    """Return how many of the last dimensions are features of one position, None where positions are not alone."""
    if find_rule(module) is None:
        return None
    if isinstance(module, nn.Embedding):
        return 0
    if isinstance(module, nn.Linear) or find_rule(module) is transposed_linear:
        return 1
    shape = getattr(module, "normalized_shape", None)
    return None if shape is None else len(shape)


def knows_layout(module: nn.Module) -> bool:
    """Whether a module is told by its settings where the samples lie."""
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention)


def samples_of(call: Call) -> tuple[int, bool] | None:
    """Return how many samples a module that knows its layout was given; None of other modules.

    And whether they come second, in an input that has as many positions.
    """
    if not knows_layout(call.module):
        return None
    x = next(iter([*call.args, *call.kwargs.values()]), None)
    if isinstance(x, PackedSequence):
        return int(x.batch_sizes[0]), False
    if not isinstance(x, Tensor) or x.dim() != 3:
        return None
    dim = 0 if call.module.batch_first else 1
    return x.shape[dim], dim == 1 and x.shape[0] == x.shape[1]


def _takes_entries(module: nn.Module) -> bool:
    """Whether the entries of the first dimension are computed one by one, whatever they are."""
    kinds = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.PReLU)
    return isinstance(module, kinds) or find_rule(module) is None


def _guess(shape: Sequence[int], batch: Batch, where: str) -> str:
    return (
        f"its input has shape {list(shape)}, in which the {batch.size} samples may be in {where}, but "
        f"it is not sure; {CONFIRM}"
    )


def _counting(index: Tensor) -> str | None:
    """Object to indices `[N]` that may be positions, of which there are as many as samples."""
    if not (torch.diff(index) == 1).all():
        return None
    return (
        f"its input counts up from {int(index[0])}, as positions do that are the same for all samples, "
        "and there are as many as samples; give it positions of shape [samples, length], or the cockpit "
        "individual_losses that the loss is made from"
    )


def _place_of_entries(x: Tensor, plain: Arrangement, batch: Batch) -> Place:
    """Return where the samples lie in a first dimension, of which each may have several entries."""
    entries = len(x) if x.dim() else 0
    if entries == batch.size:
        return Place(plain)
    if entries == 0 or entries % batch.size != 0 or batch.dim != 0:
        return Place(None)
    return _place_folded(x.shape, plain, batch, "dimension 0, several entries each")


def _place_folded(shape: Sequence[int], plain: Arrangement, batch: Batch, where: str) -> Place:
    doubt = None if batch.stated else partial(_guess, shape, batch, where)
    return Place(replace(plain, folded=True), doubt)


def _moved(plain: Arranged, x: Tensor, dim: int) -> Arranged:
    grads = tuple(None if grad is None else grad.movedim(dim, 0) for grad in plain.grads)
    return replace(plain, call=_with_input(plain.call, x.movedim(dim, 0)), grads=grads)


def _unfolded(plain: Arranged, x: Tensor) -> Arranged:
    """Part samples and positions that were flattened into the first dimension; one sample has all of them."""
    batch = plain.batch
    dim = 0 if batch.size == 1 else batch.dim
    sizes = (batch.size, -1) if dim == 0 else (-1, batch.size)
    call = _with_input(plain.call, x.unflatten(0, sizes).movedim(dim, 0))
    grads = tuple(
        None if grad is None else grad.unflatten(0, sizes).movedim(dim, 0) for grad in plain.grads
    )
    return replace(plain, call=call, grads=grads)


def _entries(plain: Arranged, x: Tensor) -> Arranged:
    """Take the entries of the first dimension for samples, where several belong to each sample."""
    batch, entries = plain.batch, len(x)
    if any(g is not None and (g.dim() == 0 or len(g) != entries) for g in plain.grads):
        return replace(plain, place=Place(None))
    return replace(plain, batch=replace(batch, size=entries), folded=entries // batch.size)


def _with_input(call: Call, x: Tensor) -> Call:
    if call.args:
        return replace(call, args=(x, *call.args[1:]))
    first = next(iter(call.kwargs))
    kwargs: dict[str, Any] = {**call.kwargs, first: x}
    return replace(call, kwargs=kwargs)
