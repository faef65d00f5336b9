"""Rules, one file per kind of layer: from a call of it to the individual gradients of its parameters."""

from cockpit.gradients.rules import attention, convolution, embedding, linear, normalization
from cockpit.gradients.rules.generic import generic
from cockpit.gradients.rules.normalization import couples_samples
from cockpit.gradients.rules.registry import Call, Rule, find_rule, rule_for

__all__ = [
    "Call",
    "Rule",
    "attention",
    "convolution",
    "couples_samples",
    "embedding",
    "find_rule",
    "generic",
    "linear",
    "normalization",
    "rule_for",
]
