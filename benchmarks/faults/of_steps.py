"""Faults of the optimizer and its steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from benchmarks.faults.fault import Change, Injected
from benchmarks.faults.models import layers, part
from benchmarks.faults.training import EVALUATE, Setup, make_optimizer


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


def accumulated_for_too_long(setup: Setup) -> None:
    """Accumulate the gradients of 1,000 batches for an update: more than there are."""
    setup.zeroes = lambda step: step % 1000 == 0
    setup.updates = lambda step: step % 1000 == 999


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


def head_frozen(setup: Setup) -> Injected:
    """Freeze the last layer, and train the rest: the wrong way round."""
    part(setup.model, "head").requires_grad_(False)
    return Injected(("head",))


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


def stem_not_listed(setup: Setup) -> Injected:
    """List groups for the later layers, each by its name, and forget the first one, or the characters."""
    stem = owners(setup.model)[0]
    out = set(part(setup.model, stem).parameters())
    setup.listed = lambda model: [p for p in model.parameters() if p not in out]
    return Injected((stem,))


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


def stem_twice(setup: Setup) -> Injected:
    """Make a second optimizer, Adam with its default rate, for the first layer, as some do for embeddings."""
    stem = owners(setup.model)[0]
    own = list(part(setup.model, stem).parameters())
    setup.optimizers = lambda s: [make_optimizer(s, s.listed(s.model)), torch.optim.Adam(own)]
    return Injected((stem,))


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


def zeroed_every_fourth(setup: Setup) -> None:
    """Zero the gradients at every fourth step, to accumulate them, but update the weights at every step."""
    setup.zeroes = lambda step: step % 4 == 0


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


def evaluating_for_half_of_the_time(setup: Setup) -> Injected:
    """Call ``train()`` every 100 steps only, and look at the validation data halfway between."""
    setup.prepare = lambda model, step: model.train(step % 100 < 50)
    return Injected(step=50)


def batch_of(size: int) -> Change:
    """Return the fault of a batch of another size."""

    def change(setup: Setup) -> None:
        setup.batch_size = size

    return change


def batch_shared(setup: Setup) -> None:
    """Share the batch among eight devices, of which there is one; no batch has less than two samples."""
    setup.batch_size = max(2, setup.batch_size // 8)


def decay_decoupled(setup: Setup) -> None:
    """Decay the weights so that they halve within a few steps."""
    _decay(setup, 0.1)


def decay_strong(setup: Setup) -> None:
    """Decay the weights by 3 % in a step."""
    _decay(setup, 0.03)


def penalty(setup: Setup) -> None:
    """Add a penalty on the squares of the weights to the gradient, 0.5 where 0.0005 was meant."""
    setup.weight_decay, setup.decoupled = 0.5, False


def decay_of_large_models(setup: Setup) -> None:
    """Take the decay of large models, 0.1, which is meant for AdamW, as a penalty in the gradient."""
    setup.weight_decay, setup.decoupled = 0.1, False


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


def noise_for_inputs(setup: Setup) -> Injected:
    """Train on three batches whose inputs are noise, as if their file was damaged."""
    at = 112

    def inputs(step: int, x: Tensor) -> Tensor:
        if not at <= step < at + 3:
            return x
        draw = torch.Generator().manual_seed(step)
        if x.is_floating_point():
            return 3 * torch.randn(x.shape, generator=draw)
        return torch.randint(setup.data.classes, x.shape, generator=draw)

    setup.inputs = inputs
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


def bfloat16_annealed(setup: Setup) -> None:
    """Keep the parameters in 16 bits, and lower the rate along a cosine from a third of it to 0."""
    _low_precision(setup, torch.bfloat16, slower=3)
    setup.schedule = lambda step: (1 + math.cos(math.pi * step / setup.steps)) / 2


def _low_precision(setup: Setup, dtype: torch.dtype, slower: float = 10) -> None:
    setup.model.to(dtype)
    setup.rate /= slower
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


def clipped_by_value(limit: float) -> Change:
    """Return the fault of a gradient whose elements are clipped."""

    def change(setup: Setup) -> None:
        setup.after_backward = lambda model: nn.utils.clip_grad_value_(model.parameters(), limit)

    return change


def clipped_one_by_one(setup: Setup) -> None:
    """Clip the gradient of every parameter by itself, to a norm of 0.01."""

    def clip(model: nn.Module) -> None:
        for parameter in model.parameters():
            nn.utils.clip_grad_norm_(parameter, 0.01)

    setup.after_backward = clip


def attention_rates(setup: Setup, factor: float) -> Injected:
    """Train the projections of the attention with a rate of their own."""
    setup.own_rates = lambda name: factor if "in_proj" in name else 1.0
    return Injected(attentions(setup.model))


def attention_by_adam(setup: Setup) -> Injected:
    """Give the projections of the attention an optimizer of their own, Adam, with a rate as of plain SGD."""

    def both(s: Setup) -> list[torch.optim.Optimizer]:
        own = [p for name, p in s.model.named_parameters() if "in_proj" in name]
        others = [p for name, p in s.model.named_parameters() if "in_proj" not in name]
        return [make_optimizer(s, others), torch.optim.Adam(own, lr=0.03)]

    setup.optimizers = both
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
