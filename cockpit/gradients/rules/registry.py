"""Which rule serves which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cockpit.errors import Unsupported
from cockpit.gradients.batch import Batch, working_dtype
from cockpit.gradients.handle import IndividualGradients


@dataclass
class Call:
    """One call of a module in the forward pass.

    Args:
        module: The module.
        args: Its positional arguments. Tensors are those of the forward pass, not copies.
        kwargs: Its keyword arguments.
        training: Whether the module was in training mode.
        versions: How often each tensor among the arguments had been modified in place by then.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool
    versions: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Note a call that has just been made."""
        call = cls(module, args, kwargs, module.training, ())
        call.versions = call.current_versions()
        return call

    def current_versions(self) -> tuple[int, ...]:
        """Return how often each tensor among the arguments has been modified in place by now."""
        values = (*self.args, *self.kwargs.values())
        return tuple(
            value._version
            for value in values
            if isinstance(value, Tensor) and not value.is_inference()
        )

    @property
    def input(self) -> Tensor:
        """The one input of a plain layer."""
        values = [*self.args, *self.kwargs.values()]
        if not values:
            raise Unsupported(
                "its input is not known; BackPACK remembers only that of a module's last call"
            )
        if not isinstance(values[0], Tensor):
            raise Unsupported("its first argument is no tensor")
        return values[0]


Rule = Callable[[Call, "tuple[Tensor | None, ...]", Batch], Mapping[str, IndividualGradients]]
"""From a call, the gradients with respect to the tensors in its output and the batch, to the
individual gradients of the module's own parameters, by their local names. Raises `Unsupported` with
a short reason where it cannot serve a call."""

_RULES: dict[type[nn.Module], Rule] = {}


def rule_for(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register a rule for layers of these kinds and their subclasses."""

    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def find_rule(module: nn.Module) -> Rule | None:
    """Return the rule of the layer's kind, or None.

    A subclass is served by the rule of its parent unless it computes something else, that is, has
    another `forward`.
    """
    if "forward" in vars(module):  # replaced on this one object
        return None
    kind = type(module)
    for parent in kind.__mro__:
        rule = _RULES.get(parent)
        if rule is not None:
            return rule if _computes_like(kind, parent) else None
    return None


def _computes_like(kind: type, parent: type) -> bool:
    return all(
        getattr(kind, name, None) is getattr(parent, name, None)
        for name in ("forward", "_conv_forward", "__call__")
    )


def factors(
    call: Call, grads: tuple[Tensor | None, ...], batch: Batch, batched_dims: int = 2
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
        grad.detach().to(dtype) * batch.scale,
    )
