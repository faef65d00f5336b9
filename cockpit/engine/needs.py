"""What quantities may ask for besides transforms of individual gradients, and when each need can be met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from cockpit.engine.step import NotChecked, PerParameter, Step
from cockpit.histograms import blocks
from cockpit.transforms import Need, Transform

if TYPE_CHECKING:
    from cockpit.gradients import Call, IndividualGradients

AT_A_TIME = 2**17
"""Elements of which there is a difference at a time."""

Update = PerParameter
"""The change of each parameter in an update, d = θ_{t+1} − θ_t."""


class Moment(IntEnum):
    """The moments of a step at which needs are met, in their order."""

    FORWARD = 0  # in the forward pass, before the step is entered
    ENTRY = 1  # before the backward pass
    BACKWARD = 2  # during it, when a parameter's individual gradients are complete
    EXIT = 3  # after it, before the optimizer steps
    UPDATE = 4  # when the parameters have been updated


class InForward(Need):
    """A need that is met in the forward pass, module by module, as each of them is called.

    Its value is a `PerModule`.
    """

    moment: ClassVar[Moment] = Moment.FORWARD
    info: ClassVar[tuple[str, ...]] = ()
    """Keys of `info` that it cannot do without."""

    def see(self, name: str, call: Call, output: Any) -> Any | None:
        """Return the value for one call of a module; None where that has nothing to say.

        The output is the module's own, as it is now: the model may overwrite it afterwards, so what
        is returned must not share its memory.

        Args:
            name: Name of the module, with ``"#2"`` and so on from its second call on.
            call: The module and its inputs.
            output: What it returned.

        Raises:
            NotChecked: if the module should have a value and it cannot be had.
        """
        raise NotImplementedError

    def part(self, name: str, call: Call, output: Any) -> Any | None:
        """Return what `joined` has to know of one call, where the batch is spread over processes.

        Numbers, tensors, and tuples, lists and dicts of these. Arguments and errors are those of `see`.
        """
        return self.see(name, call, output)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return what `see` would have returned for the batch of all processes.

        Args:
            parts: What `part` returned, in the order of the processes, on the host.
        """
        raise NotImplementedError


class Observation(Need):
    """A need that is met once in a step, at one moment."""

    moment: ClassVar[Moment]
    info: ClassVar[tuple[str, ...]] = ()
    """Keys of `info` that it cannot do without."""
    from_start: ClassVar[bool] = False
    """Whether it compares with the parameters at the first step entered, `Step.start`."""
    between: ClassVar[bool] = False
    """Whether it looks at the losses of the steps since it was last met, `Step.between`."""
    outputs: ClassVar[bool] = False
    """Whether it needs what the model returned, `Live.outputs`."""
    backpack: ClassVar[bool] = False
    """Whether it needs BackPACK's hooks on the model and the loss function."""
    reevaluates: ClassVar[bool] = False
    """Whether it may run the model again, which then draws the same random numbers."""

    def observe(self, step: Step) -> Any:
        """Return the value; `step` is as it stands at the moment.

        At `Moment.ENTRY` the graph is alive: `step.live`. What the need wants to find at a later
        step, such as an eigenvector to start from, it keeps in ``step.carried[self]``.
        """
        raise NotImplementedError


class OfUpdate(Need):
    """A need that is met from the update d, when the parameters have been updated."""

    moment: ClassVar[Moment] = Moment.UPDATE
    gradient: ClassVar[bool] = False
    """Whether it needs ``parameter.grad`` as it was when the optimizer stepped."""

    def observe(self, step: Step, update: Update) -> Any:
        """Return the value."""
        raise NotImplementedError


class AlongUpdate(Need):
    """A need that is met for each parameter from its individual gradients and the update that follows them."""

    moment: ClassVar[Moment] = Moment.UPDATE

    @property
    def effort(self) -> float:
        """Its part of the individual gradients, and a product of each."""
        return 0.2

    def project(self, gradients: IndividualGradients, update: Tensor) -> Any:
        """Return the value for one parameter."""
        raise NotImplementedError


