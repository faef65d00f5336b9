"""A page with some runs on it, and a browser to look at it."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cockpit.dashboard.server import Server
from cockpit.findings import Finding
from cockpit.log import ParameterInfo, Row, RunWriter

LAYERS = ["conv1", "conv2", "<b>fc</b>"]
PARAMETERS = [f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias")]
STEPS = 60
HOSTILE = "<img src=x onerror=alert(1)>"


def write_run(path: Path, *, steps: int = STEPS, seed: int = 0, close: bool = True) -> RunWriter:
    """Write a run with some of everything."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(
        path,
        settings={"model": f"Net {HOSTILE}", "optimizers": [{"class": "SGD", "lr": 0.1}]},
        parameters=[ParameterInfo(name, (4, 3), "float32") for name in PARAMETERS],
    )
    for step in range(steps):
        writer.record(step, rows_of(step, rng))
    writer.finding(FINDING)
    writer.note(step=3, kind="not-checked", subject="Alpha", message=f"because {HOSTILE}")
    writer.flush()
    if close:
        writer.close()
    return writer


def rows_of(step: int, rng: np.random.Generator) -> list[Row]:
    loss = 2.0 * np.exp(-step / 30) + 0.05 * rng.random()
    rows = [
        Row("Loss", loss),
        Row("Alpha", float(rng.normal(0, 0.5))),
        Row("NormTest", float(rng.random() + 0.5)),
        Row("my metric " + HOSTILE, float(step), source="log"),
        Row("learning_rate", 0.1, source="log"),
    ]
    if step == 17:
        rows[0] = Row("Loss", float("nan"))
    if step == 30:
        rows[2] = Row("NormTest", float("inf"))
    return rows + [
        Row("GradNorm", float(rng.random() + i), parameter=p) for i, p in enumerate(PARAMETERS)
    ]


FINDING = Finding(
    code="CP101",
    name="learning-rate-too-high",
    severity="error",
    step=20,
    title=f"The learning rate is too high {HOSTILE}",
    why="Steps overshoot.",
    action="Divide it by three.",
    source="",
    subjects=(HOSTILE,),
    evidence={"median alpha": 0.7},
    instrument="grad-norm",
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three runs; the file beside it must stay out of reach."""
    root = tmp_path_factory.mktemp("served")
    write_run(root / "secret.db")
    write_run(root / "runs" / "first.db")
    write_run(root / "runs" / "sweep" / "second.db", seed=1, steps=40)
    write_run(root / "runs" / f"{HOSTILE.replace('/', '')}.db", seed=2, steps=10)
    return root / "runs"


@pytest.fixture(scope="session")
def page(folder: Path) -> Iterator[Server]:
    with Server(folder, port=0) as server:
        yield server


def missing_browser() -> str:
    """Return what is missing for the tests in a browser, if anything is."""
    wanted = {
        "chromium": ("chromium", "chromium-browser", "google-chrome"),
        "its driver": ("chromedriver",),
    }
    missing = [what for what, names in wanted.items() if not any(map(shutil.which, names))]
    return " and ".join(missing)


@pytest.fixture(scope="session")
def open_browser() -> Iterator[Callable[..., object]]:
    """Return a function that opens a headless Chromium of some size, light or dark."""
    if missing := missing_browser():
        text = f"not installed: {missing}. Run: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    opened = []

    def start(width: int = 1400, height: int = 1000, dark: bool = False) -> webdriver.Chrome:
        options = webdriver.ChromeOptions()
        found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        options.binary_location = next(filter(None, found))
        for switch in (
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "disable-dev-shm-usage",
            "hide-scrollbars",
        ):
            options.add_argument(f"--{switch}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        opened.append(driver)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        return driver

    yield start
    for driver in opened:
        driver.quit()
