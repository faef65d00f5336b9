"""A run in one table: every quantity with its value now, and a line on what that means."""

from cockpit.summary.about import About, EventCount, about, flattened, status_text
from cockpit.summary.lines import READERS, as_table, reading_of, readings
from cockpit.summary.reading import Reading

__all__ = [
    "READERS",
    "About",
    "EventCount",
    "Reading",
    "about",
    "as_table",
    "flattened",
    "reading_of",
    "readings",
    "status_text",
]