class AlongPreviousUpdate(Need):
    """A need that is met for each parameter from its individual gradients and the update that led here."""

    moment: ClassVar[Moment] = Moment.BACKWARD

    @property
    def effort(self) -> float:
        """Its part of the individual gradients, and a product of each."""
        return 0.2

    def project(self, gradients: IndividualGradients, update: Tensor) -> Any:
        """Return the value for one parameter."""
        raise NotImplementedError


@dataclass(frozen=True)
class Next(Need):
    """Another need, met at the next step: for quantities that look at two consecutive points."""

    need: Need

    @property
    def effort(self) -> float:
        """That of the other need."""
        return self.need.effort


# -- before the backward pass ---------------------------------------------------------------------


@dataclass(frozen=True)
class MiniBatchLoss(Observation):
    """The loss of the mini-batch, of the whole one with accumulation, `[]`."""

    moment = Moment.EXIT
    forward = False
    info = ("loss",)

    def observe(self, step: Step) -> Tensor:
        """Return L."""
        assert step.loss is not None
        return step.loss.clone()


@dataclass(frozen=True)
class ParameterValues(Observation):
    """Copies of all parameters, each `[*shape]`."""

    moment = Moment.ENTRY
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return θ."""
        return PerParameter((n, p.detach().clone()) for n, p in step.parameters.items())


@dataclass(frozen=True)
class ParameterNorms(Observation):
    """‖θ_p‖, per parameter `[]`."""

    moment = Moment.ENTRY
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return the norms."""
        values = [parameter.detach() for parameter in step.parameters.values()]
        return PerParameter(zip(step.parameters, norms_of(values), strict=True))


@dataclass(frozen=True)
class LearningRates(Observation):
    """The learning rate of every parameter, a number or a tensor `[]`."""

    moment = Moment.ENTRY
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return the rates of the groups that the parameters are in."""
        rates = {
            parameter: group["lr"]
            for optimizer in step.optimizers
            for group in optimizer.param_groups
            if "lr" in group
            for parameter in group["params"]
        }
        missing = [name for name, parameter in step.parameters.items() if parameter not in rates]
        if missing:
            raise NotChecked(
                f"no known optimizer has a learning rate for {missing[0]}: give all optimizers to "
                "the cockpit, Cockpit(..., optimizer=opt)"
            )
        return PerParameter((name, rates[p]) for name, p in step.parameters.items())


@dataclass(frozen=True)
class DistanceFromStart(Observation):
    """‖θ_p(t) − θ_p(0)‖ with θ(0) as it was at the first step entered, per parameter `[]`."""

    moment = Moment.ENTRY
    forward = False
    from_start = True

    def observe(self, step: Step) -> PerParameter:
        """Return the distances."""
        return PerParameter(
            (name, _distance(parameter.detach(), step.start[name]))
            for name, parameter in step.parameters.items()
        )


def _distance(first: Tensor, second: Tensor) -> Tensor:
    """Return ‖first − second‖, `[]`, without a difference as large as these."""
    if first.numel() <= AT_A_TIME:
        return norms_of([first - second])[0]
    pieces = zip(blocks(first, AT_A_TIME), blocks(second, AT_A_TIME), strict=True)
    norms = [norms_of([a - b])[0] for a, b in pieces]
    return torch.linalg.vector_norm(torch.stack(norms))


def norms_of(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the Euclidean norms of tensors, each `[]`."""
    if all(map(_takes_dot, tensors)):
        # On a processor four times as fast as the norm, and in single precision more precise: of five
        # million numbers it is off by 2e-6, the norm by 1e-4.
        return [torch.dot(flat, flat).sqrt_() for flat in (t.reshape(-1) for t in tensors)]
    return torch._foreach_norm(list(tensors))


