"""The pages on instruments: complete, fresh, and with pictures that show a difference."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from cockpit import open_run
from cockpit.doctor import RULES
from cockpit.instruments import INSTRUMENTS, Heat, Line, Panel, Reference, panels
from cockpit.run import Run

DOCS = Path(__file__).parents[1] / "docs"
PAGES = DOCS / "instruments"
NAMES = [item.name for item in INSTRUMENTS]
MODULES = "instruments", "pictures", "quantities", "questions", "trainings"


@pytest.fixture(scope="module")
def docs() -> SimpleNamespace:
    """The modules in ``docs/``, which are imported by each other's bare names."""
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(DOCS))
    try:
        found = {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(DOCS))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
    return SimpleNamespace(**found)


def text(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    _, found, rest = text(name).partition(f"\n## {heading}\n")
    assert found, f"{name} has no section {heading!r}"
    return rest.partition("\n## ")[0].strip()


# -- complete and fresh ---------------------------------------------------------------------------


def test_every_instrument_has_a_page_and_a_picture_and_nothing_is_left_over() -> None:
    expected = {f"{name}.{ending}" for name in NAMES for ending in ("md", "png")}
    expected |= {"index.md", "overview.png", "findings.json"}
    assert {path.name for path in PAGES.iterdir()} == expected
    index = text("index")
    for name in NAMES:
        assert f"]({name}.md) |" in index
        assert f"]({name}.png)" in text(name)


def test_the_pages_are_fresh(docs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.instruments.main(["--check"]) == 0, capsys.readouterr().out


def test_a_change_of_a_sentence_makes_its_page_stale(
    docs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = docs.instruments.said

    def changed(item: Any, what: str) -> str:
        return "Otherwise." if (item.name, what) == ("alpha", "how_to_read") else said(item, what)

    monkeypatch.setattr(docs.instruments, "said", changed)
    assert docs.instruments.main(["--check"]) == 1
    assert capsys.readouterr().out == "alpha.md is out of date: make instruments\n"


def test_an_instrument_without_a_page_is_told(docs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = docs.questions.QUESTIONS.items()
    fewer = dict([(first[0], first[1][1:]), *others])
    monkeypatch.setattr(docs.instruments, "QUESTIONS", fewer)
    with pytest.raises(ValueError, match=r"Every instrument stands in QUESTIONS once.*'loss'"):
        docs.instruments.pages()


def test_every_training_is_shown(docs: Any) -> None:
    shown = {name for page in docs.instruments.pages() for name in (page.left, page.right)}
    assert shown == set(docs.trainings.TRAININGS)
    assert all(page.left != page.right for page in docs.instruments.pages())


# -- what is written by hand ----------------------------------------------------------------------


@pytest.mark.parametrize("heading", ["What unhealthy looks like", "What to do"])
def test_what_is_written_by_hand_is_there_and_of_its_own(heading: str) -> None:
    found: dict[str, str] = {}
    for name in NAMES:
        written = section(name, heading)
        sentences = re.split(r"[.?!:;] ", " ".join(written.split()))
        assert len(sentences) >= 3, f"{name} says too little under {heading!r}"
        for other, before in found.items():
            common = set(sentences) & set(re.split(r"[.?!:;] ", " ".join(before.split())))
            assert not {one for one in common if len(one) > 40}, f"{name} and {other}: {common}"
        found[name] = written


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_picture_is_of_both_sides(name: str) -> None:
    written = section(name, "What unhealthy looks like")
    assert re.search(r"\b(right|both)\b", written, flags=re.I)
    assert re.search(r"\b(left|both)\b", written, flags=re.I)


def test_the_rules_that_are_named_exist() -> None:
    known = {rule.code: rule.name for rule in RULES}
    for name in NAMES:
        for code, words in re.findall(r"\[(CP\d+) ([\w-]+)\]", text(name)):
            assert known[code] == words
        assert set(re.findall(r"CP\d+", text(name))) <= set(known)
    for rule in RULES:
        if rule.instrument is not None:
            assert f"[{rule.code} {rule.name}]" in text(rule.instrument)


def test_the_doctor_finds_no_fault_in_what_is_shown_as_healthy(docs: Any) -> None:
    findings = json.loads((PAGES / "findings.json").read_text(encoding="utf-8"))
    assert set(findings) == set(docs.trainings.TRAININGS)
    severity = {rule.code: rule.severity for rule in RULES}
    for page in docs.instruments.pages():
        assert all(severity[code] == "note" for code in findings[page.left]["findings"])
    found = [page for page in docs.instruments.pages() if findings[page.right]["findings"]]
    assert len(found) > 0.8 * len(NAMES)


# -- pictures -------------------------------------------------------------------------------------


def halves(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and the right picture, `[height, width, 3]`, without title and words, every second row."""
    with Image.open(PAGES / f"{name}.png") as image:
        pixels = np.asarray(image.convert("RGB"), int)
    height, width = pixels.shape[:2]
    assert (width, height) == (990, 407)
    inside = pixels[int(0.32 * height) : int(0.95 * height) : 2]
    return inside[:, 40 : width // 2 - 20], inside[:, width // 2 + 20 : -40]


def colourful(pixels: np.ndarray) -> np.ndarray:
    """Return where there is colour, `[height, width]`: neither paper nor letters, which are greys."""
    return (pixels.max(-1) - pixels.min(-1)) > 60


def difference(left: np.ndarray, right: np.ndarray, shift: int) -> float:
    """Return the share of pixels that differ if one of the two is shifted by so many."""
    moved = np.roll(right, shift, axis=1)[:, 6:-6]
    return float((np.abs(left[:, 6:-6] - moved).max(-1) > 60).mean())


@pytest.mark.parametrize("name", NAMES)
def test_both_pictures_show_something_and_they_differ(name: str) -> None:
    left, right = halves(name)
    grey = name in {"hessian-spectrum-history", "lost-updates"}  # mostly of the palest colour
    for one in (left, right):
        assert len(np.unique(one @ (1, 256, 65536))) > (3 if grey else 8)
        assert colourful(one).sum() > (0 if name == "lost-updates" else 75)
    differing = min(difference(left, right, shift) for shift in range(-4, 5))
    assert differing > 0.01, f"{differing:.2%} of the pixels differ"


def test_pictures_are_small() -> None:
    sizes = {name: (PAGES / f"{name}.png").stat().st_size for name in NAMES}
    assert max(sizes.values()) < 60_000
    assert sum(path.stat().st_size for path in PAGES.glob("*.png")) < 3e6


# -- how they are made ----------------------------------------------------------------------------


def few(change: Any, steps: int) -> Any:
    """Return a change of a training that also makes it short."""

    def changed(setup: Any) -> None:
        change(setup)
        setup.steps = steps

    return changed


@pytest.fixture(scope="module")
def runs(docs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """All healthy trainings and one that is not, cut short, with the quantities that their pages need."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    steps = {page.left: 3 for page in docs.instruments.pages()}
    steps |= {"mlp": 12, "adam": 9, "cosine": 26, "sigmoids": 12}  # as far as there are values
    for name, count in steps.items():
        training = docs.trainings.TRAININGS[name]
        tracked = map(docs.trainings.made, sorted(docs.instruments.tracked_in(name)))
        short = replace(training, change=few(training.change, count))
        docs.trainings.train(folder / f"{name}.db", short, tracked)
        found[name] = open_run(folder / f"{name}.db")
    return found


def test_what_the_pages_say_is_what_the_pictures_say(docs: Any, runs: dict[str, Run]) -> None:
    drawn = {panel.name: panel for run in runs.values() for panel in panels(run)}
    for item in INSTRUMENTS:
        panel = drawn.pop(item.name)
        assert docs.instruments.said(item, "how_to_read") == panel.how_to_read
        title = docs.instruments.said(item, "title")
        assert re.fullmatch(re.escape(title).replace("curvature", r"\w+"), panel.title)
        assert panel.how_to_read in text(item.name)
    assert set(drawn) == {"quantity:batch_size"}


def test_pictures_of_two_trainings_have_the_same_axes_and_colours(
    docs: Any, runs: dict[str, Run]
) -> None:
    one, two = ({panel.name: panel for panel in panels(runs[name])} for name in ("mlp", "sigmoids"))
    norms = docs.pictures.aligned(one["grad-norm-layers"], two["grad-norm-layers"])
    maps = [mark for panel in norms for mark in panel.marks if isinstance(mark, Heat)]
    assert maps[0].limits == maps[1].limits
    low, high = maps[0].limits
    values = np.concatenate([mark.values.ravel() for mark in maps])
    assert (low, high) == (values[values > 0].min(), values.max())

    histories = docs.pictures.aligned(one["grad-histogram-history"], two["grad-histogram-history"])
    edges = np.concatenate([mark.edges for panel in histories for mark in panel.marks])
    assert {panel.y_range for panel in histories} == {(edges.min(), edges.max())}

    lines = Panel("L", "GRADIENTS", "R", (Line(np.arange(3.0), np.arange(3.0)), Reference(9.0)))
    higher = replace(lines, marks=(Line(np.arange(3.0), 100 * np.arange(3.0)),))
    low, high = docs.pictures.aligned(lines, higher)
    assert low.y_range == high.y_range
    assert low.y_range[0] <= 0
    assert low.y_range[1] >= 200


def test_a_picture_has_both_with_their_words(docs: Any, runs: dict[str, Run]) -> None:
    both = [
        next(panel for panel in panels(runs[name]) if panel.name == "grad-histogram-layers")
        for name in ("mlp", "sigmoids")
    ]
    titles, words = ("Healthy", "Unhealthy"), ("one training", "another one")
    figure = docs.pictures.side_by_side(tuple(both), titles, words)
    assert isinstance(figure, Figure)
    cards = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in cards] == list(titles)
    written = [text.get_text() for axes in cards for text in axes.texts]
    assert set(words) <= set(written)
    assert cards[0].get_xlim() == cards[1].get_xlim()
