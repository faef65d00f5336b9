"""Writes the pages on instruments, ``docs/instruments/``: what each picture asks, healthy and unhealthy, what to do.

Run it with ``make instruments``: it trains (`trainings.py`), draws (`pictures.py`), and writes the pages. With
``--texts`` it only writes the pages, and with ``--check`` it says whether they are up to date.

Two sections of each page are written by hand, in the page itself, and stay as they are. All else comes from
`questions.py` and from the docstrings, so that it cannot say anything else than these.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pictures import save, side_by_side
from quantities import needs_of, prose, sets_of
from questions import QUESTIONS, Page
from trainings import TRAININGS, diagnosed, kinds, made, train

from benchmarks.readme import between
from cockpit import CockpitPlotter, open_run
from cockpit.doctor import RULES
from cockpit.instruments import INSTRUMENTS, Instrument, panel_of

DOCS = Path(__file__).parent
PAGES = DOCS / "instruments"
SETTINGS = DOCS.parent / "mkdocs.yml"

FINDINGS = PAGES / "findings.json"
"""What the doctor found in the trainings, by their names."""

BY_HAND = "## What unhealthy looks like", "## What to do"
"""The sections that stay."""

AFTER = "## Where it comes from"
"""The section that follows them."""

INTRODUCTION = """\
# How to read each picture

A page for each picture of the cockpit: the question that it answers, what it looks like in a healthy training and in
one that is not, and what to do then. All trainings are real and small: an MLP and a transformer, on the images of
Fashion-MNIST and the text of *Moby-Dick* that come with the repository. They differ in what is written above the
pictures, and in nothing else. `make instruments` trains and draws them anew.

Where to begin:

- **The loss does not fall:** [are steps too short](alpha.md), [do updates arrive](update-ratio-layers.md), [does every
  layer get a gradient](grad-norm-layers.md), [is there anything to learn](mean-gsnr.md)?
- **The loss jumps or grows:** [how far do steps go](alpha-distribution.md), [is the learning rate too
  high](hess-max-ev.md), [is it single samples](per-sample-outliers.md), [do gradients add up](grad-norm.md)?
- **The loss fell, and has come to a stop:** [has the schedule ended](learning-rate.md), [have units
  died](activation-zeros.md), [is it noise that is left](grad-tests.md), [does rounding take the
  updates](lost-updates.md)?
- **It is good in training only:** [training and validation](accuracy.md).
- **NaN:** [where they come from](non-finite.md). **It is slow:** [the time of a step](step-time.md).
- **A new model or new data:** [the scale of the inputs](grad-histogram.md), [signals over
  depth](activation-depth.md), [the values of the weights](parameter-histogram-layers.md).

Or let [the doctor](../doctor.md) look first: each page says what it finds in the training that is shown.

`run.plot("alpha")` draws one of the pictures by its name; a number with `~` beside a title is the median of the last
tenth of the steps, of ten at least, as in `cockpit show`.
"""

ALL = """\
## All at once

`run.plot()` draws all that a run has data for:

![All pictures of a healthy training](overview.png)
"""

NOTE = "<!-- Made by `make instruments`, but for two sections by hand: what unhealthy looks like, what to do. -->"

BEGIN, END = "      # instruments: begin", "      # instruments: end"
"""Between these lines of mkdocs.yml stand the pages in the menu."""


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say whether they are up to date."""
    parser = argparse.ArgumentParser(prog="python docs/instruments.py", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only say whether the texts are up to date"
    )
    parser.add_argument(
        "--texts", action="store_true", help="write the texts only, without training"
    )
    parser.add_argument(
        "--runs", type=Path, help="folder of the run files; those that are there are not made again"
    )
    parser.add_argument(
        "--only", nargs="+", help="names of the instruments to draw; all by default"
    )
    options = parser.parse_args(arguments)
    PAGES.mkdir(exist_ok=True)
    if not options.check and not options.texts:
        with TemporaryDirectory() as temporary:
            draw_all(options.runs or Path(temporary), options.only)
    return write(check=options.check)


# -- pictures ---------------------------------------------------------------------------------------


