"""A diagnosis as text, Markdown, JSON and SARIF: one format a file."""

from collections.abc import Callable

from cockpit.doctor.diagnosis import Diagnosis
from cockpit.doctor.formats.as_json import as_json
from cockpit.doctor.formats.as_markdown import as_markdown
from cockpit.doctor.formats.as_sarif import as_sarif
from cockpit.doctor.formats.as_text import as_text

FORMATS: dict[str, Callable[[Diagnosis, str], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "markdown": as_markdown,
}
"""Each makes a text of a diagnosis and the path of the run."""

__all__ = ["FORMATS", "as_json", "as_markdown", "as_sarif", "as_text"]
