"""Schedules, under the path that they had in Cockpit 1.0."""

from cockpit.schedules import linear, logarithmic

__all__ = ["linear", "logarithmic"]
