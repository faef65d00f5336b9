"""The settings of a run as texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = [
    "arguments_of",
    "flattened",
    "quantity_text",
    "schedule_text",
    "setting_text",
    "settings_texts",
]

QUANTITIES = "quantities."
"""What the names of settings begin with that are the text of a quantity."""

UNSET: tuple[object, ...] = (None, "", [], {})
"""What settings are that were not made."""

BYTES = "memory_budget"
"""The name of the setting that is a number of bytes."""

UNSAID = {"verbose": "False"}
"""Arguments of quantities that say nothing where they have this value."""

WHOLE = r"(-?\d+)"
REAL = r"(-?[\d.]+(?:e[-+]?\d+)?)"


def flattened(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return nested settings as texts by their dotted names, such as ``optimizers.0.lr``."""
    return {name: "none" if value in UNSET else str(value) for name, value in _leaves("", settings)}


def settings_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as people read them, by their dotted names; without those that are not set."""
    return {
        name: setting_text(name, str(value))
        for name, value in _leaves("", settings)
        if value not in UNSET
    }


def setting_text(name: str, value: str) -> str:
    """Return the text of one setting as people read it."""
    if name.startswith(QUANTITIES):
        return quantity_text(value)
    if name == BYTES and value.isascii() and value.isdigit():
        return _bytes_text(int(value))
    return value


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    nested: Mapping[Any, Any] = (
        value
        if isinstance(value, Mapping)
        else dict(enumerate(value))
        if isinstance(value, list)
        else {}
    )
    if not nested and name:
        yield name, value
    for key, one in nested.items():
        yield from _leaves(f"{name}.{key}" if name else str(key), one)


def quantity_text(text: str) -> str:
    """Return the text of a quantity as its schedule in words and its other arguments.

    ``GradNorm(track_schedule=_Linear(interval=3, offset=0), verbose=False)`` becomes ``every 3
    steps``. What has no schedule stays as it is.
    """
    arguments = dict(arguments_of(text))
    schedule = arguments.pop("track_schedule", None)
    if schedule is None:
        return text
    others = [f"{key}={value}" for key, value in arguments.items() if UNSAID.get(key) != value]
    return "; ".join([schedule_text(schedule), *([", ".join(others)] if others else [])])


def arguments_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and values of a text like ``Alpha(verbose=False, range=(0, 1))``."""
    depth, start = 0, text.find("(") + 1
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth < 0 or (depth == 0 and text[place] == ","):
            name, _, value = text[start:place].strip().partition("=")
            if value:
                yield name, value
            start = place + 1


def schedule_text(text: str) -> str:
    """Return the text of a schedule of `cockpit.schedules` in words, any other one as it is."""
    for pattern, words in SCHEDULES:
        found = re.fullmatch(pattern, text)
        if found:
            return words(*found.groups())
    kind, arguments = text.partition("(")[0], dict(arguments_of(text))
    if kind in ("_Either", "_Both") and arguments.keys() == {"first", "second"}:
        first, second = (schedule_text(one) for one in arguments.values())
        return f"{first} {'or' if kind == '_Either' else 'and'} {second}"
    return text


def _linear_text(interval: str, offset: str) -> str:
    every = "every step" if interval == "1" else f"every {interval} steps"
    return every if offset == "0" else f"{every} from {offset} on"


def _at_text(steps: str) -> str:
    listed = sorted(int(step) for step in re.findall(WHOLE, steps))
    return f"at {', '.join(map(str, listed))}" if listed else "never"


def _logarithmic_text(start: str, end: str, steps: str, base: str, init: str) -> str:
    first = ", and step 0" if init == "True" else ""
    return f"{steps} steps from {base}^{start} to {base}^{end}{first}"


def _budget_text(share: str) -> str:
    return f"within {100 * float(share):.3g} % of the training time"


SCHEDULES: tuple[tuple[str, Callable[..., str]], ...] = (
    (rf"_Linear\(interval={WHOLE}, offset={WHOLE}\)", _linear_text),
    (r"_At\(steps=frozenset\((?:\{([-\d, ]*)\})?\)\)", lambda steps: _at_text(steps or "")),
    (
        rf"_Logarithmic\(start={REAL}, end={REAL}, steps={WHOLE}, base={REAL}, init=(True|False)\)",
        _logarithmic_text,
    ),
    (rf"Budget\(share={REAL}\)", _budget_text),
)


def _bytes_text(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"
