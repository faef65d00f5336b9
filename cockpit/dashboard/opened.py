"""An open run: its panels are computed when they are asked for, and kept until the file changes."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cockpit.dashboard.library import Library, Stamp, changed, stamp
from cockpit.dashboard.preview import Preview
from cockpit.errors import CockpitError
from cockpit.instruments import Instrument, Panel, available
from cockpit.log import RunFile, open_file
from cockpit.log.schema import is_alive, this_process
from cockpit.run import Run

__all__ = ["OpenRun", "Shelf", "Summary"]

MAX_OPEN = 12
FIRST_SECONDS = 1.0
"""Reading all of a long run begins later than its previews, which somebody waits for."""

LONG = 50_000
"""From so many values on, a picture shows a part of them until all have been read."""

RECENT_SECONDS = 60.0
"""A run of another machine, whose processes cannot be seen, is live if it was written to since."""


@dataclass(frozen=True)
class Summary:
    """What a list of runs says of one."""

    name: str
    stamp: Stamp
    closed: bool
    process: dict[str, Any]
    steps: int
    last: int | None
    created: float
    model: str
    error: str = ""

    @property
    def status(self) -> str:
        """Either "live", "closed", "stopped" (without being closed), or "damaged"."""
        if self.error:
            return "damaged"
        if self.closed:
            return "closed"
        if self.process.get("host") == this_process()["host"]:
            return "live" if is_alive(self.process) else "stopped"
        return "live" if time.time() - self.updated < RECENT_SECONDS else "stopped"

    @property
    def updated(self) -> float:
        """When the file changed last, in seconds since 1970."""
        return changed(self.stamp)

    def record(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "name": self.name,
            "stamp": "-".join(map(str, self.stamp)),
            "status": self.status,
            "steps": self.steps,
            "last": self.last,
            "created": self.created,
            "updated": self.updated,
            "model": self.model,
            "error": self.error,
        }


class OpenRun:
    """A run and the panels that were computed of it. Any thread may use it.

    Args:
        path: The run file.
        later: Takes work that is done in the background, one after the other.
    """

    def __init__(self, path: Path, later: Callable[[Callable[[], None], float], None]) -> None:
        self.path = path
        self._later = later
        self._lock = threading.RLock()
        self._stamp = stamp(path)
        self._run = Run(path)
        self._panels: dict[str, _Made] = {}
        self._previews: dict[str, _Made] = {}
        # Values of long runs are read through an object of its own, whose lock nobody waits for.
        self._deep_lock = threading.Lock()
        self._deep: Run | None = None
        self._ordered: set[str] = set()

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters."""
        with self._fresh() as run:
            return run.parameters

    @property
    def quantities(self) -> list[str]:
        """Names of the quantities."""
        with self._fresh() as run:
            return run.quantities

    def instruments(self) -> dict[str, Instrument]:
        """Return the instruments that may have something to show, by name, without computing."""
        with self._fresh() as run:
            return {one.name: one for one in available(run)}

    def panel(self, name: str) -> tuple[Panel | None, bool]:
        """Return the panel of an instrument, and whether it is that of all values up to now.

        It is not while one of a long run is being computed in the background: then it is the one
        before, or a preview. `None` means that there is nothing to show.
        """
        with self._fresh() as run:
            made = self._panels.get(name)
            if made is not None and made.stamp == self._stamp:
                return made.panel, True
            chosen = self.instruments().get(name)
            if chosen is None:
                return None, True
            if not self._is_long(run, chosen):
                made = self._panels[name] = _Made(self._stamp, chosen(run))
                return made.panel, True
            self._order(chosen, FIRST_SECONDS if made is None else 0.0)
            return (made or self._preview(run, chosen)).panel, False

    @contextmanager
    def _fresh(self) -> Iterator[Run]:
        """Yield the run as it is now, to this thread alone."""
        with self._lock:
            now = stamp(self.path)
            if now != self._stamp:
                self._run.refresh()
                self._stamp = now
            yield self._run

    def _is_long(self, run: Run, chosen: Instrument) -> bool:
        kinds = ("scalar", "array")
        parts = [len(run.parts(quantity, kind)) for quantity in chosen.quantities for kind in kinds]
        return len(run.steps) * sum(parts) > LONG and not self.path.name.endswith(".json")

    def _preview(self, run: Run, chosen: Instrument) -> _Made:
        made = self._previews.get(chosen.name)
        if made is None:
            with RunFile(self.path) as file:
                panel = chosen(Preview(run, file))
            made = self._previews[chosen.name] = _Made(self._stamp, panel)
        return made

    def _order(self, chosen: Instrument, wait: float) -> None:
        if chosen.name not in self._ordered:
            self._ordered.add(chosen.name)
            self._later(partial(self._compute, chosen), wait)

    def _compute(self, chosen: Instrument) -> None:
        """Compute a panel of a long run from all of its values."""
        try:
            now = stamp(self.path)
            with self._deep_lock:
                if self._deep is None:
                    self._deep = Run(self.path)
                else:
                    self._deep.refresh()
                made = _Made(now, chosen(self._deep))
                if self._deep.status != "running" and len(self._ordered) < 2:
                    self._deep.close()  # there will be no more: the panels are enough
            with self._lock:
                self._panels[chosen.name] = made
                self._previews.pop(chosen.name, None)
        finally:
            self._ordered.discard(chosen.name)


@dataclass(frozen=True)
class _Made:
    """A panel, or that there is none, and the state of the file that it is of."""

    stamp: Stamp
    panel: Panel | None


class _Worker:
    """Does work in the background, one after the other, and ends with the program."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[float, Callable[[], None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def do(self, work: Callable[[], None], wait: float = 0.0) -> None:
        """Take on some work, and return at once; it is not begun before so many seconds."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cockpit-panels", daemon=True
                )
                self._thread.start()
        self._queue.put((time.monotonic() + wait, work))

    def _run(self) -> None:
        while True:
            due, work = self._queue.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(Exception):  # whoever asks again meets the error, and is told
                work()


class Shelf:
    """The runs of a library that are open, and what the list says of all of them.

    Args:
        library: Where they are.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._summaries: dict[str, Summary] = {}
        self._worker = _Worker()

    def open(self, name: str) -> OpenRun:
        """Return a run; the one that has not been used for longest makes room for it.

        Raises:
            NotThere: It is no run of the library.
            NotARunFile: It cannot be read.
        """
        path = self.library.path(name)
        with self._lock:
            found = self._open.get(name)
            if found is None:
                found = self._open[name] = OpenRun(path, self._worker.do)
            self._open.move_to_end(name)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        return found

    def summaries(self) -> list[Summary]:
        """Return what the list of runs says; only files that changed are read."""
        names = self.library.names()
        found = [self.summary(name) for name in names]
        self._summaries = {one.name: one for one in found}
        return found

    def summary(self, name: str) -> Summary:
        """Return what the list says of one run."""
        path = self.library.path(name)
        now, known = stamp(path), self._summaries.get(name)
        return known if known is not None and known.stamp == now else self._read(name, path, now)

    def _read(self, name: str, path: Path, now: Stamp) -> Summary:
        try:
            with open_file(path) as file:
                steps, _, last = file.extent()
                model, created = file.settings.get("model"), file.created
                closed = file.status != "running"
                process = file.process if isinstance(file, RunFile) else {}
        except CockpitError as error:
            return Summary(name, now, True, {}, 0, None, 0.0, "", self.library.hide(str(error)))
        return Summary(name, now, closed, process, steps, last, created, str(model or ""))
