"""One backward pass whose individual gradients, squared, are a sample of the GGN's diagonal.

The GGN of a loss is Σ_n J_nᵀ H_n J_n, with J_n the Jacobian of the outputs of sample n and H_n the
loss's Hessian with respect to them. If E[s sᵀ] = H, with independent s_n, then J_nᵀ s_n is what an
individual gradient is of the loss, with s in place of the loss's gradient at the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cockpit.curvature.heads import Head, blocks_of, closed_forms
from cockpit.curvature.portions import Source
from cockpit.errors import Unsupported


def sampled_backward(
    loss: Tensor,
    outputs: Tensor | None,
    parameters: Sequence[Tensor],
    generator: Source,
) -> list[Tensor | None]:
    """Send s, drawn with E[s sᵀ] = H, backwards from the outputs; hooks on the layers see J_nᵀ s_n in the making.

    Args:
        loss: The loss, in its graph, which is kept.
        outputs: The model's outputs, in the graph, where they are known.
        parameters: Where the pass ends.
        generator: Where the random numbers come from.

    Returns:
        What arrives at the parameters; None where nothing does.

    Raises:
        Unsupported: if the loss has no GGN that can be had.
    """
    heads = closed_forms(loss, outputs)
    if heads is not None:
        with ExitStack() as hooks:
            for head in heads:
                hook = head.node.register_hook(partial(_replace, head, generator))
                hooks.callback(hook.remove)
            return _pull_back(loss, None, parameters)
    if outputs is None:
        raise Unsupported(
            "the loss is no cross-entropy or squared error that is seen in the graph, and the "
            "model's outputs are not known; give them as info={'outputs': ...}"
        )
    sample = blocks_of(loss, outputs, generator).sample(generator)
    return _pull_back(outputs, sample, parameters)


def other_leaves(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the leaves of a graph that are no parameters: inputs that require a gradient.

    A module's full backward hooks fire when the gradient reaches its inputs. Where only the
    parameters are asked for, it never reaches those of the first layers.
    """
    known = {id(parameter) for parameter in parameters}
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            found[id(leaf)] = leaf
        stack += [parent for parent, _ in node.next_functions]
    return list(found.values())


def _replace(
    head: Head, generator: Source, grad_inputs: Any, grad_outputs: Any
) -> tuple[Tensor | None, ...]:
    (slope, *others), (arrived, *_) = grad_inputs, grad_outputs
    sample = head.sample(arrived, generator).to(slope)
    return (sample, *(None for _ in others))


def _pull_back(
    outputs: Tensor, sample: Tensor | None, parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    return list(
        torch.autograd.grad(outputs, parameters, sample, retain_graph=True, allow_unused=True)
    )