def pages() -> list[Page]:
    """Return all pages.

    Raises:
        ValueError: if not every instrument has one.
    """
    found = [page for of_question in QUESTIONS.values() for page in of_question]
    names, known = sorted(page.name for page in found), sorted(item.name for item in INSTRUMENTS)
    if names != known:
        different = sorted(set(names) ^ set(known))
        raise ValueError(f"Every instrument stands in QUESTIONS once; look at {different}.")
    return found


def draw_all(folder: Path, only: Sequence[str] | None = None) -> None:
    """Train, and draw all pictures, or some.

    Args:
        folder: Where the run files are written; those that are there already are not made again.
        only: Names of the instruments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [page for page in pages() if only is None or page.name in only]
    needed = dict.fromkeys(name for page in chosen for name in (page.left, page.right))
    for name in needed:
        path = folder / f"{name}.db"
        if not path.exists():
            print(f"{name}: {TRAININGS[name].words}", flush=True)
            train(path, TRAININGS[name], map(made, sorted(tracked_in(name))))
    for page in chosen:
        draw(page, folder)
    if only is None:
        found = {name: diagnosed(folder / f"{name}-health.db", TRAININGS[name]) for name in needed}
        FINDINGS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        title = "A healthy training of an MLP on Fashion-MNIST"
        figure = CockpitPlotter().plot(folder / "mlp.db", show_plot=False, plot_title=title)
        save(figure, PAGES / "overview.png", dpi=90, colours=None)


def tracked_in(training: str) -> set[str]:
    """Return which quantities the pictures of a training need."""
    shown = [page for page in pages() if training in (page.left, page.right)]
    return {name for page in shown for name in instrument_of(page).quantities} & set(kinds())


def draw(page: Page, folder: Path) -> None:
    """Draw the two pictures of a page."""
    both = [
        panel_of(open_run(folder / f"{name}.db"), page.name) for name in (page.left, page.right)
    ]
    words = [TRAININGS[name].words for name in (page.left, page.right)]
    figure = side_by_side((both[0], both[1]), ("Healthy", "Unhealthy"), words, page.same)
    save(figure, PAGES / f"{page.name}.png")


# -- texts ------------------------------------------------------------------------------------------


def write(check: bool) -> int:
    """Write all texts that are not up to date, or say which these are."""
    new = {PAGES / f"{page.name}.md": text_of(page) for page in pages()}
    new |= {PAGES / "index.md": index(), SETTINGS: updated(SETTINGS.read_text(encoding="utf-8"))}
    stale = [
        path
        for path, text in new.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check:
        late = (f"{path.name} is out of date: make instruments" for path in stale)
        print("\n".join(late) or "up to date")
        return int(bool(stale))
    for path in stale:
        path.write_text(new[path], encoding="utf-8")
    return 0


def text_of(page: Page) -> str:
    """Return the text of a page, with the sections by hand as they are."""
    item = instrument_of(page)
    left, right = (TRAININGS[name].words for name in (page.left, page.right))
    parts = [
        f"# {said(item, 'title')}",
        NOTE,
        f"**{page.question}**",
        f"![{said(item, 'title')}, in two trainings]({page.name}.png)",
        f"*Left, healthy: {left}. Right, unhealthy: {right}.*",
        "## How to read it",
        said(item, "how_to_read"),
        *explained(item),
    ]
    parts += [f"{heading}\n\n{text}" for heading, text in by_hand(page).items()]
    parts += [AFTER, *origin(page, item)]
    return "\n\n".join(parts) + "\n"


def by_hand(page: Page) -> dict[str, str]:
    """Return the sections of a page that were written by hand; empty where there are none."""
    path = PAGES / f"{page.name}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = {}
    for heading, following in zip(BY_HAND, (*BY_HAND[1:], AFTER), strict=True):
        _, _, rest = text.partition(f"\n{heading}\n")
        found[heading] = rest.partition(f"\n{following}\n")[0].strip()
    return found


def said(item: Instrument, what: str) -> str:
    """Return the title of an instrument, or how it says to read it, from its code: no run is needed.

    Words that depend on the run, which is the name of the matrix, become "curvature".
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(item.read)))
    words = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == what
    ]
    (value,) = words
    if isinstance(value, ast.JoinedStr):
        literal = (
            one.value if isinstance(one, ast.Constant) else "curvature" for one in value.values
        )
        return "".join(map(str, literal))
    return str(ast.literal_eval(value))


