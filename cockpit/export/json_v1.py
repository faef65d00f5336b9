"""The JSON of Cockpit 1.0."""

from __future__ import annotations

from typing import BinaryIO

from cockpit.export.format import Format, Told
from cockpit.log import JsonFile, open_file
from cockpit.log.json_v1 import json_pieces
from cockpit.run import Run

__all__ = ["FORMAT"]

PIECES = 100
"""After how many steps somebody is told how far it is."""


def _write(run: Run, stream: BinaryIO, table: str, told: Told) -> None:
    with open_file(run.path) as file:
        if isinstance(file, JsonFile):  # it is of this format already
            stream.write(run.path.expanduser().read_bytes())
            return
        told(0, 1)
        output = file.output(metrics=True)
    for done, piece in enumerate(json_pieces(output)):
        stream.write(piece.encode())
        if done % PIECES == 0:
            told(min(done, len(output)), len(output))
    told(len(output), len(output))


FORMAT = Format("json-v1", "all values, as Cockpit 1.0 wrote them", ".json", "run", _write)
