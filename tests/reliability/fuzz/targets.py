"""What is fuzzed: functions of bytes that may raise what they say they raise, and nothing else."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from reliability.hostile import FINDING, write_long_run, write_run
from reliability.reading import read_run

from cockpit.dashboard.library import Library, NotThere
from cockpit.dashboard.view import Query
from cockpit.errors import CockpitError, NotARunFile
from cockpit.findings import Finding
from cockpit.log import JsonFile, Row, RunWriter, write_json
from cockpit.log.blocks import pack_block, pack_steps, unpack_block, unpack_steps
from cockpit.log.reader import DAMAGE
from cockpit.log.schema import DTYPES, compress, pack, unpack
from cockpit.printable import printable
from cockpit.summary.settings import settings_texts

NAMES = (*DTYPES, "object", "O", "V8", "")
SHAPES = ("[]", "[3]", "[2, 3]", "[0]", "[-1]", "[9999999999, 0]", "{}", "[[1]]", "x", "[1e3]", "")
LARGEST = 2**27  # bytes of an answer: what is accepted is bounded, whatever a header claims


def blocks(data: bytes) -> None:
    """Unpack a block: the header says dtype, shape and count."""
    kind, shape, count, blob = data[:1], data[1:2], data[2:6], data[6:]
    number = int.from_bytes(count, "little", signed=True)
    with suppress(*DAMAGE):
        found = unpack_block(_pick(NAMES, kind), _shape(shape, blob), number, blob)
        assert found.nbytes <= LARGEST
        assert len(found) == number


def steps(data: bytes) -> None:
    """Unpack the steps of a block."""
    first, last, count = struct.unpack("<qqi", data[:20].ljust(20, b"\0"))
    with suppress(*DAMAGE):
        found = unpack_steps(first, last, count, data[20:])
        assert (found[1:] > found[:-1]).all()
        assert (found[0], found[-1], len(found)) == (first, last, count)


def arrays(data: bytes) -> None:
    """Unpack a single array."""
    with suppress(*DAMAGE):
        unpack(_pick(NAMES, data[:1]), _shape(data[1:2], data[2:]), data[2:])


def texts(data: bytes) -> None:
    """Make a text fit for a terminal."""
    shown = printable(data.decode("utf-8", "surrogateescape"))
    assert all(sign.isprintable() for sign in shown)


def findings(data: bytes) -> None:
    """Read the record of a finding."""
    with suppress(*DAMAGE):
        found = Finding.from_record(json.loads(data))
        assert Finding.from_record(json.loads(json.dumps(found.record()))) == found
        assert printable(str(found))


def settings(data: bytes) -> None:
    """Show settings as people read them."""
    text = data.decode("utf-8", "replace")
    settings_texts({"quantities": {"0": text}, "memory_budget": text, "lr": text})


def queries(data: bytes) -> None:
    """Read what a browser asks for."""
    with suppress(ValueError, RecursionError):
        query = Query.parse(json.loads(data))
        assert 0 < len(query.runs) <= 8


def names(data: bytes) -> None:
    """Look for a run by a name that a browser sends."""
    with suppress(NotThere):
        path = LIBRARY.path(data.decode("utf-8", "replace"))
        assert path.resolve().parent == LIBRARY.folder


def json_files(data: bytes) -> None:
    """Read the JSON of Cockpit 1.0."""
    with suppress(NotARunFile):
        file = JsonFile(_written("fuzz.json", data))
        assert len(file.steps()[0]) == file.extent()[0]
        file.scalars()
        for _ in file.arrays():
            pass
        assert file.parameters is not None
        file.events()


def run_files(data: bytes) -> None:
    """Read a whole run file, with all that reads one."""
    with suppress(CockpitError):
        read_run(_written("fuzz.db", data))


def edited_run_files(data: bytes) -> None:
    """Read a good run file some of whose bytes are others: `data` says where, and what they are."""
    good = bytearray(GOOD[data[0] % len(GOOD)] if data else GOOD[0])
    for place, value in struct.iter_unpack("<IB", data[1 : 1 + (len(data) - 1) // 5 * 5]):
        good[place % len(good)] = value
    run_files(bytes(good))


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one
    for one in (
        *(blocks, steps, arrays, texts, findings, settings, queries, names),
        *(json_files, run_files, edited_run_files),
    )
}


def seeds(target: str) -> Iterable[bytes]:
    """Return what a target is fed with at first, as this package writes it."""
    grids = [np.arange(6.0).reshape(2, 3) + k for k in range(4)]
    record = json.dumps(FINDING.record()).encode()
    query = {"runs": ["a.db"], "instruments": ["loss"], "window": [0, 9], "layers": ["fc"]}
    return {
        "blocks": [bytes([11, 2, 4, 0, 0, 0]) + pack_block(grids)],
        "steps": [struct.pack("<qqi", 1, 9, 3) + pack_steps([1, 4, 9])],
        "arrays": [bytes([11, 2]) + compress(pack(grids[0]).data), bytes([11, 2]) + pack(grids[0]).data],
        "texts": ["\x1b[31mä\u202e\n".encode()],
        "findings": [record],
        "settings": [
            b"GradNorm(track_schedule=_Linear(interval=3, offset=0), verbose=False)",
            b"_At(steps=frozenset({1, 2}))", b"Budget(share=0.1)", b"1048576",
        ],
        "queries": [json.dumps(query).encode()],
        "names": [b"first.db", b"../first.db"],
        "json_files": [JSON],
        "run_files": GOOD[:1],
        "edited_run_files": [b"\0" + struct.pack("<IB", 4000, 7), b"\1" + struct.pack("<IB", 9, 9)],
    }[target]  # fmt: skip


def _pick(names: tuple[str, ...], data: bytes) -> str:
    return names[(data or b"\0")[0] % len(names)]


def _shape(data: bytes, blob: bytes) -> str:
    choice = (data or b"\0")[0]
    return blob[:20].decode("latin-1") if choice == 255 else SHAPES[choice % len(SHAPES)]


FOLDER = tempfile.TemporaryDirectory(prefix="cockpit-fuzz-")


def _written(name: str, data: bytes) -> Path:
    path = Path(FOLDER.name, f"{os.getpid()}-{name}")
    for ending in ("-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{ending}")
    path.write_bytes(data)
    return path


def _small_run(path: Path) -> Path:
    writer = RunWriter(path, settings={"lr": 0.1})
    writer.record(0, [Row("Loss", 1.0), Row("Hist", np.arange(3))])
    writer.close()
    return path


def _as_json(path: Path) -> bytes:
    output = {
        k: {"Loss": 0.5, "GradNorm": [1.0, 2.0], "Hist": {"hist": np.arange(3)}} for k in (0, 1)
    }
    return write_json(path, output).read_bytes()


LIBRARY = Library(Path(FOLDER.name))
GOOD = [
    write(Path(FOLDER.name, f"{write.__name__}.db")).read_bytes()
    for write in (_small_run, write_run, write_long_run)
]
JSON = _as_json(Path(FOLDER.name, "good"))
