"""Brute force for whole models, without a line of the package: individual gradients, Hessian products, the GGN."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from models.zoo import Batch, Specimen, build
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Gradients = dict[str, Tensor]
"""By the parameter's name; individual ones `[N, *shape]`."""


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradients(value: Tensor, parameters: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """Return the gradient of a number, zeros where there is none, and keep the graph."""
    found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, **options)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def individual_gradients(model: nn.Module, losses: Tensor) -> Gradients:
    """Backpropagate the losses one at a time, on the very graph that the training uses."""
    named = trained(model)
    rows = [gradients(loss, list(named.values())) for loss in losses]
    return {
        name: torch.stack(column)
        for name, column in zip(named, zip(*rows, strict=True), strict=True)
    }


# -- what the modules do --------------------------------------------------------------------------


@dataclass
class Calls:
    """The calls of a model's modules in one forward pass, and what arrives at their outputs later."""

    modules: list[tuple[str, nn.Module, tuple[Any, ...]]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)  # copies
    arrived: dict[int, Tensor] = field(default_factory=dict)  # by the number of the call

    def listen(self, model: nn.Module) -> Callable[[], None]:
        """Put hooks on all modules; the function that is returned takes them off."""
        hooks = [m.register_forward_hook(self._hook(name)) for name, m in model.named_modules()]

        def stop() -> None:
            for hook in hooks:
                hook.remove()

        return stop

    def _hook(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            number = len(self.modules)
            self.modules.append((name, module, args))
            self.outputs.append(copied(output))
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(lambda grad: self.arrived.update({number: grad}))

        return keep


def copied(output: Any) -> Any:
    """Return copies of the tensors: a later module may overwrite them."""
    if isinstance(output, Tensor):
        return output.detach().clone()
    return tuple(copied(value) for value in output) if isinstance(output, tuple | list) else output


def shares(model: nn.Module, calls: Calls, loss: Tensor, n: int) -> Gradients:
    """N × what flows through a sample's slice of each layer's output: what is meant where samples are coupled."""
    gradients(loss, list(trained(model).values()))
    found: dict[str, Tensor] = {}
    for number, (name, module, args) in enumerate(calls.modules):
        if not any(True for _ in module.parameters(recurse=False)):
            continue
        layer, upstream = copy.deepcopy(module), calls.arrived[number]
        for m in layer.modules():
            m._forward_hooks.clear()
        output = layer(*(arg.detach() for arg in args))
        rows = []
        for i in range(n):
            masked = torch.zeros_like(upstream)
            masked[i] = n * upstream[i]
            own = list(layer.parameters(recurse=False))
            rows.append(torch.autograd.grad(output, own, masked, retain_graph=True))
        for (local, _), column in zip(
            layer.named_parameters(recurse=False), zip(*rows, strict=True), strict=True
        ):
            total = torch.stack(column)
            key = f"{name}.{local}" if name else local
            found[key] = found[key] + total if key in found else total
    return {name: found[name] for name in trained(model)}


# -- curvature ------------------------------------------------------------------------------------


class Twin:
    """The model once more, without a hook on it, at the same point, mini-batch, and random state.

    Args:
        name: Name of the specimen.
        model: The model whose parameters and buffers are taken.
        batch: The mini-batch.
        state: The global random state in front of the forward pass, for the same dropout masks.
    """

    def __init__(self, name: str, model: nn.Module, batch: Batch, state: Tensor) -> None:
        with torch.random.fork_rng():
            self.specimen: Specimen = build(name)
        self.name, self.model = name, self.specimen.model
        self.batch, self._state = batch, state
        self.model.load_state_dict(model.state_dict())
        self.parameters = list(trained(self.model).values())
        self.sizes = [p.numel() for p in self.parameters]

    def again(self) -> Twin:
        return Twin(self.name, self.model, self.batch, self._state)

    def outputs(self) -> Tensor:
        with torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH):
            torch.set_rng_state(self._state)
            return self.specimen.call(self.model, self.batch)[1]

    def losses(self, z: Tensor) -> Tensor:
        return self.specimen.losses(z, self.batch)

    def loss(self) -> Tensor:
        return self.losses(self.outputs()).mean()

    @cached_property
    def gradient(self) -> Tensor:
        """Of the mean loss, [D], in its graph."""
        return flat(gradients(self.loss(), self.parameters, create_graph=True))

    def times(self, vector: Tensor) -> Tensor:
        """The Hessian of the mean loss times a vector, [D]."""
        if not self.specimen.smooth:
            return self._difference(vector)
        return flat(gradients(self.gradient @ vector, self.parameters)).detach()

    def _difference(self, vector: Tensor) -> Tensor:
        width = 1e-6 / vector.norm()
        ahead, behind = (self._slope_at(sign * width * vector) for sign in (1, -1))
        return (ahead - behind) / (2 * width)

    def _slope_at(self, way: Tensor) -> Tensor:
        with self.moved(way):
            return flat(gradients(self.loss(), self.parameters)).detach()

    def loss_at(self, way: Tensor) -> float:
        with self.moved(way), torch.no_grad():
            return self.loss().item()

    def moved(self, way: Tensor) -> Any:
        return Moved(self.parameters, way.split(self.sizes))

    def ends(self, start: Tensor, products: int, root: Tensor | float = 1.0) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of R H R, R diagonal, by Lanczos' iteration."""
        basis, diagonal, beyond = [start / start.norm()], [], []
        for _ in range(min(products, start.numel())):
            image = root * self.times(root * basis[-1])
            diagonal.append(image @ basis[-1])
            for _ in range(2):
                for other in basis:
                    image -= (image @ other) * other
            beyond.append(image.norm())
            if beyond[-1] < 1e-12 * diagonal[0].abs():
                break
            basis.append(image / beyond[-1])
        off = torch.stack(beyond[:-1]) if len(beyond) > 1 else torch.zeros(0).double()
        matrix = torch.diag(torch.stack(diagonal)) + torch.diag(off, 1) + torch.diag(off, -1)
        values = torch.linalg.eigvalsh(matrix)
        return values[0].item(), values[-1].item()

    def ggn(self) -> GGN:
        """The mean loss's GGN, from one backward pass for every sample and output.

        With H_n = S Sᵀ for the loss of sample n and all outputs, it is Σ_n (J ᵀ S)(J ᵀ S)ᵀ / N.
        """
        seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

        def see(name: str) -> Callable[..., Tensor]:
            def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
                seen.setdefault(name, []).append((args[0].detach(), output))
                return output.clone()  # what follows may work in place

            return hook

        layers = {n: m for n, m in self.model.named_modules() if isinstance(m, LAYERS)}
        hooks = [layer.register_forward_hook(see(name)) for name, layer in layers.items()]
        z = self.outputs()
        for hook in hooks:
            hook.remove()
        names = [name for name, calls in seen.items() if len(calls) == 1]
        outputs = [seen[name][0][1] for name in names]
        n, traces = len(self.losses(z)), torch.zeros(len(self.parameters)).double()
        biases: list[Tensor | float] = [0.0] * len(names)
        for i in range(n):
            hessian = torch.autograd.functional.hessian(
                lambda z, i=i: self.losses(z)[i], z.detach()
            )
            values, vectors = torch.linalg.eigh(hessian.reshape(z.numel(), z.numel()))
            keep = values > 1e-12 * values[-1]
            for column in (vectors * values.clamp(min=0).sqrt())[:, keep].T:
                value = (z * column.reshape(z.shape)).sum()
                found = gradients(value, [*self.parameters, *outputs])
                slopes = found[len(self.parameters) :]
                traces += torch.stack([g.square().sum() for g in found[: len(traces)]]) / n
                for place, (name, b) in enumerate(zip(names, slopes, strict=True)):
                    unit = 1 if isinstance(layers[name], nn.Conv2d) else -1
                    total = b.movedim(unit, -1).reshape(-1, b.shape[unit]).sum(0)
                    biases[place] = biases[place] + torch.outer(total, total) / n
        factors = {
            name: (B, patches(layers[name], seen[name][0][0]) / n)
            for name, B in zip(names, biases, strict=True)
        }
        of_all = dict(zip(trained(self.model), traces.tolist(), strict=True))
        return GGN(of_all, factors)


