"""A report as one page of HTML: no script, nothing from elsewhere, light or dark as the reader has it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from itertools import groupby

from cockpit._version import __version__
from cockpit.comparison import Comparison, Row
from cockpit.findings import Finding
from cockpit.instruments import Panel
from cockpit.instruments.overlay import colors_of
from cockpit.instruments.reading import number
from cockpit.plotting.theme import THEMES
from cockpit.report.content import Content, OneRun, Told
from cockpit.report.svg import colors, picture
from cockpit.summary import NOTHING, Reading, status_text

__all__ = ["html"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What the reader's browser is to allow: no script and no network, whatever the names of a run are."""


def html(content: Content, told: Told) -> str:
    """Return the report as a page."""
    title = escape(f"{content.title} · cockpit")
    body = "".join(_body(content, told))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{_style()}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _style() -> str:
    """Return the rules, with the colours of both themes as variables."""
    light, dark = (
        "".join(f"--{name}: {color}; " for name, color in colors(THEMES[theme]).items())
        for theme in ("light", "dark")
    )
    shown = ":root {{ {} }} .{} {{ display: none !important; }}\n"
    rules = resources.files("cockpit.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f"{rules}{shown.format(light, 'dark')}"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} "
        ".dark { display: block !important; } .light { display: none !important; } }\n"
    )


def _body(content: Content, told: Told) -> Iterator[str]:
    yield _header(content)
    yield _navigation(content)
    yield "<main>\n"
    yield from _findings(content)
    if content.comparison is None:
        yield from _readings(content.runs[0].readings)
    else:
        yield from _comparison(content.comparison)
    yield from _pictures(content.panels, told)
    for place, run in enumerate(content.runs):
        several = len(content.runs) > 1
        of, number_of = (f" of {escape(run.label)}", f"-{place + 1}") if several else ("", "")
        yield f'<h2 id="events{number_of}">Events{of}</h2>\n'
        yield from _events(run)
        yield f'<h2 id="settings{number_of}">Settings{of}</h2>\n'
        yield from _settings(run)
    yield "</main>\n"
    yield f"<footer>Written by torch-cockpit {__version__}.</footer>\n"


# -- what it is -----------------------------------------------------------------------------------


def _header(content: Content) -> str:
    facts = [_facts(run) for run in content.runs]
    if len(facts) == 1:
        rows = "".join(
            f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts[0].items()
        )
        shown = f'<dl class="facts">{rows}</dl>'
    else:
        head = "".join(f"<th>{name}</th>" for name in ("Run", *facts[0]))
        body = "".join(
            f"<tr><th scope=row>{_run(run.label, content)}</th>"
            + "".join(f"<td>{value}</td>" for value in own.values())
            + "</tr>\n"
            for run, own in zip(content.runs, facts, strict=True)
        )
        shown = _table(head, body, "")
    return f"<header><div>\n<h1>{escape(content.title)}</h1>\n{shown}</div></header>\n"


def _facts(run: OneRun) -> dict[str, str]:
    """Return what a run is, by headings."""
    what = run.about
    return {
        "Status": f'<span class="status {what.status}">{escape(status_text(what.status))}</span>',
        "Steps": escape(what.extent),
        "Model": escape(what.size),
        "Optimizer": escape("; ".join(what.optimizers)) or "not known",
        "Began": _time(what.created),
        "File": f"<code>{_breakable(run.path)}</code>",
    }


def _breakable(name: str) -> str:
    """Return a name, escaped, that may be broken between its parts where there is little room."""
    return re.sub(r"([_./])(?=[\w])", r"\1<wbr>", escape(name))


def _time(moment: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment)) if moment else ""
    except (OverflowError, ValueError, OSError):  # what a damaged file says
        return ""


def _run(label: str, content: Content) -> str:
    color = colors_of(run.label for run in content.runs)[label]
    return f'<b class="run" style="--dot: var(--c-{color})">{escape(label)}</b>'


