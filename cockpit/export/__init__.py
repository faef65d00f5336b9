"""The data of a run in the formats of other programs.

A format is one file here and one line in `cockpit.export.formats`::

    export(open_run("runs/first.db"), "parquet", "first.parquet")
"""

from cockpit.export.format import TABLES, Format
from cockpit.export.formats import FORMATS, export

__all__ = ["FORMATS", "TABLES", "Format", "export"]
