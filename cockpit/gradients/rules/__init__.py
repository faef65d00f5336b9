"""Rules, one file per kind of layer: from a call of it to the individual gradients of its parameters."""

from cockpit.gradients.rules import (
    activation,
    attention,
    bilinear,
    convolution,
    embedding,
    embedding_bag,
    linear,
    normalization,
    recurrent,
    transposed_linear,
)
from cockpit.gradients.rules.describe import describe, serving
from cockpit.gradients.rules.generic import generic
from cockpit.gradients.rules.normalization import couples_samples
from cockpit.gradients.rules.parametrized import serve
from cockpit.gradients.rules.registry import Call, Rule, find_rule, rule_for

__all__ = [
    "Call",
    "Rule",
    "activation",
    "attention",
    "bilinear",
    "convolution",
    "couples_samples",
    "describe",
    "embedding",
    "embedding_bag",
    "find_rule",
    "generic",
    "linear",
    "normalization",
    "recurrent",
    "rule_for",
    "serve",
    "serving",
    "transposed_linear",
]
