"""Faults of the optimizer and its steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

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


def second_stage(setup: Setup) -> Injected:
    """Begin a second stage at step 70, with a rate that was meant for another model."""
    at, factor = 70, 4 * setup.edge / setup.rate
    setup.schedule = lambda step: factor if step >= at else 1.0
    return Injected(step=at)


def edge(setup: Setup) -> None:
    """Train with a rate that is a little too high."""
    setup.rate = setup.edge


def warmed_up_too_far(setup: Setup) -> Injected:
    """Warm up within 60 steps, to a rate that is too high."""
    setup.rate = 3 * setup.edge
    setup.schedule = lambda step: min(1.0, (step + 1) / 60)
    return Injected(step=10)


def restarts(setup: Setup) -> None:
    """Lower the rate along a cosine, with a restart every 40 steps at a rate that is too high."""
    setup.rate = 2 * setup.edge
    setup.schedule = lambda step: (1 + math.cos(math.pi * (step % 40) / 40)) / 2


def too_low(setup: Setup) -> None:
    """Train with a 300th of the rate."""
    setup.rate /= 300


def far_too_low(setup: Setup) -> None:
    """Train with a 1000th of the rate."""
    setup.rate /= 1000


def warming_up(setup: Setup) -> None:
    """Warm up for 10,000 steps, as many as a large model needs."""
    setup.schedule = lambda step: (step + 1) / 10_000


def rate_of_zero(setup: Setup) -> None:
    """Train with a rate of 0."""
    setup.schedule = lambda step: 0.0


def rate_divided_to_zero(setup: Setup) -> None:
    """Compute the share of a warm-up with an integer division."""
    setup.schedule = lambda step: float(min(1, step // 1000))


def decayed_to_zero(setup: Setup) -> Injected:
    """Lower the rate to 0 within 40 steps, the length of another training."""
    at = 40
    setup.schedule = lambda step: max(0.0, 1 - step / at)
    return Injected(step=at)


def no_step(setup: Setup) -> None:
    """Never call the optimizer."""
    setup.updates = lambda step: False


def zeroed_before_the_step(setup: Setup) -> None:
    """Zero the gradients between the backward pass and the update."""
    setup.after_backward = lambda model: model.zero_grad(set_to_none=False)


def loaded_at_every_step(setup: Setup) -> None:
    """Load the checkpoint to begin with inside of the loop, not before it."""
    checkpoint = {name: value.clone() for name, value in setup.model.state_dict().items()}

    def prepare(model: nn.Module, step: int) -> None:
        model.load_state_dict(checkpoint)
        model.train()

    setup.prepare = prepare


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


def all_but_the_head_frozen(setup: Setup) -> Injected:
    """Freeze everything but the last layer, as if the rest had been trained before."""
    setup.model.requires_grad_(False)
    part(setup.model, "head").requires_grad_(True)
    return Injected(tuple(name for name in owners(setup.model) if name != "head"))


def owners(model: nn.Module) -> list[str]:
    """Return the names of the modules that have parameters of their own."""
    return [
        n for n, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None
    ]


def last_not_listed(setup: Setup) -> Injected:
    """Leave the last layer out of the optimizer."""
    setup.listed = body
    return Injected(("head",))


def middle_not_listed(setup: Setup) -> Injected:
    """Put a new layer into the model after the optimizer was made."""
    found = layers(setup.model)
    name, layer = found[len(found) // 2]
    out = set(layer.parameters())
    setup.listed = lambda model: [p for p in model.parameters() if p not in out]
    return Injected((name,))


def vectors_not_listed(setup: Setup) -> Injected:
    """Make the group of what should decay, and forget that of the biases and norms, which should not."""
    setup.listed = lambda model: [p for p in model.parameters() if p.dim() > 1]
    return Injected(tuple(name for name, p in setup.model.named_parameters() if p.dim() == 1))


def two_optimizers(setup: Setup) -> Injected:
    """Make a second optimizer for the last layer, which the first one has already."""
    head = list(part(setup.model, "head").parameters())
    setup.optimizers = lambda s: [make_optimizer(s, s.listed(s.model)), make_optimizer(s, head)]
    return Injected(("head",))


def all_twice(setup: Setup) -> None:
    """Make two optimizers for the whole model."""
    setup.optimizers = lambda s: [make_optimizer(s, s.listed(s.model)) for _ in range(2)]


def features_twice(setup: Setup) -> Injected:
    """Make a second optimizer, of a tenth of the rate, for what comes before the last layer."""
    features = body(setup.model)

    def both(s: Setup) -> list[torch.optim.Optimizer]:
        slow = make_optimizer(s, features)
        for group in slow.param_groups:
            group["lr"] *= 0.1
        return [make_optimizer(s, s.listed(s.model)), slow]

    setup.optimizers = both
    return Injected(tuple(name for name in owners(setup.model) if name != "head"))


def body(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of all layers but the last."""
    head = set(part(model, "head").parameters())
    return [p for p in model.parameters() if p not in head]


