"""Where the samples lie in what a layer is given, and how they are brought to the first dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

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


@dataclass
class Arranged:
    """A call as a rule wants it: the samples come first.

    Args:
        call: The call.
        grads: What arrived at its output.
        batch: The batch that its first dimension is: that of the samples, or where several entries
            belong to each sample, that of the entries.
        folded: Number of entries that belong to each sample, one after the other.
        guess: What was taken for granted, where the shapes leave a choice.
    """

    call: Call
    grads: Grads
    batch: Batch
    folded: int = 1
    guess: str | None = None

    def of_samples(self, handle: IndividualGradients, batch: Batch) -> IndividualGradients:
        """Return the gradients by sample, from those by entry of the first dimension."""
        return handle if self.folded == 1 else Folded(batch, handle, self.folded)


def arranged(call: Call, grads: Grads, batch: Batch) -> Arranged:
    """Bring the samples to the front, where the layer works position by position or its input has them folded in.

    What is sure: the samples lie in the batch's own dimension, or there is one other dimension that
    is as long as the batch and nothing else that fits. What is a guess: several dimensions fit, or
    samples and positions were flattened into one.
    """
    plain = Arranged(call, grads, batch)
    x, grad = next(iter([*call.args, *call.kwargs.values()]), None), grads[0]
    if not isinstance(x, Tensor) or grad is None or batch.size < 2:
        return plain
    features = feature_dims(call.module)
    if features is None:
        return _entries(plain, x) if _takes_entries(call.module) else plain
    lead = x.shape[: x.dim() - features]
    fitting = [dim for dim, size in enumerate(lead) if size == batch.size]
    folds = len(lead) > 0 and lead[0] != batch.size and lead[0] > 0 and lead[0] % batch.size == 0
    if batch.dim in fitting:
        doubtful = batch.doubtful and len(fitting) > 1
        where = f"dimension {' or '.join(map(str, fitting))}"
        return _moved(plain, x, batch.dim, _guess(x, batch, where) if doubtful else None)
    if fitting and lead[0] != 1:
        sure = len(fitting) == 1 and not folds
        return _moved(
            plain, x, fitting[0], None if sure else _guess(x, batch, f"dimension {fitting[0]}")
        )
    return _unfolded(plain, x) if folds and len(lead) == 1 else plain


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
    x = next(iter([*call.args, *call.kwargs.values()]), None)
    if not knows_layout(call.module):
        return None
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


def _guess(x: Tensor, batch: Batch, where: str) -> str:
    return (
        f"its input has shape {list(x.shape)}, in which the {batch.size} samples may be in {where}, but "
        f"it is not sure; {CONFIRM}"
    )


def _moved(plain: Arranged, x: Tensor, dim: int, guess: str | None = None) -> Arranged:
    if dim == 0:
        return plain if guess is None else replace(plain, guess=guess)
    grads = tuple(None if grad is None else grad.movedim(dim, 0) for grad in plain.grads)
    return replace(plain, call=_with_input(plain.call, x.movedim(dim, 0)), grads=grads, guess=guess)


def _unfolded(plain: Arranged, x: Tensor) -> Arranged:
    """Part samples and positions that were flattened into the first dimension."""
    batch = plain.batch
    first, second = (batch.size, -1) if batch.dim == 0 else (-1, batch.size)
    call = _with_input(plain.call, x.unflatten(0, (first, second)).movedim(batch.dim, 0))
    grads = tuple(
        None if grad is None else grad.unflatten(0, (first, second)).movedim(batch.dim, 0)
        for grad in plain.grads
    )
    order = "sample by sample" if batch.dim == 0 else "position by position"
    guess = None if batch.stated else _guess(x, batch, f"dimension 0, flattened {order}")
    return replace(plain, call=call, grads=grads, guess=guess)


def _entries(plain: Arranged, x: Tensor) -> Arranged:
    """Take the entries of the first dimension for samples, where several belong to each sample."""
    batch, entries = plain.batch, len(x) if x.dim() else 0
    fits = entries > batch.size and entries % batch.size == 0 and batch.dim == 0
    if not fits or any(g is not None and (g.dim() == 0 or len(g) != entries) for g in plain.grads):
        return plain
    guess = None if batch.stated else _guess(x, batch, "dimension 0, several entries each")
    return replace(
        plain, batch=replace(batch, size=entries), folded=entries // batch.size, guess=guess
    )


def _with_input(call: Call, x: Tensor) -> Call:
    if call.args:
        return replace(call, args=(x, *call.args[1:]))
    first = next(iter(call.kwargs))
    kwargs: dict[str, Any] = {**call.kwargs, first: x}
    return replace(call, kwargs=kwargs)
