"""Every command in the README and the documentation does what a reader would have it do."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.request import urlopen

import matplotlib as mpl
import pytest

from cockpit import CockpitWarning, open_run
from cockpit.cli import main
from cockpit.cli.entry import _parser
from cockpit.doctor import diagnose

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
START = (ROOT / "docs/start.md").read_text(encoding="utf-8")
LONG = {"demo"}
"""Commands that train for minutes and have tests of their own: it is read whether they are understood."""

ELSEWHERE = {"ssh"}
"""Programs of others, which say nothing of this package."""

AT_EXIT, TRIES = "terminate called without an active exception", 4
"""What a process in DistributedDataParallel dies of in one of thirty runs, with a cockpit or without, when Python ends
before the threads of gloo do."""


def commands(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command in the blocks of a page."""
    for block in re.findall(r"```bash\n(.*?)```", text, flags=re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield tuple(words)


SHOWN = {
    words: page.relative_to(ROOT)
    for page in PAGES
    for words in commands(page.read_text(encoding="utf-8"))
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train as the start page has it, with its fault and without; return the folder of `runs/`."""
    mpl.use("agg")
    folder = tmp_path_factory.mktemp("start")
    (script,) = re.findall(r"```python\n(.*?)```", START, flags=re.S)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(script, "start.md", "exec"), {"__name__": "page"})
        faulty = script.replace("nn.Linear(64, 10)", "nn.Linear(64, 10), nn.Softmax(1)")
        faulty = faulty.replace("first.db", "faulty.db").replace("range(180)", "range(20)")
        with pytest.warns(CockpitWarning, match="CP301"):
            exec(compile(faulty, "start.md", "exec"), {"__name__": "page"})
        for name in ("a.db", "b.db"):
            shutil.copy("runs/first.db", f"runs/{name}")
    return folder


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_a_command_works(
    words: tuple[str, ...], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *arguments = words
    if program == "cockpit":
        if "--help" in arguments:
            with pytest.raises(SystemExit) as ended:
                main(arguments)
            assert ended.value.code == 0
        elif arguments[0] in LONG:
            assert _parser().parse_args(arguments)
        elif arguments[0] == "serve":
            serve(arguments, request.getfixturevalue("runs"))
        else:
            monkeypatch.chdir(request.getfixturevalue("runs"))
            once = ["--once"] if arguments[0] == "watch" else []
            faulty = arguments[0] == "doctor" and "runs/faulty.db" in arguments
            assert main([*arguments, *once]) == int(faulty)
    elif program == "make":
        make(*arguments)
    elif program == "pip":
        install(*arguments)
    elif program in ("python", ".venv/bin/python"):
        python(*arguments)
    elif program == "torchrun":
        train_on_processes(arguments, SHOWN[words], request.getfixturevalue("tmp_path"))
    else:
        assert program in ELSEWHERE, f"{SHOWN[words]}: nobody has said how to check {program!r}"


def serve(arguments: Sequence[str], folder: Path) -> None:
    """Serve until the page has been read, at a port that is free whatever the page says."""
    command = [sys.executable, "-m", "cockpit", *arguments, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = next(line for line in server.stdout if "http://" in line)
            (address,) = re.findall(r"http://\S+", said)
            with urlopen(address.replace("0.0.0.0", "127.0.0.1"), timeout=30) as answer:
                assert answer.status == 200
        finally:
            server.terminate()


def train_on_processes(arguments: Sequence[str], page: Path, folder: Path) -> None:
    """Run the script that the page shows above."""
    (script, *_) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.S)
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    for number in range(TRIES):
        place = folder / str(number)
        place.mkdir()
        (place / "train.py").write_text(script, encoding="utf-8")
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=180)
        if AT_EXIT not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    (log,) = place.rglob("*.db")
    assert len(open_run(log).steps) > 1


def make(target: str) -> None:
    """Check that there is something to make."""
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def install(command: str, what: str) -> None:
    """Check that it is this package, with extras that it has."""
    assert command == "install"
    found = re.fullmatch(r"(\.|torch-cockpit)(?:\[([\w,]+)\])?", what)
    assert found, what
    assert set((found[2] or "").split(",")) - {""} <= extras()


def python(first: str, *arguments: str) -> None:
    """Check that there is such a script, or such a module with such options."""
    if first != "-m":
        assert (ROOT / first).is_file()
        return
    module, *arguments = arguments
    program = importlib.import_module(
        f"{module}.__main__" if module.startswith("bench") else module
    )
    if hasattr(program, "parser"):  # pytest and the like have their own tests
        assert program.parser().parse_args(arguments)


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_extras_exist(page: Path) -> None:
    named = re.findall(r"torch-cockpit\[([\w,]+)\]", page.read_text(encoding="utf-8"))
    assert {extra for names in named for extra in names.split(",")} <= extras()


def test_the_outputs_of_the_start_page_are_real(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(runs)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", START, flags=re.S | re.M)
    shown, _, found = (text for language, text in blocks if not language)
    run = open_run("runs/first.db")
    names = re.findall(r"^ (\w+)\s+\S", shown.partition("───\n")[2], flags=re.M)
    assert set(names) == set(run.quantities)
    assert f"{len(run.steps)} tracked" in shown
    # Numbers differ with the version of torch; a page that shows others by much is out of date.
    loss, alpha = (float(re.search(rf"{name}\s+~(\S+)", shown)[1]) for name in ("Loss", "Alpha"))
    last = {name: run.series(name).dropna().tail(18).median() for name in ("Loss", "Alpha")}
    assert last["Loss"] == pytest.approx(loss, abs=0.1)
    assert last["Alpha"] == pytest.approx(alpha, abs=0.3)
    assert not diagnose("runs/first.db").findings
    assert main(["doctor", "runs/faulty.db"]) == 1
    assert found.partition("\n\n")[2].strip() in capsys.readouterr().out
