"""Statistics of the modules' outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cockpit.engine.needs import InForward
from cockpit.engine.step import NotChecked, PerModule, Step
from cockpit.errors import InvalidArgument, InvalidType
from cockpit.gradients import Call
from cockpit.quantities.quantity import Quantity, require_count
from cockpit.quantities.spacing import spaced_samples
from cockpit.transforms import Need

Which = type[nn.Module] | str

HANDING_ON = (nn.Flatten, nn.Identity, nn.Unflatten)
"""Modules whose output has the values of their input."""

UNITS_LAST = (
    nn.Linear,
    nn.LayerNorm,
    nn.Embedding,
    *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []),
)
"""Modules whose units are in the last dimension of the output, however many it has."""

UNITS_SECOND = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
)
"""Modules whose units are channels, in the second dimension of the output."""

BOUNDED: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.5, 0.475),
    nn.Tanh: (0.0, 0.95),
}
"""Centre of the range, and the distance from it beyond which less than a tenth of the slope is left."""

ELEMENTS = 2**15
"""Elements of an output that are looked at: they stay in the processor's cache from one pass to the next."""


@dataclass(frozen=True)
class OutputMoments(InForward):
    """What the statistics of every module's output are made from: see `moments`, and `saturation`.

    Args:
        tau: See `ActivationStats`.
        modules: See `ActivationStats`.
        elements: See `ActivationStats`.
    """

    tau: float
    modules: tuple[Which, ...] | None
    elements: int | None = None

    def see(self, name: str, call: Call, output: Any) -> tuple[Tensor, Tensor | None] | None:
        """Return both."""
        h = self._values(name, call, output)
        if h is None:
            return None
        return moments(h, units_of(call.module, h), self.tau), saturation(call.module, h)

    def part(self, name: str, call: Call, output: Any) -> Part | None:
        """Return what the moments of several outputs together are made from."""
        h = self._values(name, call, output)
        return None if h is None else Part.of(call.module, h)

    def joined(self, parts: Sequence[Part]) -> tuple[Tensor, Tensor | None]:
        """Return the moments of all outputs together."""
        return joined_moments(parts, self.tau)

    def _values(self, name: str, call: Call, output: Any) -> Tensor | None:
        """Return what is looked at of the output, in float32 at least, if there is anything."""
        if not self._includes(name.partition("#")[0], call.module):
            return None
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        if output.dim() == 0 or output.numel() == 0:
            return None
        h = output.detach()
        if self.elements is not None:
            h = spaced_samples(h, units_of(call.module, h), self.elements)
        return h.to(torch.promote_types(h.dtype, torch.float32)).contiguous()

    def _includes(self, name: str, module: nn.Module) -> bool:
        if self.modules is None:
            leaf = next(module.children(), None) is None
            return leaf and not isinstance(module, HANDING_ON)
        return any(
            fnmatchcase(name, which) if isinstance(which, str) else isinstance(module, which)
            for which in self.modules
        )


def moments(h: Tensor, units: int, tau: float) -> Tensor:
    """Return what `joined_moments` does, of one output."""
    # One temporary of the size of what is looked at, and no count_nonzero, which stumbles over random
    # zeros: both are most of the time that this takes.
    mean = h.mean()
    work = h - mean
    second = work.square_().mean()
    fourth = work.square_().mean()
    torch.abs(h, out=work)
    others = [dim for dim in range(h.dim()) if dim != units]
    activity = work.mean(others) if others else work.clone()
    average = activity.mean()
    dead = activity.eq(0).mean(dtype=h.dtype)
    dormant = activity.le_(tau * average).mean()
    zeros = work.eq_(0).mean()
    return torch.stack([mean, second, fourth, average, zeros, dormant, dead])


