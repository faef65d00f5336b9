"""The run file: one SQLite file per run, written by a thread, readable by others all the while."""

from cockpit.log.json_v1 import JsonFile, open_file, with_ending, write_json
from cockpit.log.reader import RunFile
from cockpit.log.schema import Event, ParameterInfo, Row, Series
from cockpit.log.silent import SilentWriter
from cockpit.log.writer import RunWriter

__all__ = [
    "Event",
    "JsonFile",
    "ParameterInfo",
    "Row",
    "RunFile",
    "RunWriter",
    "Series",
    "SilentWriter",
    "open_file",
    "with_ending",
    "write_json",
]
