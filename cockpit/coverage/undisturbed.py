"""Running a model without leaving a trace in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from cockpit.gradients.randomness import RandomState, accelerators


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Put buffers and the states of random number generators back at the end."""
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  # the global generator
    try:
        with RandomState.capture(*accelerators(model.parameters())).restored():
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        for module, name, buffer, value in buffers:
            if module._buffers.get(name) is not buffer:
                module._buffers[name] = buffer
            with torch.no_grad():
                buffer.copy_(value)
