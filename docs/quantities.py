"""Writes ``docs/quantities.md`` and the README's table of quantities, from the quantities themselves.

Run it with ``make pages``; with ``--check`` it only says whether both are up to date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from cockpit import quantities
from cockpit.engine.curvature import FromProducts, SampledDiagonal
from cockpit.engine.kronecker import KroneckerFactors
from cockpit.engine.needs import (
    AlongPreviousUpdate,
    AlongUpdate,
    InForward,
    LearningRates,
    Next,
    OfUpdate,
)
from cockpit.presets import PRESETS
from cockpit.quantities import Quantity
from cockpit.transforms import Need, Transform

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "quantities.md", ROOT / "README.md"
BEGIN, END = "<!-- quantities: begin -->", "<!-- quantities: end -->"

THEMES: dict[str, tuple[str, str]] = {
    "Steps": (
        "Is the step of the right length, and does it arrive in the weights?",
        "Alpha UpdateSize Distance UpdateRatio UpdateSlopes LostUpdates Shrinkage AdamStaleness",
    ),
    "Gradients": (
        "Does every layer get a gradient, and of what size?",
        "GradNorm GradHist1d GradHist2d",
    ),
    "Noise": (
        "How well do the samples of a batch agree, and is the batch large enough?",
        "NormTest InnerTest OrthoTest GradientNoiseScale CABS MeanGSNR GradientAlignment "
        "EarlyStopping PerSampleOutliers",
    ),
    "Curvature": (
        "How sharp is the loss here, and does the learning rate fit?",
        "HessMaxEV HessTrace HessianSpectrum DirectionalCurvature PreconditionedSharpness "
        "CriticalSharpness KroneckerSpectrum TICDiag TICTrace",
    ),
    "Layers": (
        "Do units die, saturate or blow up?",
        "ActivationStats AttentionStats ParameterStats NonFinite",
    ),
    "Training": ("How does it go, and how fast?", "Loss Parameters Time"),
}
"""A question for each theme, and its quantities."""

BASES = {"Outcome", "Quantity"}
"""Public names of `cockpit.quantities` that are no quantities."""

INTRODUCTION = r"""# Quantities

What can be tracked, by theme: formula, how to read it, and where it comes from. This page is made from
the docstrings (`make pages`); `help(cockpit.quantities.Alpha)` shows the same.

**Notation.** $N$ batch size, $i$ a sample, $p$ a parameter tensor, $d$ one of its elements (or, where a text
says so, the update), $L$ the mean loss, $g_i$ the gradient of the loss of sample $i$, $g = \frac{1}{N} \sum_i
g_i$ the mini-batch gradient, $\theta$ the parameters, $\eta$ the learning rate. Shapes stand in brackets: `[N]`
is a number for each sample, `[]` a single number.

**Sets.** `configuration("economy")` and the other labels are sets of quantities; a quantity of its own is
`Cockpit(model, [quantities.Alpha(), ...])`. Every quantity takes `track_schedule`, the steps on which it is
tracked, and `verbose`; its own settings stand with it.

