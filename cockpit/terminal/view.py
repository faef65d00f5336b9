"""How a snapshot looks in the terminal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from cockpit.findings import Finding, Severity
from cockpit.instruments.reading import number
from cockpit.printable import printable
from cockpit.summary import NOTHING, status_text
from cockpit.terminal.snapshot import Snapshot, age
from cockpit.terminal.sparkline import BLOCKS, NOT_FINITE, PLAIN, sparkline

__all__ = ["Screen", "page", "screen"]

FINDINGS_SHOWN = 5
TREND_SHARE, TREND_LEAST, TREND_MOST = 0.22, 10, 40
"""Share of the width that sparklines get, and how many characters at least and at most."""

NAME_MOST = 24

GAP = 3
"""Blanks between two columns of the table."""

MEANING_LEAST = 20
"""A column of meanings narrower than this is not wrapped: its words would come one by one."""

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
        lines: How many lines of the table are shown.
    """

    picture: RenderableType
    top: int
    lines: int


def page(shown: Snapshot, console: Console) -> RenderableType:
    """Return all of a snapshot, as long as it may be."""
    parts: list[RenderableType] = list(_head(shown))
    if shown.findings:
        parts += [Text(), *(_finding(one, action=True) for one in shown.findings)]
    rows = range(len(shown.lines))
    parts += [Text(), _table(shown, console, rows, fold=True) if rows else Text(NOTHING)]
    return Group(*parts)


def screen(
    shown: Snapshot, console: Console, top: int, problem: str = "", *, full: bool = False
) -> Screen:
    """Return what of a snapshot fits into the terminal.

    Meanings are cut to a line each, unless there is room for all of them.

    Args:
        shown: What there is to show.
        console: The terminal.
        top: The line of the table to begin with; it is brought into range.
        problem: Why what is shown may not be the latest.
        full: Show all of each meaning, and fewer of them.
    """
    head = _head(shown)
    listed = [_finding(one) for one in shown.findings[:FINDINGS_SHOWN]]
    if len(shown.findings) > FINDINGS_SHOWN:
        listed.append(Text(f"  and {len(shown.findings) - FINDINGS_SHOWN} more", style="dim"))
    if problem:
        listed.append(Text(printable(problem), style="bold yellow"))
    fixed = len(head) + len(listed) + bool(listed) + 4  # the table's own head, blank lines, keys
    room = max(1, console.height - fixed)
    heights = _heights(shown, console)
    is_cut = any(height > 1 for height in heights)
    fold = is_cut and (full or sum(heights) <= room)
    rows = _window(heights if fold else [1] * len(heights), room, top)
    middle = [Text(), *listed] if listed else []
    keys = Text("q quit", style="dim")
    if is_cut and sum(heights) > room:
        keys.append(f"   w {'one line each' if full else 'whole texts'}")
    if len(rows) < len(heights):
        keys.append(f"   ↑ ↓ scroll   {rows.start + 1}-{rows.stop} of {len(heights)}")
    table = _table(shown, console, rows, fold=fold, expand=True) if heights else Text(NOTHING)
    for part in (*head, *listed, keys):
        part.no_wrap, part.overflow = True, "ellipsis"
    return Screen(Group(*head, *middle, Text(), table, keys), rows.start, len(rows))


def _heights(shown: Snapshot, console: Console) -> list[int]:
    """Return how many lines each row of the table has where nothing is cut."""
    if not shown.lines:
        return []
    quantity = min(NAME_MOST, max(cell_len(printable(line.quantity)) for line in shown.lines))
    now = max(cell_len(line.value) for line in shown.lines)
    room = console.width - quantity - _trend_width(console) - now - 3 * GAP
    if room < MEANING_LEAST:
        return [1] * len(shown.lines)

    def height(text: str, width: int) -> int:
        text = printable(text)
        if cell_len(text) <= width:
            return 1
        return len(Text(text).wrap(console, width, overflow="fold"))

    return [
        max(height(line.quantity, quantity), height(line.meaning, room)) for line in shown.lines
    ]


def _window(heights: list[int], room: int, top: int) -> range:
    """Return the rows that are shown: from `top` on, but no later than where the rest fits."""
    latest, used = len(heights), 0
    while latest and used + heights[latest - 1] <= room:
        latest -= 1
        used += heights[latest]
    start = max(0, min(top, latest, len(heights) - 1))
    stop, used = start, 0
    while stop < len(heights) and (stop == start or used + heights[stop] <= room):
        used += heights[stop]
        stop += 1
    return range(start, stop)


def _trend_width(console: Console) -> int:
    return int(min(TREND_MOST, max(TREND_LEAST, TREND_SHARE * console.width)))


def _head(shown: Snapshot) -> list[Text]:
    what = shown.about
    first = Text(printable(shown.path), style="bold")
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
    third = Text(printable("  ".join([what.size, *what.optimizers])), style="dim")
    return [first, second, third]


def _finding(finding: Finding, action: bool = False) -> Text:
    letter, style = MARKS[finding.severity]
    line = Text(printable(f"{letter} {finding.code}"), style=style)
    line.append(f"  step {finding.step}  ", style="not bold default")
    line.append(printable(finding.title), style="bold default")
    if finding.subjects:
        line.append(printable(f"  {', '.join(finding.subjects)}"), style="not bold default")
    if action:
        line.append(f"\n  {printable(finding.action)}", style="not bold default")
    return line


def _table(
    shown: Snapshot, console: Console, rows: range, *, fold: bool, expand: bool = False
) -> Table:
    levels = BLOCKS if console.encoding.lower().startswith("utf") else PLAIN
    width = _trend_width(console)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=expand, show_edge=False)
    overflow: OverflowMethod = "fold" if fold else "ellipsis"
    drawn.add_column(
        "quantity", style="bold", max_width=NAME_MOST, overflow=overflow, no_wrap=not fold
    )
    drawn.add_column("trend", no_wrap=True, min_width=5)
    drawn.add_column("now", justify="right", no_wrap=True)
    drawn.add_column("what it means", overflow=overflow, no_wrap=not fold, ratio=1)
    for row in rows:
        line, trend = shown.lines[row], shown.trends[row]
        drawn.add_row(
            Text(printable(line.quantity)),
            _colored(sparkline(trend, width, levels)),
            Text(line.value),
            Text(printable(line.meaning)),
        )
    return drawn


def _colored(line: str) -> Text:
    text = Text(line, style="cyan")
    text.highlight_regex(f"[{NOT_FINITE}]", "bold red")
    return text
