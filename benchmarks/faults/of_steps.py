"""Faults of the optimizer and its steps."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.faults.fault import Change, Injected
from benchmarks.faults.models import layers, part
from benchmarks.faults.training import EVALUATE, Setup, make_optimizer


def diverging(setup: Setup) -> None:
    """Train with a rate that is far too high from the first step on."""
    setup.rate = 10 * setup.edge


def growing(setup: Setup) -> Injected:
    """Multiply the rate at every step by a factor that was meant for an epoch."""
    setup.schedule = lambda step: 1.04**step  # 10 at step 59, 100 at step 118
    return Injected(step=60)


def edge(setup: Setup) -> None:
    """Train with a rate that is a little too high."""
    setup.rate = setup.edge


def warmed_up_too_far(setup: Setup) -> Injected:
    """Warm up within 60 steps, to a rate that is too high."""
    setup.rate = 3 * setup.edge
    setup.schedule = lambda step: min(1.0, (step + 1) / 60)
    return Injected(step=10)


def too_low(setup: Setup) -> None:
    """Train with a 300th of the rate."""
    setup.rate /= 300


def far_too_low(setup: Setup) -> None:
    """Train with a 1000th of the rate."""
    setup.rate /= 1000


def rate_of_zero(setup: Setup) -> None:
    """Train with a rate of 0."""
    setup.schedule = lambda step: 0.0


def rate_divided_to_zero(setup: Setup) -> None:
    """Compute the share of a warm-up with an integer division."""
    setup.schedule = lambda step: float(min(1, step // 1000))


def no_step(setup: Setup) -> None:
    """Never call the optimizer."""
    setup.updates = lambda step: False


def zeroed_before_the_step(setup: Setup) -> None:
    """Zero the gradients between the backward pass and the update."""
    setup.after_backward = lambda model: model.zero_grad(set_to_none=False)


def first_frozen(setup: Setup) -> Injected:
    """Leave the first layer as a fine-tuning script would."""
    name, layer = layers(setup.model)[0]
    layer.requires_grad_(False)
    return Injected((name,))


def middle_frozen(setup: Setup) -> Injected:
    """Freeze a layer in the middle."""
    found = layers(setup.model)
    name, layer = found[len(found) // 2]
    layer.requires_grad_(False)
    return Injected((name,))


def last_not_listed(setup: Setup) -> Injected:
    """Leave the last layer out of the optimizer."""
    head = set(part(setup.model, "head").parameters())
    setup.listed = lambda model: [p for p in model.parameters() if p not in head]
    return Injected(("head",))


def middle_not_listed(setup: Setup) -> Injected:
    """Put a new layer into the model after the optimizer was made."""
    found = layers(setup.model)
    name, layer = found[len(found) // 2]
    out = set(layer.parameters())
    setup.listed = lambda model: [p for p in model.parameters() if p not in out]
    return Injected((name,))


def two_optimizers(setup: Setup) -> Injected:
    """Make a second optimizer for the last layer, which the first one has already."""
    head = list(part(setup.model, "head").parameters())
    setup.optimizers = lambda s: [make_optimizer(s, s.listed(s.model)), make_optimizer(s, head)]
    return Injected(("head",))


def all_twice(setup: Setup) -> None:
    """Make two optimizers for the whole model."""
    setup.optimizers = lambda s: [make_optimizer(s, s.listed(s.model)) for _ in range(2)]


def never_zeroed(setup: Setup) -> None:
    """Forget to zero the gradients."""
    setup.zeroes = lambda step: False


def zeroed_at_epochs(setup: Setup) -> None:
    """Zero the gradients once an epoch."""
    setup.zeroes = lambda step: step % 60 == 0


def evaluating(setup: Setup) -> None:
    """Train in evaluation mode."""
    setup.prepare = lambda model, step: model.eval()


def evaluating_after_the_first_look(setup: Setup) -> Injected:
    """Stay in evaluation mode after the first look at the validation data."""
    setup.prepare = lambda model, step: model.train(step < EVALUATE)
    return Injected(step=EVALUATE)


def batch_of(size: int) -> Change:
    """Return the fault of a batch of another size."""

    def change(setup: Setup) -> None:
        setup.batch_size = size

    return change


def decay_decoupled(setup: Setup) -> None:
    """Decay the weights so that they halve within a few steps."""
    _decay(setup, 0.1)


def decay_strong(setup: Setup) -> None:
    """Decay the weights by 3 % in a step."""
    _decay(setup, 0.03)


def _decay(setup: Setup, share: float) -> None:
    """Take a share of the weights away in a step."""
    effective = setup.rate * (10 if setup.optimizer == "momentum" else 1)
    setup.weight_decay = share / effective


def bad_batch(setup: Setup) -> Injected:
    """Train on one batch whose inputs are 10 times as large, or whose labels are all the same."""
    at = 133
    if setup.architecture == "transformer":
        setup.targets = lambda step, y: torch.zeros_like(y) if at <= step < at + 3 else y
        setup.betas = 0.9, 0.95
    else:
        setup.inputs = lambda step, x: 10 * x if at <= step < at + 3 else x
    return Injected(step=at)


def rate_bump(setup: Setup) -> Injected:
    """Take three steps at a rate that is far too high."""
    at, factor = 147, 2 * setup.edge / setup.rate
    setup.schedule = lambda step: factor if at <= step < at + 3 else 1.0
    return Injected(step=at)


def bfloat16(setup: Setup) -> None:
    """Keep the parameters in 16 bits, and train with a tenth of the rate."""
    _low_precision(setup, torch.bfloat16)


def float16(setup: Setup) -> None:
    """Keep the parameters in half precision, and train with a tenth of the rate."""
    _low_precision(setup, torch.float16)


def _low_precision(setup: Setup, dtype: torch.dtype) -> None:
    setup.model.to(dtype)
    setup.rate /= 10
    if setup.data.x.is_floating_point():
        setup.data.each_input(lambda x: x.to(dtype))
    plain = setup.losses
    setup.losses = lambda outputs, y: plain(outputs.float(), y)


def clipped_to(limit: float) -> Change:
    """Return the fault of a gradient that is clipped to a norm."""

    def change(setup: Setup) -> None:
        setup.clip = limit

    return change


def stopped_early(setup: Setup) -> Injected:
    """Divide the rate by 10 every 20 steps, which were meant to be epochs."""
    setup.schedule = lambda step: 0.1 ** (step // 20)
    return Injected(step=40)


def decayed_at_once(setup: Setup) -> Injected:
    """Multiply the rate by 0.9 at every step, not at every epoch."""
    setup.schedule = lambda step: 0.9**step
    return Injected(step=30)


def attention_rates(setup: Setup, factor: float) -> Injected:
    """Train the projections of the attention with a rate of their own."""
    setup.own_rates = lambda name: factor if "in_proj" in name else 1.0
    return Injected(attentions(setup.model))


def attentions(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the attention modules."""
    return tuple(n for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention))
