"""A report as Markdown, for an issue, a message or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from cockpit.comparison import Comparison, Row
from cockpit.findings import Finding
from cockpit.printable import printable
from cockpit.report.content import Content, OneRun, Told
from cockpit.summary import status_text

__all__ = ["markdown"]

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$])")
"""What Markdown, HTML or a formula in it would begin with."""


def markdown(content: Content, told: Told) -> str:
    """Return the report as Markdown."""
    del told  # nothing in it takes time
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield f"# {plain(content.title)}"
    for run in content.runs:
        yield from ("", *_facts(run, len(content.runs) > 1))
    yield from ("", "## Findings", "")
    yield from _findings(content)
    if content.comparison is None:
        yield from ("", "## Where it stands", "")
        lines = content.runs[0].readings
        yield from _table(
            ("quantity", "now", "what it means"),
            [(line.quantity, line.value, line.meaning) for line in lines],
        )
    else:
        yield from _comparison(content.comparison)
    yield from ("", "## Pictures", "")
    yield from _table(
        ("group", "picture", "now", "how to read it"),
        [(p.group.lower(), p.title, p.headline, p.how_to_read) for p in content.panels],
    )
    for run in content.runs:
        of = f" of {plain(run.label)}" if len(content.runs) > 1 else ""
        yield from ("", f"## Events{of}", "")
        yield from _events(run)
        yield from ("", f"## Settings{of}", "")
        yield from _table(("setting", "value"), list(run.settings.items()))


def _facts(run: OneRun, several: bool) -> Iterator[str]:
    what = run.about
    yield from [f"## {plain(run.label)}", ""] if several else []
    yield f"- Run: {plain(run.path)}, {status_text(what.status)}"
    yield f"- Steps: {what.extent}"
    yield f"- Model: {plain(what.size)}"
    yield from (f"- Optimizer: {plain(optimizer)}" for optimizer in what.optimizers)
    yield from (f"- {plain(name)}: {plain(basis)}" for name, basis in what.bases.items())


def _findings(content: Content) -> Iterator[str]:
    several = len(content.runs) > 1
    if not any(run.findings for run in content.runs):
        yield "None were recorded."
    for run in content.runs:
        for finding in run.findings:
            yield _finding(finding, f"{plain(run.label)}: " if several else "")


def _finding(finding: Finding, of: str) -> str:
    subjects = f" ({plain(', '.join(finding.subjects))})" if finding.subjects else ""
    return (
        f"- {of}**{finding.severity} {plain(finding.code)}**, from step {finding.step} on: "
        f"**{plain(finding.title)}**{subjects}. {plain(finding.why)} "
        f"*What to do:* {plain(finding.action)}"
    )


def _comparison(compared: Comparison) -> Iterator[str]:
    for title, rows in (
        ("Best", compared.best),
        ("Now", compared.now),
        ("Findings by run", compared.findings),
        ("Settings that differ", compared.settings),
    ):
        yield from ("", f"## {title}", "")
        yield from _side_by_side(compared.labels, rows)


def _side_by_side(labels: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    yield from _table(("", *labels), [(row.name, *row.values) for row in rows])


def _events(run: OneRun) -> Iterator[str]:
    rows = [("picture", "", "1", "", problem) for problem in run.problems]
    for one in run.about.events:
        first = "" if one.first is None else str(one.first)
        rows.append((one.kind, first, str(one.count), one.subject, one.message))
    yield from _table(("kind", "first step", "times", "subject", "message"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        yield "None."
        return
    yield f"| {' | '.join(map(plain, head))} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(map(plain, row))} |" for row in rows)


def plain(text: str) -> str:
    """Return a text on one line, in which nothing has a meaning to Markdown."""
    return SPECIAL.sub(r"\\\1", " ".join(printable(text).split()))