def _takes_dot(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.is_contiguous()
    )


# -- after the backward pass ----------------------------------------------------------------------


@dataclass(frozen=True)
class Unknowable(Observation):
    """Stands for the needs of a quantity that fails when it is asked for them.

    Args:
        reason: How it failed.
    """

    reason: str
    moment = Moment.EXIT

    def observe(self, step: Step) -> Any:
        """Say why there is no value.

        Raises:
            NotChecked: always.
        """
        raise NotChecked(self.reason)


@dataclass(frozen=True)
class GradientNorms(Observation):
    """‖∇_p L‖ of what the optimizer will get, ``parameter.grad``, per parameter `[]`; 0 where there is none.

    With ``info["grad_scaler"]``, of the gradient without that scaler's factor.
    """

    moment = Moment.EXIT
    forward = False

    def observe(self, step: Step) -> PerParameter:
        """Return the norms."""
        grads = {
            name: parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
            for name, parameter in step.parameters.items()
            if parameter.grad is not None
        }
        norms = dict(zip(grads, norms_of(list(grads.values())), strict=True)) if grads else {}
        scaler = step.info.get("grad_scaler")
        if scaler is not None:
            norms = {
                name: norm / scaler.scale(torch.ones_like(norm)) for name, norm in norms.items()
            }
        return PerParameter(
            (name, norms[name] if name in norms else parameter.new_zeros(()).detach())
            for name, parameter in step.parameters.items()
        )


@dataclass(frozen=True)
class MeanLoss(Observation):
    """L, the mean of the samples' losses also where the loss that is backpropagated is their sum, `[]`."""

    moment = Moment.EXIT
    info = ("loss",)

    def observe(self, step: Step) -> Tensor:
        """Return L."""
        assert step.loss is not None
        assert step.scale is not None
        return step.loss / step.scale.reduction(max(1, step.batch_size))


@dataclass(frozen=True)
class SampleLosses(Observation):
    """ℓ_i, N × the share of sample i in L, `[N]`."""

    moment = Moment.EXIT
    info = ("loss", "individual_losses")

    def observe(self, step: Step) -> Tensor:
        """Return ℓ_i."""
        assert step.individual_losses is not None
        assert step.scale is not None
        return step.individual_losses * step.scale.sample_weights()


# -- after the update -----------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateNorms(OfUpdate):
    """‖θ_p(t+1) − θ_p(t)‖, per parameter `[]`."""

    forward = False

    def observe(self, step: Step, update: Update) -> PerParameter:
        """Return the norms."""
        return PerParameter(zip(update, norms_of(list(update.values())), strict=True))


@dataclass(frozen=True)
class DotUpdate(AlongUpdate):
    """g_i·d with the update that follows, per parameter `[N]`.

    Where only k of the samples were drawn, `[k]`, shifted so that their mean is that of all.
    """

    def project(self, gradients: IndividualGradients, update: Tensor) -> Tensor:
        """Return the products."""
        return gradients.slopes(update)


@dataclass(frozen=True)
class DotPreviousUpdate(AlongPreviousUpdate):
    """g_i·d with the update that led here, per parameter `[N]`.

    Where only k of the samples were drawn, `[k]`, shifted so that their mean is that of all.
    """

    def project(self, gradients: IndividualGradients, update: Tensor) -> Tensor:
        """Return the products."""
        return gradients.slopes(update)


__all__ = [
    "AlongPreviousUpdate",
    "AlongUpdate",
    "DistanceFromStart",
    "DotPreviousUpdate",
    "DotUpdate",
    "GradientNorms",
    "InForward",
    "LearningRates",
    "MeanLoss",
    "MiniBatchLoss",
    "Moment",
    "Need",
    "Next",
    "NotChecked",
    "Observation",
    "OfUpdate",
    "ParameterNorms",
    "ParameterValues",
    "SampleLosses",
    "Transform",
    "Unknowable",
    "UpdateNorms",
]