def _navigation(content: Content) -> str:
    groups = [group for group, _ in groupby(content.panels, lambda panel: panel.group)]
    middle = "Side by side" if content.comparison is not None else "Where it stands"
    targets = [("findings", "Findings"), ("standing", middle)]
    targets += [(_anchor(group), group.capitalize()) for group in groups]
    number_of = "-1" if len(content.runs) > 1 else ""
    targets += [(f"events{number_of}", "Events"), (f"settings{number_of}", "Settings")]
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in targets)
    return f"<nav><div>{links}</div></nav>\n"


# -- what is wrong --------------------------------------------------------------------------------


def _findings(content: Content) -> Iterator[str]:
    count = sum(len(run.findings) for run in content.runs)
    yield f'<h2 id="findings">Findings{f" ({count})" if count else ""}</h2>\n'
    if not count:
        yield '<div class="card empty">None were recorded.</div>\n'
        return
    shown = {panel.name.partition("/")[0]: panel for panel in reversed(content.panels)}
    yield '<div class="findings">\n'
    for run in content.runs:
        of = _run(run.label, content) if len(content.runs) > 1 else ""
        for finding in run.findings:
            yield _finding(finding, of, shown.get(finding.instrument or ""))
    yield "</div>\n"


def _finding(finding: Finding, run: str, panel: Panel | None) -> str:
    subjects = (
        f"<p class=where>{escape(', '.join(finding.subjects))}</p>" if finding.subjects else ""
    )
    evidence = "; ".join(f"{name} = {_value(value)}" for name, value in finding.evidence.items())
    small = [f"Evidence: {evidence}"] if evidence else []
    small += [f"Source: {finding.source}"] if finding.source else []
    small += [f"Confidence: {100 * finding.confidence:.0f} %"] if finding.confidence < 1 else []
    link = (
        f' <a href="#{_panel_anchor(panel)}">See: {escape(panel.title)}</a>'
        if panel is not None
        else ""
    )
    return (
        f'<article class="card finding {finding.severity}"><div class="top">{run}'
        f'<span class="severity">{finding.severity.upper()} {escape(finding.code)}</span>'
        f"<h3>{escape(finding.title)}</h3>"
        f'<span class="where">{escape(finding.name)}, from step {finding.step} on</span></div>'
        f"{subjects}<p>{escape(finding.why)}</p><p><b>What to do:</b> {escape(finding.action)}{link}</p>"
        f'<p class="small">{escape(". ".join(small))}</p></article>\n'
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


# -- where it stands ------------------------------------------------------------------------------


def _readings(lines: Sequence[Reading]) -> Iterator[str]:
    yield '<h2 id="standing">Where it stands</h2>\n'
    rows = "".join(
        f"<tr><th scope=row>{_breakable(line.quantity)}</th>"
        f'<td class="number">{escape(line.value)}</td><td>{escape(line.meaning)}</td></tr>\n'
        for line in lines
    )
    yield _table(
        '<th>quantity</th><th class="number">now</th><th>what it means</th>',
        rows,
        NOTHING,
    )
    if any(line.value.startswith("~") for line in lines):
        yield '<p class="how">~ median of the last tenth of the steps, of 10 at least</p>\n'


def _comparison(compared: Comparison) -> Iterator[str]:
    yield '<h2 id="standing">Side by side</h2>\n'
    for title, rows, empty in (
        ("best", compared.best, "No loss and no accuracy has been recorded."),
        ("now", compared.now, NOTHING),
        ("finding", compared.findings, ""),
        (
            "setting that differs",
            compared.settings,
            f"No setting differs; {compared.equal} are the same.",
        ),
    ):
        if rows or empty:
            yield _side_by_side(title, compared.labels, rows, empty)


def _side_by_side(title: str, labels: Iterable[str], rows: Sequence[Row], empty: str) -> str:
    head = "".join(f"<th>{escape(label)}</th>" for label in labels)
    body = "".join(
        f"<tr><th scope=row>{_breakable(row.name)}</th>"
        + "".join(f"<td>{escape(value) or '–'}</td>" for value in row.values)
        + "</tr>\n"
        for row in rows
    )
    return _table(f"<th>{title}</th>{head}", body, empty, "even")


def _table(head: str, rows: str, empty: str, kind: str = "") -> str:
    if not rows:
        return f'<div class="card empty">{escape(empty)}</div>\n'
    return (
        f'<div class="card scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>\n"
    )


# -- pictures -------------------------------------------------------------------------------------


def _pictures(panels: Sequence[Panel], told: Told) -> Iterator[str]:
    done = 0
    for group, members in groupby(panels, lambda panel: panel.group):
        color = f"--group: var(--g-{_anchor(group)})"
        yield f'<section style="{color}"><h2 class="group" id="{_anchor(group)}">{group}</h2>\n'
        yield '<div class="panels">\n'
        for panel in members:
            told(done, len(panels))
            done += 1
            yield _panel(panel, f"p{done}")
        yield "</div></section>\n"
    told(len(panels), len(panels))


def _panel(panel: Panel, prefix: str) -> str:
    try:
        drawn = picture(panel, prefix)
    except Exception as error:  # one picture that cannot be drawn leaves the others alone
        reason = escape(f"{type(error).__name__}: {error}")
        drawn = f'<p class="empty">This picture could not be drawn. {reason}</p>'
    headline = f'<span class="headline">{escape(panel.headline)}</span>' if panel.headline else ""
    return (
        f'<article class="card panel" id="{_panel_anchor(panel)}" data-panel="{escape(panel.name)}">'
        f'<div class="top"><h3>{escape(panel.title)}</h3>{headline}</div>'
        f'<p class="how">{escape(panel.how_to_read)}</p>{drawn}</article>\n'
    )


def _panel_anchor(panel: Panel) -> str:
    """Return the id of a panel's card; names of runs and quantities may be in its name."""
    return f"panel-{_anchor(panel.name or panel.title)}"


def _anchor(text: str) -> str:
    """Return a text as an id: letters, digits and hyphens; all else by its number."""
    return re.sub(r"[^a-z0-9-]", lambda c: "-" if c[0] in " /" else f"_{ord(c[0]):x}", text.lower())


# -- what happened, and what was set ---------------------------------------------------------------


def _events(run: OneRun) -> Iterator[str]:
    rows = [("picture", "", "", problem, 1) for problem in run.problems] + [
        (one.kind, "" if one.first is None else str(one.first), one.subject, one.message, one.count)
        for one in run.about.events
    ]
    body = "".join(
        f"<tr><th scope=row>{escape(kind.replace('-', ' '))}</th><td>{escape(message)}</td>"
        f"<td>{escape(subject)}</td><td>{escape(first)}</td><td>{count}</td></tr>\n"
        for kind, first, subject, message, count in rows
    )
    head = "<th>kind</th><th>message</th><th>subject</th><th>first step</th><th>times</th>"
    checked = ": everything that was due was checked" if run.about.steps else ""
    yield _table(head, body, f"None{checked}.")


def _settings(run: OneRun) -> Iterator[str]:
    if run.about.bases:
        rows = _named({f"{name} computed from": text for name, text in run.about.bases.items()})
        yield _table("<th>curvature</th><th></th>", rows, "")
    parts = {
        "Quantities": ("quantities.",),
        "Versions and machine": ("versions.", "platform"),
        "Everything": ("",),
    }
    if not run.settings:
        yield '<div class="card empty">The file says nothing of them.</div>\n'
        return
    for title, start in parts.items():
        rows = _named({k: v for k, v in run.settings.items() if k.startswith(start)})
        if rows:
            opened = " open" if title.startswith("Versions") else ""
            yield (
                f'<details class="card"{opened}><summary>{title}</summary>'
                f'<div class="scroll"><table><tbody>\n{rows}</tbody></table></div></details>\n'
            )


def _named(values: dict[str, str]) -> str:
    return "".join(
        f"<tr><th scope=row>{_breakable(name)}</th><td><code>{escape(value)}</code></td></tr>\n"
        for name, value in values.items()
    )
