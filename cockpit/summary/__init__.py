"""A run in one table: every quantity with its value now, and a line on what that means."""

from cockpit.summary.lines import READERS, as_table, readings
from cockpit.summary.reading import Reading

__all__ = ["READERS", "Reading", "as_table", "readings"]
