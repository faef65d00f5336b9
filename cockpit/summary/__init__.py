"""A run in one table: every quantity with its value now, and a line on what that means."""

from cockpit.summary.about import About, EventCount, about, status_text
from cockpit.summary.lines import NOTHING, READERS, as_table, ordered, reading_of, readings
from cockpit.summary.reading import Reading
from cockpit.summary.settings import (
    arguments_of,
    flattened,
    quantity_text,
    schedule_text,
    setting_text,
    settings_texts,
)

__all__ = [
    "NOTHING",
    "READERS",
    "About",
    "EventCount",
    "Reading",
    "about",
    "arguments_of",
    "as_table",
    "flattened",
    "ordered",
    "quantity_text",
    "reading_of",
    "readings",
    "schedule_text",
    "setting_text",
    "settings_texts",
    "status_text",
]
