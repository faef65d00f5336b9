"""Small trainings in float64, with everything about them computed by brute force beside the cockpit.

The truth is computed without any code of the package: gradients by a loop over samples, updates by copying parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit import Cockpit
from cockpit.quantities import Quantity


class Encoder(nn.Module):
    """A transformer encoder without dropout, on token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.tokens(x)).mean(1))


def mlp() -> tuple[nn.Module, Callable[[int], Tensor]]:
    model = nn.Sequential(
        nn.Linear(6, 7), nn.ReLU(inplace=True), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)
    )
    return model, lambda n: torch.randn(n, 6, dtype=torch.float64)


def cnn() -> tuple[nn.Module, Callable[[int], Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return model, lambda n: torch.randn(n, 2, 8, 8, dtype=torch.float64)


def transformer() -> tuple[nn.Module, Callable[[int], Tensor]]:
    return Encoder(), lambda n: torch.randint(11, (n, 5))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


Outputs = dict[str, tuple[str, Tensor]]
"""Class and output of every module without submodules, by name."""


@dataclass
class Truth:
    """One step, by brute force."""

    names: list[str]
    gradients: dict[str, Tensor]  # [N, *shape] each
    losses: Tensor  # [N]
    loss: Tensor  # as it is backpropagated
    before: dict[str, Tensor]
    start: dict[str, Tensor]
    outputs: Outputs = field(default_factory=dict)
    attention: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # logits, weights
    grad: dict[str, Tensor] = field(default_factory=dict)  # what the optimizer gets
    lr: float = 0.0
    adam: dict[str, Tensor] | None = None  # bias-corrected second moments after the step
    after: dict[str, Tensor] = field(default_factory=dict)
    next: Truth | None = None

    @property
    def n(self) -> int:
        return len(self.losses)

    @property
    def G(self) -> Tensor:
        """All individual gradients, [N, D]."""
        return torch.cat([self.gradients[name].flatten(1) for name in self.names], dim=1)

    @property
    def g(self) -> Tensor:
        return self.G.mean(0)

    @property
    def d(self) -> Tensor:
        """The update, [D]."""
        return torch.cat([(self.after[n] - self.before[n]).flatten() for n in self.names])

    def per_parameter(self, function: Callable[[str], Tensor]) -> list[float]:
        return [float(function(name)) for name in self.names]


def individual_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One backward pass for each sample."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    rows = []
    for i in range(len(y)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, named.values(), strict=True)
            ]
        )
    return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(named)}


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def listen(model: nn.Module, outputs: Outputs) -> None:
    """Keep copies of the outputs of the modules that have no submodules."""

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            outputs[name] = type(module).__name__, output.detach().clone()

        return keep

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))


@torch.no_grad()
def attention(model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the logits of the encoder's attention, and the weights as the module returns them, [N, heads, T, T]."""
    if not isinstance(model, Encoder):
        return {}
    module, h = model.block.self_attn, model.tokens(x)
    weights = module(h, h, h, average_attn_weights=False)[1]
    q, k, _ = (h @ module.in_proj_weight.T + module.in_proj_bias).chunk(3, dim=-1)
    logits = [
        q[..., 4 * i : 4 * i + 4] @ k[..., 4 * i : 4 * i + 4].transpose(1, 2) / 2 for i in range(2)
    ]
    return {"block.self_attn": (torch.stack(logits, dim=1), weights)}


def train(
    kind: str,
    quantities: Iterable[Quantity],
    *,
    optimizer: str = "sgd",
    reduction: str = "mean",
    steps: int = 4,
    batch_size: int = 6,
    seed: int = 0,
    optimizer_known: bool = True,
    seed_of_samples: int = 0,
    **arguments: Any,
) -> tuple[list[Truth], dict[int, dict[str, Any]], Cockpit]:
    """Train a small model with the cockpit, and return the truth of each step beside its output."""
    torch.manual_seed(seed)
    model, inputs = MODELS[kind]()
    model.double()
    opt = OPTIMIZERS[optimizer](model.parameters())
    watch = Cockpit(
        model,
        quantities,
        optimizer=opt if optimizer_known else None,
        seed=seed_of_samples,
        **arguments,
    )
    start, truths = copies(model), []
    outputs: Outputs = {}
    listen(model, outputs)
    for step in range(steps):
        x, y = inputs(batch_size), torch.randint(3, (batch_size,))
        opt.zero_grad()
        weights, gradients = attention(model, x), individual_gradients(model, x, y)
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = losses.mean() if reduction == "mean" else losses.sum()
        truth = Truth(
            list(start),
            gradients,
            losses.detach(),
            loss.detach(),
            copies(model),
            start,
            dict(outputs),
            weights,
        )
        with watch(step, loss=loss, individual_losses=losses):
            loss.backward()
        truth.grad = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        opt.step()
        truth.after = copies(model)
        truth.lr = opt.param_groups[0]["lr"]
        if isinstance(opt, torch.optim.AdamW):
            named = model.named_parameters()
            truth.adam = {
                n: opt.state[p]["exp_avg_sq"] / (1 - 0.999 ** (step + 1)) for n, p in named
            }
        if truths:
            truths[-1].next = truth
        truths.append(truth)
    watch.close()
    return truths, watch.get_output(), watch
