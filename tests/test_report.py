"""Reports and comparisons: everything is there, nothing is fetched, and names are never markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from cockpit.cli import main
from cockpit.comparison import compare, labels_of
from cockpit.errors import InvalidArgument
from cockpit.findings import Finding
from cockpit.instruments import panels
from cockpit.log import ParameterInfo, Row, RunWriter
from cockpit.plotting.theme import THEMES
from cockpit.report import FORMATS, content_of, report
from cockpit.report.svg import colors
from cockpit.run import Run, open_run

HOSTILE = (
    "</style><script>alert(1)</script>",
    '<img src=x onerror="alert(2)">',
    "\"'><svg onload=alert(3)>",
    "$x_{",
    'w id="p1" href="#p2" style="fill: #ffffff" url(#q)',
    "[a](javascript:alert(4)) | `b` <!-- c",
)

VOID = {"meta", "br", "wbr", "img", "link", "input", "hr"}


def finding(**changes: object) -> Finding:
    values = {
        "code": "CP101",
        "name": "learning-rate-too-high",
        "severity": "error",
        "step": 7,
        "title": "The learning rate is too high",
        "why": "Steps overshoot.",
        "action": "Divide it by 3.",
        "source": "a paper",
        "evidence": {"alpha": 1.25, "layers": ["a", "b"]},
        "confidence": 0.9,
        "instrument": "alpha",
    }
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


def write(path: Path, names: tuple[str, ...] = ("fc.weight", "fc.bias"), lr: float = 0.1) -> Run:
    """Write a run with curves, heat maps, a histogram, a finding and events."""
    writer = RunWriter(
        path,
        settings={
            "model": names[0],
            "optimizers": [{"class": "SGD", "lr": lr, "momentum": 0.9}],
            "quantities": {"Alpha": f"Alpha(verbose=False, range=(0, {lr}))", "Loss": "Loss()"},
            "versions": {"cockpit": "2.0", "torch": "2.14"},
            names[-1]: names[-1],
        },
        parameters=[ParameterInfo(name, (3, 4), "float32") for name in names],
    )
    edges, counts = np.linspace(-2, 2, 11), np.arange(10)
    for step in range(20):
        rows = [Row("Loss", 2.0 / (1 + step)), Row("Alpha", 0.1 * step), Row(names[0], 1.0)]
        rows += [Row("GradNorm", 1.0 + n + step, parameter=name) for n, name in enumerate(names)]
        rows += [Row("GradHist1d", counts, "hist"), Row("GradHist1d", edges, "edges")]
        writer.record(step, rows)
        writer.record(step, [Row("test_accuracy", step / 20, source="log")], tracked=False)
    writer.note(3, "not-checked", names[0], names[-1])
    writer.note(4, "not-checked", names[0], names[-1])
    writer.note(0, "basis", "HessMaxEV", "curvature: ggn; source: graph")
    writer.finding(finding(title=names[0], subjects=names, why=names[-1], action=names[0]))
    writer.finding(finding(code="CP9", severity="note", instrument=None, evidence={}, step=1))
    writer.close()
    return open_run(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write(tmp_path_factory.mktemp("plain") / "run.db")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write(tmp_path_factory.mktemp("hostile") / '<b onclick="x">&.db', HOSTILE)


class Page(HTMLParser):
    """What a browser makes of a page, as far as it matters here."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), f"{tag} has an attribute twice"
        self._open += [tag] if tag not in VOID else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    def of(self, name: str) -> list[str]:
        """Return all values of an attribute."""
        return [value or "" for _, own in self.tags for key, value in own.items() if key == name]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def page(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written(run, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def attacked(hostile: Run, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written(hostile, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def compared(run: Run, hostile: Run, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return written([run, hostile], tmp_path_factory.mktemp("page") / "report.html")


def written(runs: Run | list[Run], path: Path) -> Page:
    report(runs, path)
    return Page(path)


@pytest.fixture(params=["page", "attacked", "compared"])
def any_page(request: pytest.FixtureRequest) -> Page:
    return request.getfixturevalue(request.param)


# -- every page -----------------------------------------------------------------------------------


def test_nothing_is_fetched_and_nothing_runs(any_page: Page) -> None:
    tags = {tag for tag, _ in any_page.tags}
    assert not tags & {"script", "iframe", "object", "embed", "link", "form", "base", "img"}
    names = {name for _, own in any_page.tags for name in own}
    assert not [name for name in names if name.startswith("on")]
    for name in ("href", "xlink:href", "src"):
        assert all(value.startswith(("#", "data:image/png;base64,")) for value in any_page.of(name))
    styles = [*any_page.of("style"), *any_page.of("clip-path")]
    assert all(re.fullmatch(r"(?!.*url\((?!#)).*", value) for value in styles)
    assert any_page.of("content")[0].startswith("default-src 'none'")


def test_ids_are_unique_and_references_lead_somewhere(any_page: Page) -> None:
    ids = any_page.of("id")
    assert len(ids) == len(set(ids))
    links = [v[1:] for name in ("href", "xlink:href") for v in any_page.of(name) if v[0] == "#"]
    clips = re.findall(r"url\(#([^)]+)\)", " ".join(any_page.of("clip-path")))
    assert links
    assert clips
    assert {*links, *clips} <= set(ids)


def test_pictures_suit_light_and_dark(any_page: Page) -> None:
    kinds = [own.get("class") for tag, own in any_page.tags if tag == "svg"]
    assert kinds.count("light") == kinds.count("dark") > 0
    assert kinds.count(None) > 0
    drawn = [own.get("style") or "" for tag, own in any_page.tags if tag in ("path", "text")]
    assert any("var(--muted)" in style for style in drawn)
    assert any("var(--c-blue)" in style for style in drawn)


def test_both_themes_have_the_same_variables() -> None:
    light, dark = colors(THEMES["light"]), colors(THEMES["dark"])
    assert list(light) == list(dark)
    # A colour of a picture stands for all its names: these have to be one in the dark, too.
    for name, color in light.items():
        same = [other for other in light if light[other] == color]
        assert len({dark[other] for other in same}) == 1, (name, same)


# -- a page of one run ----------------------------------------------------------------------------


def test_every_panel_is_there(page: Page, run: Run) -> None:
    expected = [panel.name for panel in panels(run)]
    assert len(expected) > 5
    assert page.of("data-panel") == expected
    for panel in panels(run):
        assert panel.title in page.text
        assert panel.how_to_read in page.text


def test_findings_lead_to_their_picture(page: Page) -> None:
    assert "Findings (2)" in page.text
    assert "ERROR CP101" in page.text
    assert "Evidence: alpha = 1.25; layers = a, b. Source: a paper. Confidence: 90 %" in page.text
    assert page.text.index("ERROR CP101") < page.text.index("NOTE CP9")
    assert "#panel-alpha" in page.of("href")


def test_the_rest_is_there(page: Page) -> None:
    for text in ("closed", "20 tracked, 0 to 19", "2 tensors, 24 elements"):
        assert text in page.text
    for text in ("SGD lr=0.1 momentum=0.9", "not checked", "optimizers.0.lr", "versions.torch"):
        assert text in page.text
    assert "curvature: ggn; source: graph" in page.text
    assert "fell from 2" in page.text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_words(name: str, attacked: Page) -> None:
    assert " ".join(name.split()) in attacked.text


def test_hostile_names_lose_no_panel(attacked: Page, hostile: Run) -> None:
    assert attacked.of("data-panel") == [panel.name for panel in panels(hostile)]
    assert "could not be drawn" not in attacked.text


def test_a_picture_that_fails_costs_no_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from cockpit.report import html

    def fail(panel: object, prefix: str) -> str:
        raise ValueError("<no>")

    monkeypatch.setattr(html, "picture", fail)
    stream = io.BytesIO()
    report(run, stream)
    text = stream.getvalue().decode()
    assert text.count("ValueError: &lt;no&gt;") == len(panels(run))


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run.db").close()
    page = written(open_run(tmp_path / "run.db"), tmp_path / "report.html")
    assert "Nothing has been recorded yet." in page.text
    assert "None were recorded." in page.text


# -- other formats --------------------------------------------------------------------------------


def text_of(run: Run, kind: str) -> str:
    written = FORMATS[kind](content_of([run]), lambda done, total: None)
    assert isinstance(written, str)
    return written


def refuse(constant: str) -> None:
    raise ValueError(constant)


def test_json_is_strict_and_whole(run: Run) -> None:
    found = json.loads(text_of(run, "json"), parse_constant=refuse)
    assert (found["format"], found["version"], found["comparison"]) == ("cockpit-report", 1, None)
    assert [panel["name"] for panel in found["panels"]] == [panel.name for panel in panels(run)]
    (own,) = found["runs"]
    assert [Finding.from_record(one) for one in own["findings"]] == list(run.finding_records())
    assert own["events"][0]["count"] == 2
    assert own["settings"]["optimizers.0.lr"] == "0.1"
    assert {line["quantity"] for line in own["readings"]} == set(run.quantities)


def test_markdown_has_tables_of_equal_rows(run: Run, hostile: Run) -> None:
    for one in (run, hostile):
        text = text_of(one, "markdown")
        assert not re.search(r"(?<!\\)<", text)
        width = 0
        for line in text.splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            assert not width or not cells or cells == width, line
            width = cells
    assert "- **error CP101**, from step 7 on" in text_of(run, "markdown")


@pytest.mark.parametrize("kind", ["run", "hostile"])
def test_png_and_no_global_state(kind: str, request: pytest.FixtureRequest) -> None:
    before = {name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"}
    picture = FORMATS["png"](content_of([request.getfixturevalue(kind)]), lambda *_: None)
    assert isinstance(picture, bytes)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert {name: mpl.rcParams[name] for name in before} == before


# -- several runs ---------------------------------------------------------------------------------


def test_a_comparison_has_both_runs(compared: Page, run: Run, hostile: Run) -> None:
    shown = set(compared.of("data-panel"))
    assert {name.partition("/")[0] for name in shown} >= {p.name for p in panels(run)} - {""}
    assert {"grad-norm-layers/run", "alpha"} <= shown
    assert "0.950 at step 19" in compared.text
    assert "setting that differs" in compared.text


@pytest.fixture
def two(tmp_path: Path) -> list[Run]:
    return [write(tmp_path / "a" / "run.db"), write(tmp_path / "b" / "run.db", lr=0.3)]


def test_what_is_compared(two: list[Run]) -> None:
    found = compare(two)
    assert found.labels == ("a/run", "b/run")
    assert {row.name: row.values for row in found.settings} == {
        "optimizers.0.lr": ("0.1", "0.3"),
        "Alpha.range": ("(0, 0.1)", "(0, 0.3)"),
    }
    best = {row.name: row.values for row in found.best}
    assert best["test_accuracy"] == ("0.950 at step 19",) * 2
    assert best["Loss"][0].startswith("~")
    assert [row.name for row in found.findings] == [
        "CP101 learning-rate-too-high",
        "CP9 learning-rate-too-high",
    ]
    assert found.findings[0].values == ("step 7", "step 7")
    assert {row.name for row in found.now} == set(two[0].quantities)


def test_a_quantity_that_only_one_run_tracks_is_one_difference(tmp_path: Path) -> None:
    runs = []
    for name, quantities in (("a", {"Loss": "Loss(x=1)"}), ("b", {})):
        RunWriter(tmp_path / f"{name}.db", settings={"quantities": quantities}).close()
        runs.append(open_run(tmp_path / f"{name}.db"))
    (row,) = compare(runs).settings
    assert (row.name, row.values) == ("Loss", ("tracked", ""))


def test_labels_tell_runs_apart() -> None:
    paths = [Path("/x/a/run.db"), Path("/x/b/run.db"), Path("/x/c/other.db")]
    assert labels_of(paths) == ("a/run", "b/run", "c/other")
    assert labels_of(paths[1:]) == ("run", "other")
    assert len(set(labels_of([paths[0], paths[0]]))) == 2


def test_there_has_to_be_a_run() -> None:
    with pytest.raises(InvalidArgument, match="no run to report on"):
        report([], "report.html")
    with pytest.raises(InvalidArgument, match="html, markdown, json, png"):
        report([], "report.html", kind="pdf")


# -- the commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name", "start"),
    [
        ([], "run-report.html", b"<!DOCTYPE html>"),
        (["--format", "markdown"], "run-report.md", b"# run"),
        (["-o", "deep/a.json"], "deep/a.json", b"{"),
        (["-o", "a.png"], "a.png", b"\x89PNG"),
        (["-o", "page", "--format", "html"], "page", b"<!DOCTYPE html>"),
    ],
)
def test_the_command(
    arguments: list[str],
    name: str,
    start: bytes,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.db").write_bytes(run.path.read_bytes())
    if name == "page":  # what is there is replaced
        Path(name).write_text("old")
    assert main(["report", "run.db", *arguments]) == 0
    assert capsys.readouterr().out.strip().endswith(name)
    assert Path(name).read_bytes().startswith(start)
    assert not list(tmp_path.rglob("*.tmp"))


def test_standard_output(run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["report", str(run.path), "-o", "-", "--format", "json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["format"] == "cockpit-report"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "{run}", "-o", "report.docx"], "report.docx does not say which format"),
        (["report", "{run}", "-o", "{run}", "--format", "html"], "is a run file"),
        (["report", "{run}", "-o", "{folder}", "--format", "html"], "is a folder"),
        (["report", "{run}", "-o", "{run}/x.html"], "cannot be written"),
        (["report", "nowhere.db"], "nowhere.db"),
        (["plot", "{run}", "-o", "{run}/x.png"], "cannot be written"),
        (["compare", "{run}"], "one run cannot be compared"),
        (["compare", "nowhere.db"], "nowhere.db. Give the path"),
        (["compare", "{folder}"], "is a folder, not a run file"),
        (["compare", "{run}", "nowhere.db"], "nowhere.db"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = run.path.read_bytes()
    given = [one.format(run=run.path, folder=tmp_path) for one in arguments]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert run.path.read_bytes() == before


def test_a_disk_that_is_full_is_a_failure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("old")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cockpit.replacing.os.replace", fail)
    assert main(["report", str(run.path), "-o", str(tmp_path / "a.md")]) == 1
    assert "No space left" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_settings_are_words(tmp_path: Path) -> None:
    runs = []
    for interval in (1, 3):
        schedule = f"_Linear(interval={interval}, offset=0)"
        settings = {
            "quantities": {"Alpha": f"Alpha(track_schedule={schedule}, verbose=False)"},
            "memory_budget": interval * 2**26,
            "reduction": None,
        }
        RunWriter(tmp_path / f"{interval}.db", settings=settings).close()
        runs.append(open_run(tmp_path / f"{interval}.db"))
    found = {row.name: row.values for row in compare(runs).settings}
    assert found == {
        "Alpha.track_schedule": ("every step", "every 3 steps"),
        "memory_budget": ("64 MiB", "192 MiB"),
    }
    page = written(runs[1], tmp_path / "report.html")
    assert "quantities.Alphaevery 3 steps memory_budget192 MiB" in page.text
    assert "reduction" not in page.text


def test_compare_prints_or_writes(
    two: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(run.path) for run in two]
    assert main(["compare", *paths]) == 0
    out = capsys.readouterr().out
    assert "a/run" in out
    assert "optimizers.0.lr" in out
    assert main(["compare", *paths, "-o", str(tmp_path / "c.json")]) == 0
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["comparison"]["labels"] == ["a/run", "b/run"]
    assert {"name": "optimizers.0.lr", "a/run": "0.1", "b/run": "0.3"} in found["comparison"][
        "settings"
    ]
