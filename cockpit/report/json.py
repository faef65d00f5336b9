"""A report as JSON, for programs."""

from __future__ import annotations

import json as encoding
from dataclasses import asdict
from typing import Any

from cockpit._version import __version__
from cockpit.comparison import Comparison, Row
from cockpit.instruments import panel_data, thinned
from cockpit.report.content import Content, OneRun, Told

__all__ = ["json"]

VERSION = 1
"""Of what the keys mean; more may be added without a new one."""

PIXELS = 800
"""Width for which long curves are thinned; all values are in the run file."""


def json(content: Content, told: Told) -> str:
    """Return the report as strict JSON: NaN is null, and infinities are texts."""
    panels = []
    for done, panel in enumerate(content.panels):
        told(done, len(content.panels))
        panels.append(panel_data(thinned(panel, PIXELS)))
    told(len(panels), len(panels))
    report = {
        "format": "cockpit-report",
        "version": VERSION,
        "written_by": f"torch-cockpit {__version__}",
        "runs": [_run(run) for run in content.runs],
        "comparison": None if content.comparison is None else _comparison(content.comparison),
        "panels": panels,
    }
    return encoding.dumps(report, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _run(run: OneRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "path": run.path,
        **asdict(run.about),
        "settings": run.settings,
        "readings": [asdict(line) for line in run.readings],
        "findings": [finding.record() for finding in run.findings],
        "problems": list(run.problems),
    }


def _comparison(compared: Comparison) -> dict[str, Any]:
    def rows(of: tuple[Row, ...]) -> list[dict[str, Any]]:
        return [
            {"name": row.name, **dict(zip(compared.labels, row.values, strict=True))} for row in of
        ]

    return {
        "labels": list(compared.labels),
        "best": rows(compared.best),
        "now": rows(compared.now),
        "findings": rows(compared.findings),
        "settings": rows(compared.settings),
        "equal_settings": compared.equal,
    }