def explained(item: Instrument) -> Iterator[str]:
    """Yield what the quantities of an instrument say about reading them."""
    for name in tracked_by(item):
        for paragraph in prose(kinds()[name]):
            if paragraph.startswith("**How to read it:**"):
                text = " ".join(paragraph.removeprefix("**How to read it:**").split())
                yield f"[`{name}`](../quantities.md#{name.lower()}): {text}"


def origin(page: Page, item: Instrument) -> Iterator[str]:
    """Yield what to track for a picture, how to draw it, which rules look at the same, and the source."""
    names = tracked_by(item)
    lines = [f'- **Draw it:** `run.plot("{item.name}")`.', *map(tracking, names)]
    if logged := [f"{name}=..." for name in item.quantities if name not in names]:
        lines.append(f"- **Log** `watch.log(step, {', '.join(logged)})`, of these what you have.")
    lines.append(f"- **The doctor** {diagnosis_of(page.right)}")
    if others := [code for code in rules_of(page) if code not in findings_of(page.right)]:
        lines.append(f"- **Its rules** on what is seen here: {', '.join(map(rule, others))}.")
    lines += sources(names)
    yield "\n".join(lines)
    yield "[All pictures](index.md)"


def tracking(name: str) -> str:
    """Return how to track a quantity: its name, the sets that have it, and what it needs."""
    kind = kinds()[name]
    parts = [f"[`quantities.{name}`](../quantities.md#{name.lower()})"]
    if sets := [f"`{one}`" for one in sets_of(kind)]:
        parts.append(f"part of {', '.join(sets)}")
    if needs := needs_of(kind):
        parts.append(f"needs: {', '.join(needs)}")
    return f"- **Track** {'; '.join(parts)}."


def sources(names: Sequence[str]) -> list[str]:
    """Return where quantities come from, each source once."""
    start = "**Source:**"
    found = (paragraph for name in names for paragraph in prose(kinds()[name]))
    texts = (" ".join(one.split()) for one in found if one.startswith(start))
    return list(dict.fromkeys(f"- {text}" for text in texts))


def rules_of(page: Page) -> list[str]:
    """Return the codes of the rules that look at what a picture shows."""
    return [rule.code for rule in RULES if rule.instrument == page.name or rule.code in page.rules]


def rule(code: str) -> str:
    """Return a link to a rule."""
    (name,) = (rule.name for rule in RULES if rule.code == code)
    return f"[{code} {name}](../doctor.md#what-it-names)"


def diagnosis_of(training: str) -> str:
    """Return in words what the doctor has found in a training."""
    found = json.loads(FINDINGS.read_text(encoding="utf-8"))[training]
    if not found["findings"]:
        return "finds nothing in the training on the right."
    causes, consequences = (
        ", ".join(map(rule, found[kind])) for kind in ("findings", "consequences")
    )
    explained = f", and as consequences of that {consequences}" if consequences else ""
    return f"finds in the training on the right: {causes}{explained}."


def findings_of(training: str) -> list[str]:
    """Return the codes of all that the doctor has found in a training."""
    found = json.loads(FINDINGS.read_text(encoding="utf-8"))[training]
    return [*found["findings"], *found["consequences"]]


def instrument_of(page: Page) -> Instrument:
    """Return the instrument of a page."""
    return next(item for item in INSTRUMENTS if item.name == page.name)


def tracked_by(item: Instrument) -> list[str]:
    """Return the quantities of an instrument that are tracked, not logged."""
    return [name for name in item.quantities if name in kinds()]


def index() -> str:
    """Return the page with all questions."""
    parts = [INTRODUCTION]
    for question, of_question in QUESTIONS.items():
        rows = ["| picture | question |", "|---|---|"]
        for page in of_question:
            title = said(instrument_of(page), "title")
            rows.append(f"| [{title}]({page.name}.md) | {page.question} |")
        parts.append(f"## {question}\n\n" + "\n".join(rows) + "\n")
    return "\n".join([*parts, ALL])


def updated(settings: str) -> str:
    """Return mkdocs.yml with all pages in the menu.

    Raises:
        ValueError: if their place is not marked once.
    """
    lines = ["      - Every picture:", "          - instruments/index.md"]
    for question, of_question in QUESTIONS.items():
        lines.append(f"          - {question}:")
        lines += [f"              - instruments/{page.name}.md" for page in of_question]
    return between(settings, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
