"""torch-cockpit: look inside a PyTorch training run.

Every public name is loaded when it is first used: a training loads neither pandas nor matplotlib, and
what reads runs does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cockpit._version import __version__
from cockpit.errors import CockpitError, CockpitWarning

if TYPE_CHECKING:
    from cockpit import quantities, schedules
    from cockpit.cockpit import Cockpit
    from cockpit.coverage import inspect
    from cockpit.findings import Finding
    from cockpit.gradients import BatchGradTransforms
    from cockpit.plotter import CockpitPlotter
    from cockpit.presets import configuration
    from cockpit.profiling import profile
    from cockpit.run import open_run

__all__ = [
    "BatchGradTransforms",
    "Cockpit",
    "CockpitError",
    "CockpitPlotter",
    "CockpitWarning",
    "Finding",
    "__version__",
    "configuration",
    "inspect",
    "open_run",
    "profile",
    "quantities",
    "schedules",
]

_MODULES = ("quantities", "schedules")

_PLACES = {
    "BatchGradTransforms": "cockpit.gradients",
    "Cockpit": "cockpit.cockpit",
    "CockpitPlotter": "cockpit.plotter",
    "Finding": "cockpit.findings",
    "configuration": "cockpit.presets",
    "inspect": "cockpit.coverage",
    "open_run": "cockpit.run",
    "profile": "cockpit.profiling",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"cockpit.{name}")
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
