"""One file per kind of layer, each with a rule from a call of the layer to the individual gradients of its parameters."""

from cockpit.gradients.rules import convolution, embedding, linear, normalization
from cockpit.gradients.rules.generic import generic
from cockpit.gradients.rules.registry import Call, Rule, find_rule, rule_for

__all__ = [
    "Call",
    "Rule",
    "convolution",
    "embedding",
    "find_rule",
    "generic",
    "linear",
    "normalization",
    "rule_for",
]
