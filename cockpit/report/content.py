"""What stands in a report, whatever it is written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cockpit.comparison import Comparison, compare, labels_of
from cockpit.findings import SEVERITIES, Finding
from cockpit.instruments import Panel, panels
from cockpit.instruments.overlay import overlay
from cockpit.run import Run
from cockpit.summary import About, Reading, about, readings, settings_texts

__all__ = ["Content", "OneRun", "Told", "content_of"]

Told = Callable[[int, int], None]
"""Is told how much is done, of how much."""


@dataclass(frozen=True)
class OneRun:
    """One run of a report.

    Args:
        label: A short name, different from those of the others.
        path: Its file.
        about: What it is.
        settings: What it was told when it began, as texts by dotted names.
        readings: Where each quantity stands, and what that means.
        findings: What is wrong with it, the worst and then the earliest first.
        problems: Why pictures are missing.
    """

    label: str
    path: str
    about: About
    settings: dict[str, str]
    readings: tuple[Reading, ...]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Content:
    """What stands in a report.

    Args:
        runs: The runs, at least one.
        panels: The pictures, those of several runs in one where that can be.
        comparison: The runs side by side; None for a single one.
    """

    runs: tuple[OneRun, ...]
    panels: tuple[Panel, ...]
    comparison: Comparison | None

    @property
    def title(self) -> str:
        """What the report is called."""
        return ", ".join(run.label for run in self.runs)


def content_of(runs: Sequence[Run]) -> Content:
    """Read what stands in the report of one or of several runs."""
    labels = labels_of([run.path for run in runs])
    drawn: dict[str, list[Panel]] = {}
    read = []
    for label, run in zip(labels, runs, strict=True):
        problems: list[str] = []

        def note(name: str, error: Exception, problems: list[str] = problems) -> None:
            problems.append(f"no picture of {name}: {type(error).__name__}: {error}")

        drawn[label] = panels(run, on_error=note)
        read.append(_one(run, label, tuple(problems)))
    if len(runs) == 1:
        return Content(tuple(read), tuple(drawn[labels[0]]), None)
    return Content(tuple(read), tuple(overlay(drawn)), compare(runs))


def _one(run: Run, label: str, problems: tuple[str, ...]) -> OneRun:
    found = sorted(
        run.finding_records(), key=lambda one: (SEVERITIES.index(one.severity), one.step)
    )
    return OneRun(
        label=label,
        path=str(run.path),
        about=about(run),
        settings=settings_texts(run.settings),
        readings=tuple(readings(run)),
        findings=tuple(found),
        problems=problems,
    )
