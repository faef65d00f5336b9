"""torch-cockpit: look inside a PyTorch training run.

What reads runs, `open_run` and `CockpitPlotter`, is loaded when it is first used: a training loads
neither pandas nor matplotlib.
"""

from typing import TYPE_CHECKING, Any

from cockpit import quantities, schedules
from cockpit._version import __version__
from cockpit.cockpit import Cockpit
from cockpit.errors import CockpitError, CockpitWarning
from cockpit.gradients import BatchGradTransforms
from cockpit.presets import configuration

if TYPE_CHECKING:
    from cockpit.coverage import inspect
    from cockpit.plotter import CockpitPlotter
    from cockpit.run import open_run

__all__ = [
    "BatchGradTransforms",
    "Cockpit",
    "CockpitError",
    "CockpitPlotter",
    "CockpitWarning",
    "__version__",
    "configuration",
    "inspect",
    "open_run",
    "quantities",
    "schedules",
]

_LAZY = {
    "CockpitPlotter": "cockpit.plotter",
    "inspect": "cockpit.coverage",
    "open_run": "cockpit.run",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
