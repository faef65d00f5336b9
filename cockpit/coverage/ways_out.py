"""What to do about a reason for which a rule does not serve a call."""

from __future__ import annotations

from cockpit.gradients.untrackable import Reason

WAYS_OUT = {
    "whose first dimension is not that of the": (
        "give the layer its input with the samples in the first dimension; what is the same for all "
        "samples, such as positions, with expand(samples, ...)"
    ),
    "samples in their first dimension": (
        "give the layer inputs and outputs with the samples first, such as batch_first=True"
    ),
    "does not depend on that sample alone": (
        "watch it in eval mode, or replace the layer by one that does not couple samples"
    ),
    "modified in place": "give the layer a copy of its input, or modify it out of place",
    "was modified after the forward pass": "leave buffers as they are until the backward pass is over",
    "switched between train and eval mode": "switch after the backward pass",
    "more than one backward pass": "run one backward pass in each with watch(...) block",
    "come through the output of": (
        "call the module that owns it, and return tensors, tuples, lists or dicts"
    ),
    "a part comes another way": "call the module that owns it, rather than use its parameter elsewhere",
    "parameters that its rule misses": (
        "use torch.nn.utils.parametrizations in place of the hooks of torch.nn.utils"
    ),
}
"""By a part of the reason, where this says nothing itself."""

OTHERWISE = (
    "write the layer's forward with PyTorch functions that torch.func.vmap knows, or leave it out; "
    "the other parameters are tracked"
)


def explained(reason: str) -> Reason:
    """Return why something is not tracked, and what to do, which may stand in the reason after a semicolon."""
    why, _, way_out = reason.partition("; ")
    return Reason(why, way_out or _known(reason))


def _known(reason: str) -> str:
    return next((way for part, way in WAYS_OUT.items() if part in reason), OTHERWISE)
