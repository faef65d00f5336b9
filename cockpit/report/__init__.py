"""All there is to see of a run, or of several, in one file: HTML, Markdown, JSON or a picture."""

from cockpit.report.content import Content, OneRun, content_of
from cockpit.report.writing import FORMATS, report

__all__ = ["FORMATS", "Content", "OneRun", "content_of", "report"]
