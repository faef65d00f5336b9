"""Which rule serves a module, said before any data is seen."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from cockpit.gradients.rules.parametrized import computes_weights
from cockpit.gradients.rules.registry import find_entry


class Service(NamedTuple):
    """How a module's individual gradients are got.

    Args:
        rule: Name of the rule.
        how: What is computed: in closed form, stored densely, or by running the module again; "pulled
            back" where a weight is computed from the parameters.
    """

    rule: str
    how: str

    def __str__(self) -> str:
        return f"{self.how} ({self.rule})"


def describe(module: nn.Module) -> Service:
    """Return the rule that serves a module's parameters, and what it computes."""
    entry = find_entry(module)
    service = Service("generic", "replayed")
    if entry is not None:
        service = Service(entry.rule.__name__, entry.how)
    return (
        service._replace(how=f"{service.how}, pulled back") if computes_weights(module) else service
    )


def serving(module: nn.Module) -> str:
    """Return in one phrase what serves a module, such as ``"closed form (linear)"``."""
    return str(describe(module))
