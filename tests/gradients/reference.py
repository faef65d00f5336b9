"""Individual gradients by brute force, without a line of cockpit, and a way to get cockpit's for the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cockpit.gradients import Batch, Collector, IndividualGradients, Recorder

Gradients = dict[str, Tensor]
"""Individual gradients by the parameter's name, each `[N, *shape]`."""


def tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output
    return [t for value in values if value is not None for t in tensors(value)]


def losses(output: Any, n: int) -> Tensor:
    """A loss that is not linear in the output, per sample, `[N]`."""
    return sum(
        (0.5 * (t - 0.3) ** 2 + torch.sin(2 * t)).reshape(n, -1).sum(1) for t in tensors(output)
    )


def one_by_one(
    model: nn.Module, args: tuple[Any, ...], n: int, kwargs: dict[str, Any] | None = None
) -> Gradients:
    """∇ℓ_i by a loop over the samples, each in a batch of its own."""
    model, kwargs = copy.deepcopy(model), kwargs or {}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def only(value: Any, i: int) -> Any:
        batched = isinstance(value, Tensor) and value.dim() and len(value) == n
        return value[i : i + 1].clone() if batched and n > 1 else value

    rows = []
    for i in range(n):
        output = model(*(only(a, i) for a in args), **{k: only(v, i) for k, v in kwargs.items()})
        loss = losses(output, 1).sum()
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(trained.values(), found, strict=True)
            ]
        )
    return {
        name: torch.stack(column)
        for name, column in zip(trained, zip(*rows, strict=True), strict=True)
    }


def shares(model: nn.Module, args: tuple[Any, ...], n: int) -> Gradients:
    """N × what flows through a sample's slice of each layer's output, for a mean loss: modules that are called once."""
    model = copy.deepcopy(model)
    outputs: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_hook(lambda m, i, o, name=name: outputs.update({name: o}))
    loss = losses(model(*args), n).mean()
    result = {}
    for name, output in outputs.items():
        (upstream,) = torch.autograd.grad(loss, output, retain_graph=True)
        for local, parameter in model.get_submodule(name).named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            rows = []
            for i in range(n):
                masked = torch.zeros_like(upstream)
                masked[i] = upstream[i]
                (row,) = torch.autograd.grad(output, parameter, masked, retain_graph=True)
                rows.append(n * row)
            result[f"{name}.{local}" if name else local] = torch.stack(rows)
    return result


@dataclass
class Fed:
    """What a backward pass delivered, by the names of the parameters."""

    handles: dict[str, IndividualGradients] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@contextmanager
def listening(
    model: nn.Module, recorder: Recorder, batch: Batch, *, early: bool = True
) -> Iterator[Fed]:
    """Collect what the backward passes in this block deliver, wired as in the engine."""
    fed, names = Fed(), {p: name for name, p in model.named_parameters()}
    collector = Collector(lambda call: batch, lambda p, g: fed.handles.update({names[p]: g}))
    recorder.listen(collector.add)
    trained = [p for p in names if p.requires_grad]
    hooks = [p.register_post_accumulate_grad_hook(collector.complete) for p in trained if early]
    yield fed
    recorder.stop()
    for hook in hooks:
        hook.remove()
    collector.finish(trained, batch)
    fed.refused.update({names[p]: reason for p, reason in collector.refused.items()})


def feed(
    model: nn.Module,
    args: tuple[Any, ...],
    n: int,
    *,
    kwargs: dict[str, Any] | None = None,
    reduction: str = "mean",
    factor: float = 1.0,
    between: Callable[[], Any] = lambda: None,
    **settings: Any,
) -> Fed:
    """Get the handles of one forward and backward pass."""
    recorder = Recorder(model)
    total = losses(model(*args, **(kwargs or {})), n)
    loss = factor * (total.mean() if reduction == "mean" else total.sum())
    between()
    scale = n / factor if reduction == "mean" else 1.0 / factor
    with listening(model, recorder, Batch(n, scale, **settings)) as fed:
        loss.backward()
    recorder.close()
    return fed


# -- reductions
#
# -----------------------------------------------------------------------------------------------------


