"""How a snapshot looks in the terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cockpit.findings import Finding, Severity
from cockpit.instruments.reading import number
from cockpit.summary import Reading, status_text
from cockpit.terminal.snapshot import Snapshot, age
from cockpit.terminal.sparkline import BLOCKS, NOT_FINITE, PLAIN, sparkline

__all__ = ["Screen", "page", "screen"]

FINDINGS_SHOWN = 5
TREND_SHARE, TREND_LEAST, TREND_MOST = 0.22, 10, 40
"""Share of the width that sparklines get, and how many characters at least and at most."""

NAME_MOST = 24

MARKS: dict[Severity, tuple[str, str]] = {
    "error": ("E", "bold red"),
    "warning": ("W", "bold yellow"),
    "note": ("i", "bold cyan"),
}
"""Letter and style of each severity: they can be told apart without colours as well."""

STATUS_STYLES = {"running": "bold green", "stopped": "bold yellow", "closed": "bold"}


@dataclass(frozen=True)
class Screen:
    """What fills the terminal.

    Args:
        picture: What to show.
        top: Number of the first line of the table that is shown, counted from 0.
        lines: How many lines of the table there is room for.
    """

    picture: RenderableType
    top: int
    lines: int


def page(shown: Snapshot, console: Console) -> RenderableType:
    """Return all of a snapshot, as long as it may be."""
    parts: list[RenderableType] = list(_head(shown))
    if shown.findings:
        parts += [Text(), *(_finding(one, action=True) for one in shown.findings)]
    parts += [Text(), _table(shown, console, range(len(shown.lines)), fold=True)]
    return Group(*parts)


def screen(shown: Snapshot, console: Console, top: int, problem: str = "") -> Screen:
    """Return what of a snapshot fits into the terminal.

    Args:
        shown: What there is to show.
        console: The terminal.
        top: The line of the table to begin with; it is brought into range.
        problem: Why what is shown may not be the latest.
    """
    head = _head(shown)
    listed = [_finding(one) for one in shown.findings[:FINDINGS_SHOWN]]
    if len(shown.findings) > FINDINGS_SHOWN:
        listed.append(Text(f"  and {len(shown.findings) - FINDINGS_SHOWN} more", style="dim"))
    if problem:
        listed.append(Text(problem, style="bold yellow"))
    fixed = len(head) + len(listed) + bool(listed) + 4  # the table's own head, blank lines, keys
    lines = max(1, console.height - fixed)
    top = max(0, min(top, len(shown.lines) - lines))
    rows = range(top, min(top + lines, len(shown.lines)))
    middle = [Text(), *listed] if listed else []
    keys = Text("q quit", style="dim")
    if len(rows) < len(shown.lines):
        keys.append(f"   ↑ ↓ scroll   {rows.start + 1}-{rows.stop} of {len(shown.lines)}")
    table = _table(shown, console, rows, fold=False)
    for part in (*head, *listed, keys):
        part.no_wrap, part.overflow = True, "ellipsis"
    return Screen(Group(*head, *middle, Text(), table, keys), top, lines)


def _head(shown: Snapshot) -> list[Text]:
    what = shown.about
    first = Text(shown.path, style="bold")
    first.append("  ")
    first.append(status_text(what.status), style=STATUS_STYLES[what.status])
    second = Text(f"{what.steps} steps tracked")
    if what.last is not None:
        second.append(f", the last one {what.last}")
    if what.status == "running":
        if not math.isnan(shown.pace):
            second.append(f", {number(shown.pace)} steps/s")
        if not math.isnan(shown.written):
            second.append(f", {age(shown.written)}")
    third = Text("  ".join([what.size, *what.optimizers]), style="dim")
    return [first, second, third]


def _finding(finding: Finding, action: bool = False) -> Text:
    letter, style = MARKS[finding.severity]
    line = Text(f"{letter} {finding.code}", style=style)
    line.append(f"  step {finding.step}  ", style="not bold default")
    line.append(finding.title, style="bold default")
    if finding.subjects:
        line.append(f"  {', '.join(finding.subjects)}", style="not bold default")
    if action:
        line.append(f"\n  {finding.action}", style="not bold default")
    return line


def _table(shown: Snapshot, console: Console, rows: range, *, fold: bool) -> Table:
    levels = BLOCKS if console.encoding.lower().startswith("utf") else PLAIN
    width = int(min(TREND_MOST, max(TREND_LEAST, TREND_SHARE * console.width)))
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=not fold, show_edge=False)
    drawn.add_column(
        "quantity", style="bold", max_width=NAME_MOST, overflow="fold", no_wrap=not fold
    )
    drawn.add_column("trend", no_wrap=True, min_width=5)
    drawn.add_column("now", justify="right", no_wrap=True)
    drawn.add_column(
        "what it means", overflow="fold" if fold else "ellipsis", no_wrap=not fold, ratio=1
    )
    for row in rows:
        line, trend = shown.lines[row], shown.trends[row]
        drawn.add_row(
            Text(line.quantity), _colored(sparkline(trend, width, levels)), *_reading(line)
        )
    return drawn


def _reading(line: Reading) -> tuple[Text, Text]:
    return Text(line.value), Text(line.meaning)


def _colored(line: str) -> Text:
    text = Text(line, style="cyan")
    text.highlight_regex(f"[{NOT_FINITE}]", "bold red")
    return text