class Part(NamedTuple):
    """What is to be known of an output, to join it with others.

    Args:
        elements: Number of elements.
        central: Mean and the sums of the second, third and fourth powers of h − mean, float64 `[4]`.
        activity: Sum of the magnitudes of every unit, float64 `[units]`.
        zeros: Number of elements that are 0, `[]`.
        saturated: Share of saturated values, `[]`, where there is one.
    """

    elements: int
    central: Tensor
    activity: Tensor
    zeros: Tensor
    saturated: Tensor | None

    @classmethod
    def of(cls, module: nn.Module, h: Tensor) -> Part:
        """Look at an output."""
        mean = h.mean()
        deviation = h - mean
        square = deviation.square()
        powers = [square.sum(), (square * deviation).sum(), square.square().sum()]
        by_unit = h.abs().movedim(units_of(module, h), 0).flatten(1)
        return cls(
            h.numel(),
            torch.stack([mean, *powers]).double().cpu(),
            by_unit.sum(1).double().cpu(),
            h.eq(0).sum(),
            saturation(module, h),
        )


def joined_moments(parts: Sequence[Part], tau: float) -> tuple[Tensor, Tensor | None]:
    """Return the moments and the share of saturated values of several outputs together.

    The moments are mean, second and fourth central moment, activity, and the shares of zeros, of
    dormant and of dead units, `[7]`.
    """
    counts = torch.tensor([part.elements for part in parts], dtype=torch.float64)
    total = counts.sum()
    means, second, third, fourth = torch.stack([part.central for part in parts]).unbind(1)
    mean = (counts * means).sum() / total
    # Around the common mean, each output is shifted by d: sums of (x + d)^k.
    d = means - mean
    m2 = (second + counts * d**2).sum() / total
    m4 = (fourth + 4 * d * third + 6 * d**2 * second + counts * d**4).sum() / total
    activity = torch.stack([part.activity for part in parts]).sum(0) * (
        len(parts[0].activity) / total
    )
    dormant = activity.le(tau * activity.mean()).double().mean()
    dead = activity.eq(0).double().mean()
    zeros = torch.stack([part.zeros for part in parts]).sum() / total
    joined = torch.stack([mean, m2, m4, activity.mean(), zeros, dormant, dead])
    shares = [part.saturated for part in parts if part.saturated is not None]
    if not shares:
        return joined, None
    return joined, (torch.stack(shares).double() * counts / total).sum()


def saturation(module: nn.Module, h: Tensor) -> Tensor | None:
    """Return the share of saturated values, for modules with a bounded range."""
    for kind, (centre, limit) in BOUNDED.items():
        if isinstance(module, kind):
            return (h - centre).abs_().gt_(limit).mean()
    return None


def units_of(module: nn.Module, h: Tensor) -> int:
    """Return the dimension of the output that the units are in."""
    if h.dim() > 2 and isinstance(module, UNITS_SECOND):
        return 1
    # A subclass that computes something else may have them elsewhere: LayerNorm2d of torchvision has.
    last = any(
        isinstance(module, kind) and type(module).forward is getattr(kind, "forward", None)
        for kind in UNITS_LAST
    )
    return 1 if h.dim() > 3 and not last else h.dim() - 1


