"""Choosing the steps that are tracked by what they cost."""

from cockpit.budget.keeper import Keeper

__all__ = ["Keeper"]
