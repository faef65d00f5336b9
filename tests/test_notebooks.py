"""The notebooks run, show what their text says, and carry the outputs of the code that is in them."""

from __future__ import annotations

import base64
import re
import runpy
import shutil
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in PATHS]
make = SimpleNamespace(**runpy.run_path(str(FOLDER / "make.py")))

PICTURES = {"learning_rates": ["overlay", "fit"], "live_view": ["train", "lower", "one"]}
"""Ids of the cells that show one picture each, also those that draw it many times."""

LARGEST = 400_000
"""Bytes of a notebook."""

OWN = re.compile(r"/(home|tmp|root|Users|usr|opt|var)/|[A-Z]:\\\\|0x[0-9a-f]{6}|\d\d:\d\d:\d\d")
"""What differs from one machine or execution to the next: paths, addresses, times of day."""


def codes(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    (found,) = (cell for cell in notebook.cells if cell.id == name)
    return found


def pictures(cell: NotebookNode) -> list[Image.Image]:
    data = [output.data["image/png"] for output in cell.outputs if "data" in output]
    return [Image.open(BytesIO(base64.b64decode(one))) for one in data]


def words(notebook: NotebookNode) -> str:
    """Return all that the outputs say, without their pictures."""
    outputs = [output for cell in codes(notebook) for output in cell.outputs]
    said = [output.get("text", "") for output in outputs]
    for output in outputs:
        data = sorted(output.get("data", {}).items())  # as in a file, whichever came first
        said += [text for kind, text in data if kind.startswith("text/")]
    return "\n".join(said)


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[-+−~]?\d+(\.\d+)?(e[-+]\d+)?", "#", text).split())


def shape(notebook: NotebookNode) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return which outputs of which kinds the cells have."""
    return [
        (cell.id, [(output.output_type, sorted(output.get("data", ()))) for output in cell.outputs])
        for cell in codes(notebook)
    ]


def check(notebook: NotebookNode, name: str) -> None:
    """Assert that a notebook has been run from top to bottom, and shows what it is meant to."""
    counts = [cell.execution_count for cell in codes(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    for one in codes(notebook):
        for output in one.outputs:
            assert output.output_type != "error", output
            assert output.get("name") != "stderr", output.text
        shown = pictures(one) if one.id in PICTURES[name] else []
        assert len(shown) == (one.id in PICTURES[name]), f"{one.id} shows {len(shown)} pictures"
        for picture in shown:
            assert min(picture.size) >= 300
            colors = picture.convert("RGB").getcolors(10**6)
            assert colors is None or len(colors) > 50, f"{one.id} shows an empty picture"


def test_there_are_two() -> None:
    assert set(PICTURES) == set(NAMES)


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_it_runs_and_its_claims_hold(path: Path, tmp_path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    copy = Path(shutil.copy(path, tmp_path))
    fresh = make.execute(copy)  # a claim that does not hold fails its cell, and that the execution
    check(fresh, path.stem)
    assert cell(fresh, "claims").source.count("assert ") >= 8
    # Numbers may differ a little from one machine to the next; what they are said of may not.
    assert shape(fresh) == shape(committed), "run `make notebooks`"
    assert without_numbers(words(fresh)) == without_numbers(words(committed))
    make.tidy(fresh)
    nbformat.validate(fresh)
    assert not OWN.search(words(fresh))


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_it_is_committed_as_make_leaves_it(path: Path) -> None:
    assert path.stat().st_size < LARGEST
    notebook = nbformat.read(path, as_version=4)
    check(notebook, path.stem)
    assert not OWN.search(words(notebook))
    tidied = nbformat.read(path, as_version=4)
    make.tidy(tidied)
    assert tidied.metadata == notebook.metadata, "run `make notebooks` after a change of code"
    assert [one.metadata for one in tidied.cells] == [one.metadata for one in notebook.cells]
    assert all(
        len(picture.getcolors()) <= make.COLORS  # that of a palette; None if there are more
        for name in PICTURES[path.stem]
        for picture in pictures(cell(notebook, name))
    )


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    text = "\n".join(one.source for one in nbformat.read(path, as_version=4).cells)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert target.startswith("https://") or (FOLDER / target).exists(), target


def test_a_cell_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 > 2")])
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    with pytest.raises(CellExecutionError, match="AssertionError"):
        make.execute(tmp_path / "wrong.ipynb")
