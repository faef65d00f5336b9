"""The report as text, as HTML, and for rich."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cockpit.coverage.coverage import Coverage

HEADER = ("parameters", "shape", "layer", "served by")
SECTIONS = ("To know", "Not tracked")
GAP = "  "


def sections(coverage: Coverage) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the remarks under the table that there are: title, and names with what is said of them."""
    found = (list(coverage.remarks()), list(coverage.excuses()))
    return [(title, said) for title, said in zip(SECTIONS, found, strict=True) if said]


def text(coverage: Coverage, width: int, collapse: bool) -> str:
    """Return the report in lines of `width` columns."""
    lines = [HEADER, *coverage.lines(collapse)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    widths[0] = max(16, min(widths[0], width - sum(widths[1:]) - len(GAP) * (len(HEADER) - 1)))
    out = [*textwrap.wrap(f"{coverage.model}: {coverage.summary()}", width), ""]
    for line in lines:
        name, *others = line
        cells = [cell.ljust(size) for cell, size in zip(others, widths[1:], strict=True)]
        *first, last = [name[i : i + widths[0]] for i in range(0, len(name), widths[0])]
        out += first  # a name that is too long goes over several lines
        out.append(GAP.join([last.ljust(widths[0]), *cells]).rstrip())
        if line is HEADER:
            out.append("─" * min(width, sum(widths) + len(GAP) * (len(HEADER) - 1)))
    for title, said in sections(coverage):
        out += ["", title]
        for names, what in said:
            entry = f"{names}: {what}" if names else what
            out += textwrap.wrap(
                entry, width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
            )
    return "\n".join(out)


def html(coverage: Coverage) -> str:
    """Return the report as HTML."""

    def row(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(row(line, "td") for line in coverage.lines())
    out = [
        f"<p><b>{escape(coverage.model)}</b>: {escape(coverage.summary())}</p>",
        f"<table><thead>{row(HEADER, 'th')}</thead><tbody>{body}</tbody></table>",
    ]
    for title, said in sections(coverage):
        items = "".join(
            f"<li>{f'<code>{escape(names)}</code>: ' if names else ''}{escape(what)}</li>"
            for names, what in said
        )
        out.append(f"<p><b>{title}</b></p><ul>{items}</ul>")
    return "".join(out)


def rich(coverage: Coverage) -> Any:
    """Return the report as what rich prints."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(*HEADER, box=None)
    for line in coverage.lines():
        table.add_row(*map(Text, line))  # as text, since [...] would be markup
    parts: list[Any] = [Text(f"{coverage.model}: {coverage.summary()}"), table]
    for title, said in sections(coverage):
        parts.append(Text(f"\n{title}", style="bold"))
        for names, what in said:
            parts.append(Text(f"- {names}: {what}" if names else f"- {what}"))
    return Group(*parts)
