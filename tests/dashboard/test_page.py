"""The page in a headless Chromium: loads, follows a training, zooms, filters, compares, jumps.

Screenshots go to the folder that ``COCKPIT_SCREENSHOTS`` names, or to pytest's temporary one.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dashboard.conftest import HOSTILE, LAYERS, STEPS

import cockpit
from cockpit.dashboard.server import Server

PATIENCE = 60


class Page:
    """What the tests do with the page."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, script: str, *arguments: object) -> Any:
        """Return what a script returns as soon as that is something."""
        from selenium.common.exceptions import JavascriptException
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.browser, PATIENCE, 0.1, ignored_exceptions=[JavascriptException])
        return wait.until(
            lambda driver: driver.execute_script(f"return {script}", *arguments), script
        )

    def open(self, server: Server, fragment: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get(server.url + fragment)
        self.until("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def type(self, selector: str, text: str) -> None:
        self.run(
            "const box = document.querySelector(arguments[0]); box.value = arguments[1];"
            "box.dispatchEvent(new Event('input'))",
            selector,
            text,
        )

    def plot(self, instrument: str) -> str:
        return f"document.querySelector('.card[data-id=\"{instrument}\"] .plot')"

    def drawn(self, instrument: str) -> None:
        """Bring a picture into sight and wait until it is drawn."""
        self.until(f"{self.plot(instrument)} !== null")
        self.run(f"{self.plot(instrument)}.scrollIntoView({{block: 'center'}})")
        self.until(f"{self.plot(instrument)}.classList.contains('js-plotly-plot')")

    def x_range(self, instrument: str) -> list[float]:
        return list(map(float, self.run(f"return {self.plot(instrument)}._fullLayout.xaxis.range")))

    def last_x(self, instrument: str) -> float:
        """Return the largest x of all traces that are drawn."""
        return self.run(
            f"return Math.max(...{self.plot(instrument)}._fullData.flatMap((trace) => [...trace.x]))"
        )

    def visible(self) -> list[str]:
        """Return which pictures are shown, in sight or not."""
        return self.run(
            "return [...document.querySelectorAll('.card')]"
            ".filter((card) => !card.hidden && !card.closest('.group').hidden).map((card) => card.dataset.id)"
        )


@pytest.fixture(scope="module")
def wide(open_browser: Callable[..., Any]) -> Page:
    return Page(open_browser())


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("COCKPIT_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def nothing_from_elsewhere_and_no_errors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check after every test what the browser has logged."""
    yield
    for name in ("wide",):
        if name in request.fixturenames:
            check_logs(request.getfixturevalue(name).browser)


def check_logs(browser: Any) -> None:
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            assert re.match(r"http://127\.0\.0\.1:\d+/|data:|blob:|about:", url), url
    for entry in browser.get_log("browser"):
        # plotly.js brings a style sheet for its maps, which the page's policy keeps out, as it should
        if "plotly.min.js" in entry["message"] and "style-src" in entry["message"]:
            continue
        if "net::ERR" in entry["message"]:
            continue  # a server that was stopped by a test
        assert entry["level"] not in ("SEVERE", "ERROR"), entry["message"]


def test_it_loads(wide: Page, page: Server) -> None:
    wide.open(page, "#run=first.db")
    assert wide.run("return document.title") == "first.db · Cockpit"
    names = wide.run("return [...document.querySelectorAll('.runs .run')].map((one) => one.title)")
    assert set(names) == {"first.db", "sweep/second.db", f"{HOSTILE}.db"}
    wide.drawn("loss")
    assert wide.last_x("loss") == STEPS - 1
    assert {"alpha", "loss", "grad-norm", "grad-norm-layers", "learning-rate"} <= set(
        wide.visible()
    )
    groups = wide.run(
        "return [...document.querySelectorAll('.group:not([hidden]) > h2')].map((one) => one.textContent)"
    )
    assert groups == ["STEP SIZE", "GRADIENTS", "PERFORMANCE", "HYPERPARAMETERS"]


def test_how_to_read_it_is_shown_on_hover(wide: Page, page: Server) -> None:
    wide.open(page, "#run=first.db")
    wide.drawn("alpha")
    wide.run(
        "document.querySelector('.card[data-id=alpha] .info').dispatchEvent(new Event('mouseenter'))"
    )
    assert "overshoot" in wide.run("return document.getElementById('tip').textContent")
    assert wide.run("return !document.getElementById('tip').hidden")


def test_names_are_never_markup(wide: Page, page: Server) -> None:
    for tab in ("board", "findings", "settings"):
        wide.open(page, "#run=first.db")
        wide.until("document.querySelectorAll('.finding').length > 0")
        wide.click(f"[data-tab={tab}]")
        if tab == "settings":
            wide.until("document.querySelectorAll('#settings tbody tr').length > 0")
        assert wide.run("return document.querySelectorAll('img[src=x]').length") == 0
        assert wide.run("return document.querySelectorAll('main b, aside b').length") == 0
    assert HOSTILE in wide.run("return document.getElementById('findings').textContent")
    assert HOSTILE in wide.run("return document.getElementById('settings').textContent")
    assert HOSTILE in wide.run("return document.getElementById('runs').textContent")
    wide.click("[data-tab=board]")
    wide.drawn("grad-norm-layers")
    labels = wide.run(
        f"return [...{wide.plot('grad-norm-layers')}.querySelectorAll('.annotation')].map((one) => one.textContent)"
    )
    assert "<b>fc</b>.weight" in labels


def test_dragging_zooms_all_pictures_over_steps_and_double_click_shows_everything(
    wide: Page, page: Server
) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    wide.open(page, "#run=first.db")
    wide.drawn("alpha")
    drag = wide.browser.find_element(By.CSS_SELECTOR, '.card[data-id="alpha"] .nsewdrag')
    before = wide.x_range("alpha")
    chain = ActionChains(wide.browser).move_to_element(drag).move_by_offset(-80, 0)
    chain.click_and_hold().move_by_offset(120, 0).release().perform()
    wide.until("!document.getElementById('window').hidden")
    wide.until(f"{wide.plot('alpha')}._fullLayout.xaxis.range[0] > {before[0] + 5}")
    zoomed = wide.x_range("alpha")
    assert before[0] < zoomed[0] < zoomed[1] < before[1]
    wide.drawn("loss")
    wide.until(f"Math.abs({wide.plot('loss')}._fullLayout.xaxis.range[0] - {zoomed[0]}) < 0.01")
    assert wide.x_range("loss") == pytest.approx(zoomed)
    wide.click("#reset-zoom")
    wide.until(f"{wide.plot('loss')}._fullLayout.xaxis.range[0] < 1")
    assert wide.run("return document.getElementById('window').hidden")


def test_pictures_are_filtered_by_words_groups_and_quantities(wide: Page, page: Server) -> None:
    wide.open(page, "#run=first.db")
    wide.drawn("loss")
    everything = wide.visible()
    wide.type("#search", "gradient parameter")
    wide.until("document.querySelectorAll('.card:not([hidden])').length === 1")
    assert wide.visible() == ["grad-norm-layers"]
    wide.type("#search", "")
    assert wide.visible() == everything
    wide.click('.chip[data-group="GRADIENTS"]')
    assert not {"grad-norm", "grad-norm-layers"} & set(wide.visible())
    wide.click('.chip[data-group="GRADIENTS"]')
    wide.click("[data-none=quantities]")
    assert wide.visible() == []
    assert "Nothing passes" in wide.run("return document.getElementById('nothing').textContent")
    wide.run(
        "[...document.querySelectorAll('#quantities label')]"
        ".find((one) => one.textContent === 'Loss').querySelector('input').click()"
    )
    wide.until("document.querySelectorAll('.card:not([hidden])').length > 0")
    assert wide.visible() == ["loss"]


def test_layers_are_filtered(wide: Page, page: Server) -> None:
    wide.open(page, "#run=first.db")
    wide.drawn("grad-norm-layers")
    wide.until(f"document.querySelectorAll('#layers label').length === {len(LAYERS)}")
    wide.click("[data-none=layers]")
    wide.run(
        "[...document.querySelectorAll('#layers label')]"
        ".find((one) => one.textContent === 'conv2').querySelector('input').click()"
    )
    names = f"{wide.plot('grad-norm-layers')}?._fullData?.map((trace) => trace.name)"
    wide.until("document.querySelector('.card[data-id=\"grad-norm-layers\"]') !== null")
    wide.drawn("grad-norm-layers")
    wide.until(f"({names} ?? []).join() === 'conv2.weight,conv2.bias'")
    wide.click("[data-all=layers]")
    wide.until(f"{wide.plot('grad-norm-layers')}?._fullData?.[0].type === 'heatmap'")


def test_runs_are_compared(wide: Page, page: Server) -> None:
    wide.open(page, "#run=first.db")
    wide.run(
        "[...document.querySelectorAll('.runs li')].find((one) => one.textContent.includes('second'))"
        ".querySelector('input').click()"
    )
    wide.until("document.getElementById('title').textContent === '2 runs'")
    wide.drawn("loss")
    names = f"{wide.plot('loss')}?._fullData?.filter((t) => t.showlegend).map((t) => t.name).join()"
    assert wide.until(f"{names} === 'first,second'")
    legend = wide.run(
        "return [...document.querySelectorAll('.run-legend')].map((one) => one.textContent)"
    )
    assert legend == ["first", "second"]
    wide.until(
        "document.querySelectorAll('.card[data-instrument=\"grad-norm-layers\"]').length === 2"
    )
    assert "run=sweep" in wide.run("return location.hash")


def test_a_finding_jumps_to_its_step_and_picture(wide: Page, page: Server) -> None:
    wide.open(page, "#run=first.db")
    wide.until("document.getElementById('finding-count').textContent === '1'")
    wide.click("[data-tab=findings]")
    wide.click(".finding button.link")
    wide.until("document.querySelector('.card.lit')?.dataset.instrument === 'grad-norm'")
    wide.drawn("grad-norm")
    wide.until(f"{wide.plot('grad-norm')}._fullLayout.xaxis.range[0] >= 9")
    first, last = wide.x_range("grad-norm")
    assert first <= 20 <= last < STEPS - 1
    marks = wide.run(f"return {wide.plot('grad-norm')}._fullLayout.shapes.map((one) => one.x0)")
    assert 20 in marks
    texts = wide.run(
        f"return {wide.plot('grad-norm')}._fullLayout.annotations.map((one) => one.text)"
    )
    assert "CP101" in texts


def test_settings_and_downloads(wide: Page, page: Server) -> None:
    wide.browser.get("about:blank")
    wide.browser.get(page.url + "#run=first.db&tab=settings")
    wide.until("document.querySelectorAll('#settings tbody tr').length > 0")
    assert "SGD" in wide.run("return document.getElementById('settings').textContent")
    text = wide.browser.execute_async_script(
        "const done = arguments[0];"
        "const link = [...document.querySelectorAll('#download-items a')].find((a) => a.href.includes('csv'));"
        "fetch(link.href).then((answer) => answer.text()).then(done)"
    )
    assert text.startswith("step,quantity,part,value\n0,Loss,,")


def test_it_follows_a_real_training(wide: Page, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = cockpit.Cockpit(
        model, cockpit.configuration("economy"), optimizer=optimizer, log=tmp_path / "live.db"
    )

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            x, y = torch.randn(16, 6), torch.randint(3, (16,))
            optimizer.zero_grad()
            losses = F.cross_entropy(model(x), y, reduction="none")
            loss = losses.mean()
            with watch(step, loss=loss, individual_losses=losses):
                loss.backward()
            optimizer.step()

    with Server(tmp_path, port=0) as server:
        train(0, 10)
        wide.open(server, "#run=live.db")
        wide.until("document.querySelector('.status.live') !== null")
        wide.drawn("loss")
        end = 10
        for _ in range(3):
            train(end, end + 10)
            end += 10
            # nothing is touched: the page sees by itself that there is more
            wide.until(
                f"Math.max(...{wide.plot('loss')}._fullData.flatMap((one) => [...one.x])) === {end - 1}"
            )
        watch.close()
        wide.until("document.querySelector('.status.closed') !== null")
        assert str(end) in wide.run("return document.getElementById('subtitle').textContent")


def test_an_empty_folder_fills_by_itself(wide: Page, tmp_path: Path) -> None:
    from dashboard.conftest import write_run

    with Server(tmp_path, port=0) as server:
        wide.browser.get(server.url)
        wide.until("document.getElementById('runs').textContent.includes('No runs here yet')")
        write_run(tmp_path / "new.db", steps=5)
        wide.until("document.querySelectorAll('.js-plotly-plot').length > 0")


def test_a_server_that_is_gone_is_said_to_be(wide: Page, folder: Path) -> None:
    server = Server(folder, port=0).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        wide.open(server)
        assert wide.run("return document.getElementById('banner').hidden")
    wide.until("!document.getElementById('banner').hidden")
    assert "does not answer" in wide.run("return document.getElementById('banner').textContent")


def test_the_token_leaves_the_address(wide: Page, folder: Path) -> None:
    with Server(folder, port=0, token="correct-horse-battery") as server:
        wide.open(server, "#run=first.db")
        assert "token" not in wide.run("return location.href")
        assert wide.run("return document.cookie") == ""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1400, 900, 420])
def test_it_fits_the_screen(
    open_browser: Callable[..., Any], page: Server, screenshots: Path, width: int, dark: bool
) -> None:
    small = Page(open_browser(width, 1000, dark))
    small.open(page, "#run=first.db")
    small.until("document.querySelectorAll('.js-plotly-plot').length >= 2")
    theme = "dark" if dark else "light"
    for tab in ("findings", "settings", "board"):
        small.click(f"[data-tab={tab}]")
        small.until(f"document.getElementById('{tab}').children.length > 0")
        assert small.run("return document.documentElement.scrollWidth - innerWidth") <= 0
        small.browser.save_screenshot(str(screenshots / f"{tab}-{width}-{theme}.png"))
    assert small.run("return document.documentElement.dataset.theme") == theme
    color = small.run("return getComputedStyle(document.body).backgroundColor")
    assert color == ("rgb(12, 17, 24)" if dark else "rgb(238, 241, 245)")
    check_logs(small.browser)
    small.browser.quit()