def close(actual: Tensor, expected: Tensor, tolerance: float, scale: Tensor | None = None) -> None:
    """Assert equality but for an error relative to `scale`, by default the largest entry."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert actual.dtype == expected.dtype
    if expected.numel():
        error = (actual - expected).abs().max()
        scale = expected.abs().max() if scale is None else scale
        assert error <= tolerance * scale, (error, scale)


def counts(values: Tensor, edges: Tensor) -> Tensor:
    """Count as the documentation says."""
    flat, bins = values.detach().double().numpy().ravel(), edges.double().numpy()
    flat = flat[np.isfinite(flat)]
    index = np.searchsorted(bins[1:-1], flat, side="right")
    return torch.from_numpy(np.bincount(index, minlength=len(bins) - 1))


def joint_counts(g: Tensor, theta: Tensor, edges: tuple[Tensor, Tensor]) -> Tensor:
    (x, y), shape = (e.numpy() for e in edges), tuple(len(e) - 1 for e in edges)
    table = np.zeros(shape, dtype=np.int64)
    i = np.searchsorted(x[1:-1], g.detach().numpy(), side="right")
    j = np.searchsorted(y[1:-1], theta.detach().numpy(), side="right")
    np.add.at(table, (i, np.broadcast_to(j, i.shape)), 1)
    return torch.from_numpy(table)


EDGES = torch.linspace(-2, 2, 8, dtype=torch.float64) + 0.0123456789
"""So that neither 0 nor another value sits on an edge."""


def agree(handle: IndividualGradients, g: Tensor, theta: Tensor, tolerance: float = 1e-9) -> None:
    """Assert every reduction of a handle against the dense individual gradients, `[N, *shape]`."""
    n, flat, theta = len(g), g.flatten(1), theta.detach()
    direction = torch.cos(torch.arange(theta.numel(), dtype=g.dtype)).reshape(theta.shape)
    largest, norm = g.abs().max(), flat.norm(dim=1).max()
    expected = {  # with the scale of what is added up, where the sum may be much smaller
        "mean": (g.mean(0), largest),
        "square_norms": (flat.square().sum(1), None),
        "sum_of_squares": (g.square().sum(0), None),
        "gram": (flat @ flat.T, None),
        "dot_mean": (flat @ flat.mean(0), norm**2),
        "abs_max": (largest, None),
        "min_max": (torch.stack([g.min(), g.max()]), largest),
        "dense": (g, None),
    }
    for kept in (False, True):  # computed directly, and from dense gradients that are kept
        if kept:
            list(handle.chunks())
        for name, (value, scale) in expected.items():
            try:
                close(getattr(handle, name)(), value, tolerance, scale)
            except AssertionError as error:
                raise AssertionError(f"{type(handle).__name__}.{name}: {error}") from error
            if not kept:
                handle.release()
        close(
            handle.dot(direction), flat @ direction.reshape(-1), tolerance, norm * direction.norm()
        )
        histogram = handle.histogram(EDGES)
        assert torch.equal(histogram.counts, counts(g, EDGES))
        assert histogram.drawn == g.numel()
        assert histogram.nonfinite == 0
        joint = handle.joint_histogram(theta, (EDGES, EDGES / 3))
        assert torch.equal(joint.counts, joint_counts(g, theta, (EDGES, EDGES / 3)))
        assert joint.nonfinite == 0
        values = handle.sample(20).values.reshape(-1)
        assert values.numel() > 0
        distance = (values.unsqueeze(1) - g.reshape(-1)).abs().amin(1).max()
        assert distance <= tolerance * largest
        drawn = handle.histogram(EDGES, samples=20)
        assert drawn.counts.sum() + drawn.nonfinite == g.numel()
    handle.release()
    covered = torch.zeros(n, dtype=torch.int64)
    for samples, piece in handle.chunks():
        close(piece, g[samples], tolerance, largest)
        covered[samples] += 1
    assert (covered == 1).all()


def check(
    model: nn.Module, args: tuple[Any, ...], n: int, expected: Gradients | None = None, **how: Any
) -> Fed:
    """Assert every reduction of every parameter of a model against brute force."""
    if expected is None:
        expected = one_by_one(model, args, n, how.get("kwargs"))
    fed = feed(model, args, n, **how)
    assert fed.refused == {}
    assert fed.handles.keys() == expected.keys()
    parameters = dict(model.named_parameters())
    for name, g in expected.items():
        try:
            agree(fed.handles[name], g, parameters[name])
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    return fed
