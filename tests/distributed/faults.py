"""Quantities that fail on one process only, wherever a quantity can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cockpit.engine.needs import AlongUpdate, InForward, Moment, Observation, OfUpdate
from cockpit.quantities import Quantity
from cockpit.transforms import Transform


def fail_on_rank_1(where: str) -> None:
    if dist.get_rank() == 1:
        raise ArithmeticError(f"failed {where}")


@dataclass(frozen=True)
class _Before(Transform):
    def __call__(self, gradients: Any) -> Tensor:
        fail_on_rank_1("before")
        return gradients.mean()


@dataclass(frozen=True)
class _Between(Transform):
    """Fails at the second of three parameters, after one exchange of two."""

    def __call__(self, gradients: Any) -> Tensor:
        norms = gradients.square_norms()
        if gradients.name == "0.bias":
            fail_on_rank_1("between")
        return norms + gradients.dot_mean()


@dataclass(frozen=True)
class _After(Transform):
    def __call__(self, gradients: Any) -> Tensor:
        mean = gradients.mean()
        fail_on_rank_1("after")
        return mean


@dataclass(frozen=True)
class _OnEntry(Observation):
    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Any) -> Tensor:
        fail_on_rank_1("on entry")
        matrix = step.live.matrix()
        return matrix @ matrix.noise(step.live.generator())


@dataclass(frozen=True)
class _InProducts(Observation):
    moment = Moment.ENTRY
    info = ("loss",)

    def observe(self, step: Any) -> Tensor:
        matrix = step.live.matrix()
        vector = matrix @ matrix.noise(step.live.generator())
        fail_on_rank_1("in products")
        return matrix @ vector


@dataclass(frozen=True)
class _OnExit(Observation):
    moment = Moment.EXIT

    def observe(self, step: Any) -> float:
        fail_on_rank_1("on exit")
        return 1.0


@dataclass(frozen=True)
class _InForward(InForward):
    def see(self, name: str, call: Any, output: Any) -> int:
        fail_on_rank_1("in forward")
        return 1


@dataclass(frozen=True)
class _AtUpdate(OfUpdate):
    def observe(self, step: Any, update: Any) -> float:
        fail_on_rank_1("at the update")
        return 1.0


@dataclass(frozen=True)
class _Along(AlongUpdate):
    def project(self, gradients: Any, update: Tensor) -> Tensor:
        fail_on_rank_1("along the update")
        return gradients.dot(update)


@dataclass(frozen=True)
class _Needing(Quantity):
    def compute(self, step: Any) -> float:
        for need in self.needs():
            step[need]
        return 1.0


@dataclass(frozen=True)
class Before(_Needing):
    need = _Before()


@dataclass(frozen=True)
class Between(_Needing):
    need = _Between()


@dataclass(frozen=True)
class After(_Needing):
    need = _After()


@dataclass(frozen=True)
class OnEntry(_Needing):
    need = _OnEntry()


@dataclass(frozen=True)
class InProducts(_Needing):
    need = _InProducts()


@dataclass(frozen=True)
class OnExit(_Needing):
    need = _OnExit()


@dataclass(frozen=True)
class Forwards(_Needing):
    need = _InForward()


@dataclass(frozen=True)
class AtUpdate(_Needing):
    need = _AtUpdate()


@dataclass(frozen=True)
class Along(_Needing):
    need = _Along()


@dataclass(frozen=True)
class Compute(Quantity):
    def compute(self, step: Any) -> float:
        fail_on_rank_1("in compute")
        return 1.0


@dataclass(frozen=True)
class Setting(Quantity):
    """Fails nowhere, but has a setting."""

    number: int = 0

    def compute(self, step: Any) -> Tensor:
        return torch.tensor(float(self.number))


FAULTS: dict[str, Any] = {
    "before": Before,
    "between": Between,
    "after": After,
    "on entry": OnEntry,
    "in products": InProducts,
    "on exit": OnExit,
    "in forward": Forwards,
    "at the update": AtUpdate,
    "along the update": Along,
    "compute": Compute,
}