LAYERS = (nn.Linear, nn.Conv2d)


@dataclass
class GGN:
    """What is looked at of a GGN.

    Args:
        traces: Trace of the block of every parameter, by its name.
        factors: By the name of a linear or convolutional layer that is called once, the block of its
            bias, `[O, O]`, and the mean of x xᵀ over the samples, summed over the positions, `[I, I]`.
    """

    traces: dict[str, float]
    factors: dict[str, tuple[Tensor, Tensor]]


def patches(layer: nn.Module, x: Tensor) -> Tensor:
    """Sum x xᵀ over samples and positions, with x the patches under the kernel for a convolution."""
    if isinstance(layer, nn.Conv2d):
        geometry = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        x = torch.nn.functional.unfold(x, *geometry).mT
    x = x.reshape(-1, x.shape[-1])
    return x.T @ x


class Moved:
    """Moves parameters, and puts them back."""

    def __init__(self, parameters: Sequence[Tensor], way: Sequence[Tensor]) -> None:
        self._parameters, self._way = parameters, way

    def __enter__(self) -> None:
        self._kept = [p.detach().clone() for p in self._parameters]
        with torch.no_grad():
            for p, step in zip(self._parameters, self._way, strict=True):
                p += step.reshape(p.shape)

    def __exit__(self, *_: Any) -> None:
        with torch.no_grad():
            for p, kept in zip(self._parameters, self._kept, strict=True):
                p.copy_(kept)
