"""``cockpit doctor``: formats and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doctor.trainings import train
from torch import nn

from cockpit.cli import doctor, main
from cockpit.doctor import RULES, Consequence, Diagnosis, Unchecked, diagnose
from cockpit.doctor.formats import FORMATS
from cockpit.doctor.formats.as_text import WIDTH
from cockpit.findings import Finding


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ill") / "run.db"
    train(path, zero=lambda s: False, change=lambda m: nn.Sequential(m, nn.Softmax(dim=1)))
    return path


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frozen") / "run.db"

    def freeze(model: Any) -> None:
        model[0].requires_grad_(False)

    train(path, change=freeze)
    return path


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("well") / "run.db"
    train(path)
    return path


def test_exit_codes(ill: Path, frozen: Path, well: Path, tmp_path: Path) -> None:
    assert main(["doctor", str(well)]) == 0
    assert main(["doctor", str(ill)]) == 1
    assert main(["doctor", str(frozen)]) == 1
    assert main(["doctor", str(frozen), "--fail-on", "warning"]) == 0
    assert main(["doctor", str(ill), "--fail-on", "error"]) == 1
    assert main(["doctor", str(tmp_path / "none.db")]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", str(ill), "--format", "pdf"])


def test_text_says_everything_in_80_columns(ill: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(ill)])
    printed = capsys.readouterr().out
    path, *lines = printed.splitlines()
    assert path == str(ill)
    assert max(map(len, lines)) <= WIDTH
    text = " ".join(printed.split())
    for finding in diagnose(ill).findings:
        for part in (finding.code, finding.title, finding.why, finding.action, finding.source):
            assert part in text
        assert f"since step {finding.step}" in text
    assert "Not checked: CP502" not in text  # all there is was tracked


def test_what_was_not_checked_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run.db", steps=1)
    main(["doctor", str(tmp_path / "run.db")])
    text = " ".join(capsys.readouterr().out.split())
    assert "Not checked:" in text
    assert "it takes 3 tracked steps, and there are 1" in text


def test_json_has_it_all(ill: Path, tmp_path: Path) -> None:
    main(["doctor", str(ill), "--format", "json", "-o", str(tmp_path / "out.json")])
    content = json.loads((tmp_path / "out.json").read_text())
    diagnosis = diagnose(ill)
    assert content["findings"] == [finding.record() for finding in diagnosis.findings]
    assert content["checked"] + len(content["unchecked"]) == len(RULES)


def test_sarif_has_its_required_fields(ill: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(ill), "--format", "sarif"])
    sarif = json.loads(capsys.readouterr().out)
    assert sarif["version"] == "2.1.0"
    (run,) = sarif["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "torch-cockpit"
    assert [invocation["executionSuccessful"] for invocation in run["invocations"]] == [True]
    found = diagnose(ill).findings
    assert len(run["results"]) == len(found) == 2
    for result, finding in zip(run["results"], found, strict=True):
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] in ("error", "warning", "note")
        assert finding.title in result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place["uri"].startswith("file:///")
        assert 0 <= result["rank"] <= 100


def test_markdown(ill: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", str(ill), "--format", "markdown"])
    printed = capsys.readouterr().out
    for finding in diagnose(ill).findings:
        assert f"## {finding.code} {finding.severity}: {finding.title}" in printed


@pytest.mark.parametrize("name", FORMATS)
def test_names_in_a_run_do_nothing_to_a_terminal(name: str) -> None:
    evil = "a\x1b]0;title\x07\x9b2J\u202eb"
    texts = dict.fromkeys(("title", "why", "action", "source"), evil)
    made = {"subjects": (evil,), "evidence": {evil: evil}, "severity": "error"}
    causes = [
        Finding(code=code, name="evil-name", step=3, **made, **texts) for code in ("CP901", "CP902")
    ]
    explained = (Consequence(causes[1], "CP901"),)
    unchecked = (Unchecked("CP903", "evil-rule", evil),)
    text = FORMATS[name](Diagnosis((causes[0],), explained, unchecked, 1), f"{evil}.db")
    assert "CP901" in text
    assert all(sign.isprintable() for sign in text.replace("\n", ""))


def test_the_command_lists_the_formats_there_are() -> None:
    assert list(doctor.FORMATS) == list(FORMATS)


def test_the_same_run_gives_the_same_words(ill: Path) -> None:
    for make in FORMATS.values():
        assert make(diagnose(ill), "run.db") == make(diagnose(ill), "run.db")
