"""What the page says of a run beside its pictures: findings, events, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cockpit._version import __version__
from cockpit.dashboard.opened import Shelf
from cockpit.log import Event, RunFile, open_file
from cockpit.summary.settings import setting_text

__all__ = ["findings", "settings"]

MAX_EVENTS = 300
MAX_FINDINGS = 1000
UNSET: tuple[Any, ...] = (None, "", [], {})


def findings(shelf: Shelf, name: str) -> dict[str, Any]:
    """Return the findings of a run, and its events, equal ones together."""
    with open_file(shelf.library.path(name)) as file:
        records = [one.record() for one in file.findings()]
        events = _together(file.events())
    return {
        "findings": records[:MAX_FINDINGS],
        "events": events[-MAX_EVENTS:],
        "left_out": max(0, len(records) - MAX_FINDINGS) + max(0, len(events) - MAX_EVENTS),
    }


def _together(events: list[Event]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for event in events:
        key = event.kind, event.subject, event.message
        one = found.setdefault(
            key,
            {
                "kind": event.kind,
                "subject": event.subject,
                "message": event.message,
                "first": event.step,
                "time": event.wall,
                "count": 0,
            },
        )
        one |= {"count": one["count"] + 1, "last": event.step}
    return list(found.values())


def settings(shelf: Shelf, name: str) -> dict[str, Any]:
    """Return what was stored about a run, its parameters, and what is recorded."""
    summary = shelf.summary(name)
    with open_file(shelf.library.path(name)) as file:
        series = file.series()
        counted: dict[str, int] = {}
        for one in series:
            counted[one.quantity] = counted.get(one.quantity, 0) + 1
        return {
            "run": summary.record(),
            "bytes": summary.stamp[1] + summary.stamp[4],
            "process": file.process if isinstance(file, RunFile) else {},
            "settings": _readable(file.settings),
            "parameters": [
                {"name": p.name, "shape": list(p.shape), "dtype": p.dtype} for p in file.parameters
            ],
            "quantities": [{"name": key, "series": count} for key, count in counted.items()],
            "version": __version__,
        }


def _readable(value: Any, name: str = "") -> Any:
    """Return settings as people read them, nested as they were, without those that are not set."""
    if isinstance(value, Mapping):
        inner = {
            key: _readable(one, f"{name}.{key}" if name else str(key)) for key, one in value.items()
        }
        return {key: one for key, one in inner.items() if one not in UNSET}
    if isinstance(value, list):
        return [_readable(one, f"{name}.{place}") for place, one in enumerate(value)]
    text = setting_text(name, str(value))
    return value if text == str(value) else text
