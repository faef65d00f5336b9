"""The documentation as a site: it builds without a warning, fetches nothing, and what is made from code is fresh."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from torch import nn

from benchmarks import readme
from cockpit import open_run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

RUN = {
    "start.md": "test_commands.py",
    "any-loop.md": "test_docs.py",
    "any-model.md": "test_docs.py",
}
RUN |= {"distributed.md": "test_docs.py", "cost.md": "test_profile.py"}
"""Pages whose code another file of tests runs."""

HERE = ("own-quantity.md", "from-tensorboard.md", "from-wandb.md")
"""Pages whose code is run below."""


def code(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, where any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_with_a_page_for_each(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists()
    for name in ("CONTRIBUTING", "CHANGELOG", "examples/index"):
        assert (site / f"repository/{name}.html").exists()


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    page = (site / "quantities.html").read_text(encoding="utf-8")
    assert page.count("<math ") > 50
    assert "arithmatex" not in page
    assert not re.search(r"<merror|\\(frac|sum|lVert|operatorname)", page)


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]*src=\"?(https?:[^\s\">]+)", text)
        fetched += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*https?:[^>]+>", text)
        assert fetched == [], page.name


def test_the_reference_has_the_public_names(site: Path) -> None:
    text = (site / "reference.html").read_text(encoding="utf-8")
    for name in ("cockpit.Cockpit.log", "cockpit.run.Run.series", "cockpit.schedules.budget"):
        assert f'id="{name}"' in text
    assert "::</p>" not in text
    assert ":math:" not in text


def test_what_is_made_from_the_quantities_is_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    quantities = runpy.run_path(str(DOCS / "quantities.py"))
    assert quantities["main"](["--check"]) == 0, capsys.readouterr().out


def test_every_quantity_says_what_it_needs() -> None:
    page = runpy.run_path(str(DOCS / "quantities.py"))
    from cockpit import quantities as q

    assert page["needs_of"](q.NormTest) == ["individual gradients"]
    assert page["needs_of"](q.HessMaxEV) == ["curvature"]
    assert page["needs_of"](q.CriticalSharpness) == ["closure", "optimizer"]
    assert page["needs_of"](q.UpdateSize) == ["optimizer"]
    assert set(page["needs_of"](q.Alpha)) == {
        "individual losses",
        "individual gradients",
        "optimizer",
        "the step after it",
    }


def test_the_rates_in_the_readme_are_those_of_the_results() -> None:
    assert readme.main(["--check"]) == 0


def test_the_table_of_rates() -> None:
    def score(part: float, alarmed: float) -> dict[str, Any]:
        shares = {"runs": 20, "detection": part, "top_1": part / 2, "top_3": part}
        return shares | {"healthy": {"runs": 30, "alarmed": alarmed}}

    overall = {"doctor": score(0.9, 0.1), "plain": score(0.2, 0.0)}
    table = readme.rates({"halves": {"held-out": {"overall": overall}}})
    assert "| **cockpit doctor** | 90% | 45% | 90% | 10% |" in table
    assert "| plain | 20% | 10% | 20% | 0% |" in table
    assert "20 trainings" in table
    assert "30 healthy" in table
    assert readme.rates(None) == readme.UNMEASURED


# -- code -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mpl.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    return tmp_path


def test_the_quantity_of_ones_own_is_its_formula(folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in code(DOCS / "own-quantity.md"):
        exec(compile(block.replace("range(300)", "range(8)"), "own-quantity.md", "exec"), names)
    assert len(open_run("runs/dissent.db").steps) == 8
    assert names["figure"].axes
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    x, y = torch.randn(16, 5, dtype=torch.float64), torch.randint(3, (16,))
    watch = names["Cockpit"](model, [names["Dissent"]()])
    loss = nn.functional.cross_entropy(model(x), y)
    with watch(0, loss=loss):
        loss.backward()
    expected = names["reference"](model, x, y)
    assert 0 < expected < 1
    assert watch.get_output()[0]["Dissent"] == expected


def test_the_quantity_of_ones_own_has_twenty_lines() -> None:
    first, *_ = code(DOCS / "own-quantity.md")
    lines = [line for line in first.splitlines() if line]
    assert len(lines) <= 20


@pytest.mark.parametrize("name", HERE[1:])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_snippets_for_trackers_run(name: str, folder: Path) -> None:
    (block,) = code(DOCS / name)
    exec(compile(block, name, "exec"), {"__name__": "page"})
    assert len(open_run("runs/first.db").steps) == 5
    assert list(folder.glob("runs/tensorboard/events*")) or list(folder.glob("wandb/offline-run-*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_is_valid_and_what_it_imports_exists(page: Path) -> None:
    for block in code(page):
        tree = ast.parse(block)
        if page.name in (*RUN, *HERE):
            continue
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        own = [node for node in imports if "cockpit" in ast.unparse(node)]
        exec(compile(ast.Module(own, []), page.name, "exec"), {})


@pytest.mark.parametrize("page", RUN)
def test_the_others_are_run_where_it_is_said(page: str) -> None:
    assert page in (ROOT / "tests" / RUN[page]).read_text(encoding="utf-8")
