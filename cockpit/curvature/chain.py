"""A chain of modules, each at the input that it gets from the one before."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from cockpit.curvature.linearised import Linearised
from cockpit.errors import Unsupported


def chain(model: nn.Module, inputs: Tensor) -> list[tuple[str, Linearised]]:
    """Run the layers of a chain one by one, within `unnoticed`.

    Args:
        model: A layer, or an `nn.Sequential` of layers, which may be nested.
        inputs: Its input, `[N, ...]`.

    Returns:
        For each layer the prefix of its parameters' names, ``"2."``, and the layer at its input. What
        is within a module of another kind is not looked into.

    Raises:
        Unsupported: if a parameter serves several layers.
    """
    refuse_shared(model)
    links = []
    for prefix, module in _layers(model, ""):
        link = Linearised(module, inputs)
        links.append((prefix, link))
        inputs = link.output.detach()
    return links


def refuse_shared(model: nn.Module) -> None:
    """Refuse a model in which a parameter has several names.

    Raises:
        Unsupported: if there is one.
    """
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name:
            raise Unsupported(
                f"{first} and {name} are one parameter, which several layers use; "
                "block_products(kind='hessian') and kind='ggn' serve these, too"
            )


def _layers(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for name, child in module._modules.items():
            if child is not None:
                yield from _layers(child, f"{prefix}{name}.")
    else:
        yield prefix, module