def never_zeroed(setup: Setup) -> None:
    """Forget to zero the gradients."""
    setup.zeroes = lambda step: False


def zeroed_at_epochs(setup: Setup) -> None:
    """Zero the gradients once an epoch."""
    setup.zeroes = lambda step: step % 60 == 0


def head_zeroed(setup: Setup) -> Injected:
    """Zero the gradients of the last layer only, whose optimizer is another one."""
    setup.zeroes = lambda step: False

    def prepare(model: nn.Module, step: int) -> None:
        model.train()
        part(model, "head").zero_grad()

    setup.prepare = prepare
    return Injected(tuple(name for name in owners(setup.model) if name != "head"))


def evaluating(setup: Setup) -> None:
    """Train in evaluation mode."""
    setup.prepare = lambda model, step: model.eval()


def evaluating_after_the_first_look(setup: Setup) -> Injected:
    """Stay in evaluation mode after the first look at the validation data."""
    setup.prepare = lambda model, step: model.train(step < EVALUATE)
    return Injected(step=EVALUATE)


def blocks_evaluating(setup: Setup) -> Injected:
    """Put the blocks into evaluation mode, as if they had been trained before, and the rest into training."""

    def prepare(model: nn.Module, step: int) -> None:
        model.train()
        part(model, "blocks").eval()

    setup.prepare = prepare
    return Injected(("blocks",))


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


def penalty(setup: Setup) -> None:
    """Add a penalty on the squares of the weights to the gradient, 0.5 where 0.0005 was meant."""
    setup.weight_decay, setup.decoupled = 0.5, False


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


def other_coding(setup: Setup) -> Injected:
    """Train on four batches whose targets are coded in another way: by the next class, or in another unit."""
    at, classes = 127, setup.data.classes

    def targets(step: int, y: Tensor) -> Tensor:
        if not at <= step < at + 4:
            return y
        return (y + 1) % classes if classes else 4 * y

    setup.targets = targets
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


class InHalf(nn.Module):
    """A layer in 16 bits between others in 32."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer returns, in 32 bits."""
        return self.layer(x.to(torch.bfloat16)).float()


def partly_bfloat16(setup: Setup) -> Injected:
    """Keep the first half of the layers in 16 bits, and train with a tenth of the rate."""
    found = layers(setup.model)
    chosen = found[: (len(found) + 1) // 2]
    for name, layer in chosen:
        setattr(setup.model, name, InHalf(layer))
    setup.rate /= 10
    return Injected(tuple(name for name, _ in chosen))


def clipped_to(limit: float) -> Change:
    """Return the fault of a gradient that is clipped to a norm."""

    def change(setup: Setup) -> None:
        setup.clip = limit

    return change


def clipped_by_value(setup: Setup) -> None:
    """Clip every element of the gradient to 1e-4."""
    setup.after_backward = lambda model: nn.utils.clip_grad_value_(model.parameters(), 1e-4)


def stopped_early(setup: Setup) -> Injected:
    """Divide the rate by 10 every 20 steps, which were meant to be epochs."""
    setup.schedule = lambda step: 0.1 ** (step // 20)
    return Injected(step=40)


def decayed_at_once(setup: Setup) -> Injected:
    """Multiply the rate by 0.9 at every step, not at every epoch."""
    setup.schedule = lambda step: 0.9**step
    return Injected(step=30)


class Plateau:
    """Halves the rate where a loss is not a new low, nor any of the two before it."""

    def __init__(self) -> None:
        self.factor, self.best, self.waited = 1.0, math.inf, 0

    def seen(self, losses: Tensor) -> Tensor:
        """Return the mean of the losses, and count it."""
        loss = losses.mean()
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, float(loss.detach()))
        if self.waited == 3:
            self.factor, self.waited = self.factor / 2, 0
        return loss


def plateau_of_steps(setup: Setup) -> Injected:
    """Halve the rate where the loss is at no new low for three steps, which were meant to be epochs."""
    plateau = Plateau()
    setup.reduce = plateau.seen
    setup.schedule = lambda step: plateau.factor
    return Injected(step=30)


def attention_rates(setup: Setup, factor: float) -> Injected:
    """Train the projections of the attention with a rate of their own."""
    setup.own_rates = lambda name: factor if "in_proj" in name else 1.0
    return Injected(attentions(setup.model))


def grown(setup: Setup) -> Injected:
    """Let the weights of queries, keys and values decay with the wrong sign: they grow by 1 % in a step."""
    names = attentions(setup.model)

    @torch.no_grad()
    def prepare(model: nn.Module, step: int) -> None:
        model.train()
        for name in names:
            part(model, name).in_proj_weight.mul_(1.01)

    setup.prepare = prepare
    return Injected(names)


def attentions(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the attention modules."""
    return tuple(n for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention))
