"""Which rule serves which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.conditions import Conditions
from cockpit.gradients.handle import IndividualGradients


@dataclass(eq=False)
class Call:
    """One call of a module in the forward pass.

    Args:
        module: The module.
        args: Its positional arguments. Tensors are those of the forward pass, not copies.
        kwargs: Its keyword arguments.
        training: Whether the module was in training mode.
        versions: How often each tensor in the arguments had been modified in place by then; of those
            in containers also which ones they were.
        ends: Sequence numbers of the nodes of the graph that its outputs come from.
        after: Sequence number of the last node that its inputs come from, where these are not kept.
        conditions: What else its forward depended on, for modules that may have to be run again.
        buffers: Those that its weights are computed with, and how often each had been modified in place.
        state: Buffers and attributes that its forward may read, of modules that may have to be run
            again as a whole.
        lacking: Why the arguments are not all known, if so.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool
    versions: tuple[int, ...]
    ends: tuple[int, ...] = ()
    after: int | None = None
    conditions: Conditions | None = None
    buffers: Mapping[str, tuple[Tensor, int]] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    lacking: str | None = None

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Note a call that has just been made."""
        call = cls(module, args, kwargs, module.training, ())
        call.versions = call.current_versions()
        return call

    def current_versions(self) -> tuple[int, ...]:
        """Return what `versions` says, as it is by now."""
        found: list[int] = []
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor):
                found.append(version_of(value))
            elif isinstance(value, list | tuple | dict):
                inside = (v for v in pytree.tree_leaves(value) if isinstance(v, Tensor))
                found += [number for v in inside for number in (id(v), version_of(v))]
        return tuple(found)

    @property
    def input(self) -> Tensor:
        """The one input of a plain layer."""
        values = [*self.args, *self.kwargs.values()]
        if not values or not isinstance(values[0], Tensor):
            raise Unsupported("its first argument is no tensor")
        return values[0]


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor has been modified in place; nothing is known of those made for inference."""
    return 0 if tensor.is_inference() else tensor._version


Rule = Callable[[Call, "tuple[Tensor | None, ...]", Batch], Mapping[str, IndividualGradients]]
"""From a call, the gradients with respect to the tensors in its output and the batch, to the
individual gradients of the module's own parameters, by their local names. Raises `Unsupported` with
a short reason where it cannot serve a call."""


class Entry(NamedTuple):
    """A registered rule, and what is to be known of it beforehand.

    Args:
        rule: The rule.
        how: What it computes, in a word or two.
        draws: Whether modules that it serves draw random numbers while they train, unless their
            `dropout` is zero.
        borrows: Submodules whose parameters these use without calling the submodule.
    """

    rule: Rule
    how: str
    draws: bool
    borrows: tuple[str, ...]


_RULES: dict[type[nn.Module] | str, Entry] = {}


def rule_for(
    *kinds: type[nn.Module] | str,
    how: str = "closed form",
    draws: bool = False,
    borrows: tuple[str, ...] = (),
) -> Callable[[Rule], Rule]:
    """Register a rule for layers of these kinds and their subclasses.

    Args:
        kinds: The classes, or the full names of classes of libraries that are not loaded for their
            sake, such as ``"transformers.pytorch_utils.Conv1D"``.
        how: What the rule computes, in a word or two.
        draws: Whether such layers draw random numbers while they train, unless their `dropout` is
            zero, so that the random state of their forward has to be kept.
        borrows: Submodules whose parameters the layers use without calling the submodule.
    """

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, Entry(rule, how, draws, borrows)))
        return rule

    return register


def find_rule(module: nn.Module) -> Rule | None:
    """Return the rule of the layer's kind, or None."""
    entry = find_entry(module)
    return None if entry is None else entry.rule


def may_draw(module: nn.Module) -> bool:
    """Whether a module with parameters may draw random numbers, so that running it again needs its random state."""
    entry = find_entry(module)
    return entry is None or entry.draws


def served_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are served at the calls of a module, by their names in it.

    These are its own ones, and those of submodules that it uses without calling them: of its
    parametrizations, and what its rule borrows.
    """
    entry = find_entry(module)
    parameters = dict(module.named_parameters(recurse=False))
    for name in ("parametrizations", *(() if entry is None else entry.borrows)):
        if name in module._modules:
            borrowed = module.get_submodule(name)
            parameters |= {f"{name}.{local}": p for local, p in borrowed.named_parameters()}
    return parameters


def find_entry(module: nn.Module) -> Entry | None:
    """Return what is registered for the layer's kind, or None.

    A subclass is served by the rule of its parent unless it computes something else, that is, has
    another `forward`.
    """
    if "forward" in vars(module):  # replaced on this one object
        return None
    kind = type(module)
    for parent in kind.__mro__:
        entry = _RULES.get(parent) or _RULES.get(f"{parent.__module__}.{parent.__qualname__}")
        if entry is not None:
            return entry if _computes_like(kind, parent) else None
    return None


def _computes_like(kind: type, parent: type) -> bool:
    return kind is parent or all(
        getattr(kind, name, None) is getattr(parent, name, None)
        for name in ("forward", "_conv_forward", "__call__")
    )


def factors(
    call: Call,
    grads: tuple[Tensor | None, ...],
    batch: Batch,
    batched_dims: int = 2,
    scaled: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the input of a plain layer and the individual gradients with respect to its output.

    Both are in working precision, with the samples in the first dimension, and the gradients in the
    scale of g_i.

    Args:
        call: The call.
        grads: The gradients that arrived.
        batch: The batch.
        batched_dims: Number of dimensions that an input with a batch dimension has at least; one
            fewer is a single sample without one.
        scaled: Whether the gradients are in the scale of g_i, or as they arrived.

    Raises:
        Unsupported: if the first dimension is not that of the samples.
    """
    inputs, grad = call.input, grads[0]
    assert grad is not None
    if inputs.dim() == batched_dims - 1 and batch.size == 1:
        inputs, grad = inputs.unsqueeze(0), grad.unsqueeze(0)
    if inputs.dim() < batched_dims or len(inputs) != batch.size or len(grad) != batch.size:
        raise Unsupported(
            f"its input has shape {list(inputs.shape)}, whose first dimension is not that of the "
            f"{batch.size} samples"
        )
    dtype = working_dtype(inputs, grad)
    return (
        inputs.detach().to(dtype) if inputs.is_floating_point() else inputs.detach(),
        grad.detach().to(dtype) * batch.scale if scaled else grad.detach().to(dtype),
    )
