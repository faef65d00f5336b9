"""Faults of what a model is made of: norms, attention, and what lets samples meet."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults import models
from benchmarks.faults.fault import Injected
from benchmarks.faults.models import after, layers, part
from benchmarks.faults.of_signals import ACTIVATIONS, NORMS, middle, put, replace, scale
from benchmarks.faults.of_steps import attentions
from benchmarks.faults.training import Setup


def no_norms(setup: Setup) -> None:
    """Leave the norms out of a deep model."""
    count = {"resnet": {"blocks": 10}, "transformer": {"layers": 6}}[setup.architecture]
    replace(setup, norm=lambda width: nn.Identity(), **count)
    for _, layer in layers(setup.model):
        scale(layer, 2.0)


def no_norms_deep(setup: Setup) -> None:
    """Leave the norms out of a model that is deeper still."""
    count = {"resnet": {"blocks": 12}, "transformer": {"layers": 8}}[setup.architecture]
    replace(setup, norm=lambda width: nn.Identity(), **count)
    for _, layer in layers(setup.model):
        scale(layer, 2.0)


def no_norms_he(setup: Setup) -> None:
    """Leave the norms out, and initialise as He et al. (2015) do, who had no shortcuts in mind."""
    count = {"resnet": {"blocks": 8}, "transformer": {"layers": 5}}[setup.architecture]
    replace(setup, norm=lambda width: nn.Identity(), **count)
    for _, layer in layers(setup.model):
        nn.init.kaiming_normal_(layer.weight)


def no_norms_in_the_blocks(setup: Setup) -> None:
    """Leave the norms out of the blocks of a deep model, and keep the one outside of them."""
    count = {"resnet": {"blocks": 12}, "transformer": {"layers": 8}}[setup.architecture]
    replace(setup, **count)
    names = [name for name, module in setup.model.named_modules() if isinstance(module, NORMS)]
    for name in names:
        if name.startswith("blocks."):
            put(setup.model, name, nn.Identity())
    for _, layer in layers(setup.model):
        nn.init.xavier_normal_(layer.weight)


def after_the_middle(setup: Setup, **more: nn.Module) -> tuple[str, str]:
    """Put a module behind the activation in the middle; return the names of the layer and of the activation."""
    name, _ = middle(setup)
    activation = after(setup.model, name, ACTIVATIONS)
    both = OrderedDict(activation=part(setup.model, activation), **more)
    put(setup.model, activation, nn.Sequential(both))
    return name, activation


def followed(setup: Setup, last: nn.Module) -> Injected:
    """Put a module behind the model."""
    setup.model = nn.Sequential(OrderedDict(net=setup.model, last=last))
    return Injected(("last", "net.head"))


class OverTheBatch(nn.Module):
    """Takes the mean over the batch away: over dimension 0, where 1 was meant."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the deviations."""
        return x - x.mean(0, keepdim=True)


class Reshaped(nn.Module):
    """Reshapes `[N, ...]` where its first two dimensions were to be swapped twice."""

    def forward(self, x: Tensor) -> Tensor:
        """Return an output of the shape of the input, in which the samples are mixed."""
        n, width = x.shape[:2]
        return x.reshape(width, n, *x.shape[2:]).transpose(0, 1)


class OverEverything(nn.Module):
    """Standardises over all samples and features, where each sample was meant."""

    def forward(self, x: Tensor) -> Tensor:
        """Return an output of mean 0 and standard deviation 1."""
        return (x - x.mean()) / (x.std() + 1e-5)


class UnitLength(nn.Module):
    """Divides each sample by its length."""

    def forward(self, x: Tensor) -> Tensor:
        """Return samples of length 1."""
        return F.normalize(x, dim=1)


class BetweenSamples(nn.Module):
    """Attention that takes `[N, W]` for one sequence, and `[N, T, W]` for `[T, N, W]`: sequence first.

    Args:
        width: Number of features, W.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, models.HEADS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features plus what the samples of the batch have for each other."""
        attended, _ = self.attention(x, x, x, need_weights=False)
        return x + attended


def norm_last(setup: Setup) -> Injected:
    """Put a norm without a scale of its own after the last layer."""
    return followed(setup, nn.LayerNorm(setup.data.classes, elementwise_affine=False))


def batch_norm_last(setup: Setup) -> Injected:
    """Normalise the scores over the batch."""
    return followed(setup, nn.BatchNorm1d(setup.data.classes, affine=False))


def root_mean_square_last(setup: Setup) -> Injected:
    """Divide the scores of a sample by the root of the mean of their squares."""
    return followed(setup, nn.RMSNorm(setup.data.classes, elementwise_affine=False))


def unit_length_last(setup: Setup) -> Injected:
    """Scale the scores of every sample to length 1, as for a cosine, without a factor that makes up for it."""
    return followed(setup, UnitLength())


def mean_over_batch(setup: Setup) -> Injected:
    """Centre the scores over the batch in the place of the classes."""
    return followed(setup, OverTheBatch())


def mixed_samples(setup: Setup) -> Injected:
    """Mix the samples by a reshape in the place of a transposition."""
    return followed(setup, Reshaped())


def standardised_together(setup: Setup) -> Injected:
    """Standardise the features in the middle of the model over the batch as well."""
    return Injected(after_the_middle(setup, standardised=OverEverything()))


def attention_between_samples(setup: Setup) -> Injected:
    """Put attention behind the last activation, and forget that its first dimension is the sequence."""
    found = [
        name for name, module in setup.model.named_modules() if isinstance(module, ACTIVATIONS)
    ]
    width = 2 * models.WIDTH if setup.architecture == "transformer" else 64
    both = OrderedDict(activation=part(setup.model, found[-1]), attended=BetweenSamples(width))
    put(setup.model, found[-1], nn.Sequential(both))
    return Injected((found[-1], f"{found[-1]}.attended"))


@torch.no_grad()
def sharp_attention(setup: Setup) -> Injected:
    """Begin with weights of queries and keys that are 12 times as large."""
    return _attention(setup, 12.0)


@torch.no_grad()
def sharper_attention(setup: Setup) -> Injected:
    """Begin with weights of queries and keys that are 6 times as large, in the first block 30 times."""
    _attention(setup, 6.0)
    return _attention(setup, 5.0, 1)


def normal_attention(setup: Setup) -> Injected:
    """Initialise queries, keys and values of the last block with a standard normal distribution."""
    name = attentions(setup.model)[-1]
    nn.init.normal_(part(setup.model, name).in_proj_weight)
    return Injected((name,))


@torch.no_grad()
def scaled_in_the_norms(setup: Setup) -> Injected:
    """Load norms before the attention with weights of 5, which the projections have in them already."""
    names = attentions(setup.model)
    norms = [name.replace("attention", "norm1") for name in names]
    for name in norms:
        part(setup.model, name).weight.fill_(5.0)
    return Injected((*names, *norms))


def _attention(setup: Setup, factor: float, blocks: int | None = None) -> Injected:
    names = attentions(setup.model)[:blocks]
    for name in names:
        weight = part(setup.model, name).in_proj_weight
        weight[: 2 * models.WIDTH] *= factor
    return Injected(names)