**Needs.** *Individual losses* are `watch(step, loss=loss, individual_losses=losses)`; a *closure* evaluates the
loss anew, `watch(step, ..., closure=closure)`; the *optimizer* is given to the cockpit, `Cockpit(...,
optimizer=opt)`. [Which quantity works on which model](coverage.md), [what each costs](cost.md), [how to write
one](own-quantity.md).
"""


def main(arguments: Sequence[str]) -> int:
    """Write both files, or say whether they are up to date."""
    parser = argparse.ArgumentParser(prog="python docs/quantities.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether all is up to date")
    check = parser.parse_args(arguments).check
    new = {PAGE: page(), README: updated(README.read_text(encoding="utf-8"))}
    stale = [
        path
        for path, text in new.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check:
        print(
            "\n".join(f"{path.name} is out of date: make pages" for path in stale) or "up to date"
        )
        return int(bool(stale))
    for path in stale:
        path.write_text(new[path], encoding="utf-8")
    return 0


def kinds_of(theme: str) -> list[type[Quantity]]:
    """Return the quantities of a theme."""
    return [getattr(quantities, name) for name in THEMES[theme][1].split()]


def page() -> str:
    """Return the page.

    Raises:
        ValueError: if a public quantity stands in no theme.
    """
    known = [name for _, names in THEMES.values() for name in names.split()]
    missing = set(quantities.__all__) - BASES - set(known)
    if missing or len(set(known)) != len(known):
        raise ValueError(f"Every quantity stands in one of THEMES; look at {sorted(missing)}.")
    parts = [INTRODUCTION, overview()]
    for theme, (question, _) in THEMES.items():
        parts += [f"## {theme}\n\n{question}\n", *map(section, kinds_of(theme))]
    return "\n".join(parts)


def overview() -> str:
    """Return the table of all quantities, with their sets and their needs."""
    rows = ["| quantity | what it is | sets | needs |", "|---|---|---|---|"]
    for theme in THEMES:
        for kind in kinds_of(theme):
            name = kind.__name__
            cells = link(name), summary(kind), ", ".join(sets_of(kind)), ", ".join(needs_of(kind))
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def section(kind: type[Quantity]) -> str:
    """Return what the page says of a quantity."""
    paragraphs = list(prose(kind))
    settings = list(settings_of(kind))
    lines = [f"### {kind.__name__}", *paragraphs]
    value = inspect.getdoc(kind.compute) or ""
    if value.startswith("Return "):
        lines.append(f"**Value:** {markdown(one_line(value)).removeprefix('Return ')}")
    needs = f"**Needs:** {', '.join(needs_of(kind)) or 'nothing else'}."
    sets = f" **In the sets:** {', '.join(sets_of(kind))}." if sets_of(kind) else ""
    lines.append(needs + sets)
    if settings:
        rows = "\n".join(f"| `{name}` | `{default}` | {text} |" for name, default, text in settings)
        lines.append(f"| setting | default | |\n|---|---|---|\n{rows}")
    return "\n\n".join(lines) + "\n"


def summary(kind: type[Quantity]) -> str:
    """Return the first line of a docstring."""
    return markdown((inspect.getdoc(kind) or "").partition("\n\n")[0])


def prose(kind: type[Quantity]) -> Iterator[str]:
    """Yield the paragraphs of a docstring before its sections, with the first words in bold."""
    text = (inspect.getdoc(kind) or "").partition("\nArgs:")[0]
    for paragraph in text.strip().split("\n\n"):
        yield re.sub(
            r"^(Formula|How to read it|Source|With accumulation):",
            r"**\1:**",
            markdown(paragraph),
        )


def settings_of(kind: type[Quantity]) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of a quantity that not all have: name, default, what it is."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("\nArgs:\n")
    section = listed.partition("\n\n")[0]
    said = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, flags=re.M))
    for field in fields(kind):
        if field.name in ("track_schedule", "verbose") or not field.init:
            continue
        default = "" if field.default is MISSING else repr(field.default)
        yield field.name, default, markdown(one_line(said.get(field.name, "")))


def sets_of(kind: type[Quantity]) -> list[str]:
    """Return the labels of the sets that a quantity is in."""
    return [label for label, kinds in PRESETS.items() if kind in kinds]


def needs_of(kind: type[Quantity]) -> list[str]:
    """Return what a quantity needs of the loop and the model, in words."""
    found: dict[str, None] = {}
    for need in kind().needs():
        found |= dict.fromkeys(words_of(need))
    return list(found)


def words_of(need: Need) -> Iterator[str]:
    """Yield what a need asks for, in words."""
    if isinstance(need, Next):
        yield from words_of(need.need)
        yield "the step after it"
        return
    if isinstance(need, Transform | AlongUpdate | AlongPreviousUpdate):
        yield "individual gradients"
    if isinstance(need, InForward):
        yield "the forward pass"
    if isinstance(need, OfUpdate | AlongUpdate | AlongPreviousUpdate | LearningRates):
        yield "optimizer"
    if isinstance(need, FromProducts | SampledDiagonal | KroneckerFactors):
        yield "curvature"
    for key in getattr(need, "info", ()):
        if key != "loss":  # which every step has
            yield key.replace("_", " ")


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown, with formulas between dollars.

    Code hosts take a backslash before punctuation for an escape, also in formulas; so the thin space
    is named.
    """

    def formula(match: re.Match[str]) -> str:
        tex = one_line(match[1]).replace(r"\,", r"\thinspace")
        return f"${tex}$"

    text = re.sub(r":math:`([^`]*)`", formula, text)
    return text.replace("``", "`")


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def link(name: str) -> str:
    """Return a link to a quantity's section, from the page itself."""
    return f"[`{name}`](#{name.lower()})"


def table() -> str:
    """Return the README's table: a question for each theme, and the quantities that answer it."""
    rows = ["| | question | quantities |", "|---|---|---|"]
    for theme, (question, names) in THEMES.items():
        links = [f"[{name}](docs/quantities.md#{name.lower()})" for name in names.split()]
        rows.append(f"| {theme} | {question} | {', '.join(links)} |")
    return "\n".join(rows)


def updated(readme: str) -> str:
    """Return the README with the table of today.

    Raises:
        ValueError: if the place of the table is not marked once.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"The README must have the lines {BEGIN} and {END} once each.")
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
