"""What the README and the documentation say is true: the loop runs, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from torch import nn

import cockpit
from cockpit.presets import PRESETS
from cockpit.run import open_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_the_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names = {
        "model": model,
        "opt": torch.optim.Adam(model.parameters()),
        "loader": [(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(4)],
    }
    (loop,) = blocks("python")
    exec(compile(loop, "README.md", "exec"), names)
    run = open_run("runs/first.db")
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert set(run.quantities) == {kind.__name__ for kind in PRESETS["economy"]} | {"Wiring"}


def test_names_exist() -> None:
    for name in re.findall(r"`(cockpit\.[a-z_.]+)", README):
        found = cockpit
        for part in name.split(".")[1:]:
            found = getattr(found, part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), target


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in index} == set()