@dataclass(frozen=True)
class ActivationStats(Quantity):
    r"""Statistics of the outputs of the modules, at the moment at which each was computed.

    Formula: over all elements :math:`h` of a module's output, ``mean`` :math:`\bar h`, ``std``
    :math:`\sqrt{m_2}`, ``rms`` :math:`\sqrt{\overline{h^2}}` and ``kurtosis`` :math:`m_4 / m_2^2 -
    3` (that of a normal distribution is 0; NaN for a constant output), with :math:`m_k =
    \overline{(h - \bar h)^k}`. ``zeros``: the share of elements that are exactly 0. ``saturated``,
    for ``nn.Sigmoid`` and ``nn.Tanh`` only: the share of elements at which less than a tenth of the
    slope in the middle is left, :math:`\lvert h - 1/2 \rvert > 0.475` and :math:`\lvert h \rvert >
    0.95`. ``dormant``: the share of units k with :math:`\overline{\lvert h_k \rvert} \le \tau`
    times the mean of that over the units. ``dead``: the share of units that are 0 throughout.

    Where an output has more than `elements` elements, these are the statistics of evenly spaced samples
    and positions, always the same ones, with all their units: of at least 16 samples and one position.
    Shares are exact for what is looked at.

    A unit is a channel, in dimension 1, for convolutions, batch, instance and group norms, and for
    any output of four dimensions or more; it is an entry of the last dimension for the others, and
    for linear layers, embeddings and layer norms whatever the number of dimensions.

    How to read it: an ``std`` that grows or shrinks from layer to layer points at the
    initialisation. ``zeros`` near 1 after a ReLU, and ``dormant`` or ``dead``
    units that do not come back, are capacity that is lost, often by too large a step. Saturated units pass no gradient
    on. A large ``kurtosis`` tells of a few outliers, which low precision does not bear.

    Source: dormant units: Sokar, Agarwal, Castro & Evci (2023), arXiv:2302.12902;
    saturation: Glorot & Bengio (2010).

    With accumulation: the outputs of the first micro-batch.

    Args:
        track_schedule: On which steps it is tracked.
        verbose: Whether to print the value.
        tau: Activity of a unit, relative to the average unit of its module, up to which it counts
            as dormant. 0 counts only those that are silent on the whole batch.
        modules: Which modules: classes, and patterns of names such as ``"encoder.*.relu"``. Unless
            told otherwise, those without submodules, but not those that only hand their input on
            (``nn.Flatten``, ``nn.Unflatten``, ``nn.Identity``). Of either, those whose output is one
            floating-point tensor.
        elements: How many elements of an output are looked at; None for all of them.

    Raises:
        InvalidType: if `modules` holds anything but classes and names.
        InvalidArgument: if `tau` is negative, `elements` is below 1, or `modules` is empty.
    """

    tau: float = 0.025
    modules: Sequence[Which] | None = None
    elements: int | None = ELEMENTS

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.tau >= 0:
            raise InvalidArgument(f"ActivationStats needs a tau of at least 0, got {self.tau!r}.")
        require_count(self, "elements")
        if self.modules is None:
            return
        if isinstance(self.modules, str) or not isinstance(self.modules, Sequence):
            raise InvalidType(
                "ActivationStats takes modules as a list, of classes such as nn.ReLU and of names "
                f"such as 'encoder.*', got {self.modules!r}. Write modules=[{self.modules!r}]."
            )
        for which in self.modules:
            is_class = isinstance(which, type) and issubclass(which, nn.Module)
            if not is_class and not isinstance(which, str):
                raise InvalidType(
                    "ActivationStats takes modules as classes of modules and as names such as "
                    f"'encoder.*', got {which!r}."
                )
        if not self.modules:
            raise InvalidArgument(
                "ActivationStats got an empty list of modules. Leave modules=None for all of them."
            )
        object.__setattr__(self, "modules", tuple(self.modules))

    @property
    def moments(self) -> OutputMoments:
        """The need of these settings."""
        modules = None if self.modules is None else tuple(self.modules)
        return OutputMoments(self.tau, modules, self.elements)

    def needs(self) -> tuple[Need, ...]:
        """Return the moments of these settings."""
        return (self.moments,)

    def compute(self, step: Step) -> dict[str, PerModule]:
        """Return the statistics, by their names and by module, each `[]`."""
        seen: PerModule = step[self.moments]
        if not seen:
            which = "" if self.modules is None else f" of those in modules={self.modules!r}"
            raise NotChecked(f"no module{which} was called that returns one floating-point tensor")
        device = next(iter(seen.values()))[0].device
        table = torch.stack([of_one.to(device) for of_one, _ in seen.values()])  # [modules, 7]
        mean, second, fourth, activity, zeros, dormant, dead = table.unbind(1)
        columns = {
            "mean": mean,
            "std": second.sqrt(),
            "rms": (mean.square() + second).sqrt(),
            "kurtosis": fourth / second.square() - 3,
            "zeros": zeros,
            # What is not finite is not dormant; it makes this share NaN rather than smaller.
            "dormant": dormant + 0 * activity,
            "dead": dead + 0 * activity,
        }
        statistics = {
            name: PerModule(zip(seen, column.unbind(), strict=True))
            for name, column in columns.items()
        }
        saturated = ((module, share) for module, (_, share) in seen.items() if share is not None)
        return {**statistics, "saturated": PerModule(saturated)}
