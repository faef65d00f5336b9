"""Sets of quantities by label, under the path that they had in Cockpit 1.0."""

from cockpit.presets import configuration, quantities_cls_for_configuration

__all__ = ["configuration", "quantities_cls_for_configuration"]
