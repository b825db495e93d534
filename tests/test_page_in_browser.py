"""The picture of a network in a real browser; skipped where no chromium is installed."""

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from t2t.reference import Layer, Program, TensorInfo
from tests.pictured import Attention, Blocks, Detector, program_of

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and its driver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,900",
)


class Page:
    """A page in the browser, in the words of someone who looks at it."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, page: str, fragment: str = "") -> None:
        file = self.folder / "net.html"
        file.write_text(page, encoding="utf-8")
        # The blank page between makes a page of another fragment load anew.
        self.driver.get("about:blank")
        self.driver.get(file.as_uri() + fragment)

    def js(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def shown(self) -> list[str]:
        """List what is drawn; a module has a plus where it is closed, else a minus."""
        name = "item.isGroup ? (item.open ? '-' : '+') + item.module : item.key"
        return self.js(f"return [...drawn.keys()].map((item) => {name})")

    def element(self, name: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, f'[aria-label="{name}"]')

    def click(self, name: str) -> None:
        """Click on the name of a layer or module."""
        self.element(name).find_element(By.CSS_SELECTOR, ":scope > text").click()

    def details(self) -> str:
        return str(self.driver.find_element(By.ID, "details").text)

    def fill(self, name: str) -> str:
        rect = "return getComputedStyle(arguments[0].querySelector('rect:last-of-type')).fill"
        return str(self.js(rect, self.element(name)))

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def page(driver: Any, tmp_path: Path) -> Iterator[Page]:
    opened = Page(driver, tmp_path)
    yield opened
    assert opened.errors() == []


@pytest.fixture(scope="module")
def blocks() -> Program:
    return program_of(Blocks(), [torch.rand(1, 3, 8, 8)])


@pytest.fixture(scope="module")
def attention() -> Program:
    sequence = torch.export.Dim("sequence", min=2, max=16)
    ids = torch.zeros(2, 6, dtype=torch.int64)
    return program_of(Attention(), [ids], dynamic_shapes=[{1: sequence}])


def test_it_is_closed_at_first_and_opens_by_a_click(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    first = ["input x", "stem/convolution", "+stages", "mean", "+fc", "output output"]
    assert page.shown() == first
    page.click("stages")
    assert page.shown()[2:5] == ["-stages", "+stages.0", "+stages.1"]
    page.click("stages.1")
    page.click("stages.1.0")
    assert "stages.1.0.conv/convolution" in page.shown()
    page.click("stages")
    assert page.shown() == first
    page.driver.find_element(By.ID, "expand").click()
    assert len(page.shown()) == 16 + 8 + 2
    page.driver.find_element(By.ID, "collapse").click()
    assert page.shown() == first


def test_it_loads_nothing_else(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    assert page.js("return performance.getEntriesByType('resource').length") == 0


def test_a_wrapper_of_one_module_is_open_at_first(page: Page) -> None:
    net = nn.Sequential(Blocks())
    page.open(program_of(net, [torch.rand(1, 3, 8, 8)]).to_html())
    assert "+0.stages" in page.shown()


def test_details_of_a_layer_lead_to_its_neighbours(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    page.click("stem/convolution")
    text = page.details()
    assert re.search(r"tests/pictured\.py:\d+ in Blocks\.forward", text)
    assert "kernel_size_nd (3, 3)" in text
    assert "kernel fp32[4, 3, 3, 3]" in text
    page.driver.find_element(By.LINK_TEXT, "stages.0.0/add").click()
    assert page.js("return state.selected.key") == "stages.0.0/add"
    assert "-stages.0.0" in page.shown()
    page.element("Close").click()
    assert page.details() == ""


def test_details_of_a_module_count_its_layers(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    page.click("stages")
    text = page.details()
    assert "layers 12\nweights 592" in text
    assert "convolution 4" in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("stages.1.0 conv", "stages.1.0.conv/convolution"),
        ("ELEMENTWISE fc", "fc/linear_1"),
        ("mean", "mean"),
        ("pictured.py Blocks.forward reduce", "mean"),
    ],
)
def test_search_finds_layers_by_name_kind_and_line(
    page: Page, blocks: Program, words: str, found: str
) -> None:
    page.open(blocks.to_html())
    field = page.driver.find_element(By.ID, "search")
    field.send_keys(words)
    results = [row.text.splitlines()[0] for row in page.driver.find_elements(By.CSS_SELECTOR, "li")]
    assert results == [found]
    field.send_keys(Keys.ENTER)
    assert page.js("return state.selected.key") == found
    assert found in page.shown()
    box = page.element(found).rect
    assert 0 < box["x"] < 1000
    assert 40 < box["y"] < 800


def test_a_search_marks_closed_modules_and_goes_on(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    field = page.driver.find_element(By.ID, "search")
    field.send_keys("relu")
    assert "hit" in page.element("stages").get_attribute("class")
    assert "hit" not in page.element("fc").get_attribute("class")
    field.send_keys(Keys.ENTER, Keys.ENTER)
    assert page.js("return state.selected.key") == "stages.0.1/relu"
    assert page.driver.find_element(By.ID, "found").text == "2 of 4"
    field.send_keys(Keys.ESCAPE)
    assert page.js("return document.querySelectorAll('.hit').length") == 0
    field.send_keys("no such thing")
    assert page.driver.find_element(By.ID, "found").text == "0 found"


def test_shape_arithmetic_is_shown_on_demand(page: Page, attention: Program) -> None:
    page.open(attention.to_html())
    assert "arange_2" not in page.shown()
    page.driver.find_element(By.ID, "sizes").click()
    assert "arange_2" in page.shown()
    page.driver.find_element(By.ID, "sizes").click()
    assert "arange_2" not in page.shown()


def test_edges_tell_types_and_named_sizes(page: Page, attention: Program) -> None:
    page.open(attention.to_html())
    labels = {element.text for element in page.driver.find_elements(By.CSS_SELECTOR, ".edge text")}
    assert {"int64[2, sequence]", "fp32[2, sequence, 8]", "fp32[sequence, 8]"} <= labels


def test_heat_colours_layers_and_modules(page: Page, blocks: Program) -> None:
    heat = {"stem/convolution": 1e-7, "stages.1.0.conv/convolution": float("nan"), "mean": 1e-3}
    page.open(blocks.to_html(heat=heat, heat_label="error"))
    assert page.fill("stem/convolution") == "rgb(255, 247, 200)"
    assert page.fill("mean") == page.fill("stages") == "rgb(90, 0, 30)"
    legend = page.driver.find_element(By.ID, "legend")
    assert "error (log): 1.0e-7" in legend.text
    assert "≤ NaN" in page.element("stages").text
    page.driver.find_element(By.ID, "heat").click()
    assert page.fill("stem/convolution") == "rgb(211, 239, 217)"
    assert "compute" in legend.text


@pytest.mark.parametrize("value", [0.0, float("nan"), -1.0])
def test_heat_may_be_one_number(page: Page, blocks: Program, value: float) -> None:
    page.open(blocks.to_html(heat={"mean": value, "stem/convolution": value}))
    colour = "rgb(90, 0, 30)" if value != value else "rgb(255, 247, 200)"
    assert page.fill("mean") == colour
    assert "Infinity" not in page.driver.find_element(By.ID, "legend").text


def test_it_follows_dark_mode_and_the_button(page: Page, blocks: Program) -> None:
    def background() -> int:
        colour = page.js("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    page.open(blocks.to_html())
    assert background() > 600
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert background() < 150
    page.driver.find_element(By.ID, "theme").click()
    assert background() > 600
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_it_zooms_and_pans(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    before = page.element("mean").rect
    mouse = ActionChains(page.driver)
    mouse.move_by_offset(300, 300).click_and_hold().move_by_offset(80, 50).release().perform()
    moved = page.element("mean").rect
    assert (round(moved["x"] - before["x"]), round(moved["y"] - before["y"])) == (80, 50)
    picture = page.driver.find_element(By.ID, "picture")
    wheel = "arguments[0].dispatchEvent(new WheelEvent('wheel', arguments[1]))"
    page.js(wheel, picture, {"deltaY": 100, "clientX": 700, "clientY": 400})
    assert round(page.element("mean").rect["y"] - moved["y"]) == -100
    page.js(wheel, picture, {"deltaY": -60, "ctrlKey": True, "clientX": 700, "clientY": 400})
    assert page.element("mean").rect["width"] > 1.2 * before["width"]
    page.driver.find_element(By.ID, "fit").click()
    assert page.element("mean").rect["width"] == pytest.approx(before["width"], rel=1e-3)


def test_it_works_by_keyboard(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html())
    page.js("arguments[0].focus()", page.element("stages"))
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert "+stages.0" in page.shown()
    assert page.element("stages").get_attribute("aria-expanded") == "true"
    page.driver.switch_to.active_element.send_keys("/")
    assert page.driver.switch_to.active_element.get_attribute("id") == "search"


def test_a_link_leads_to_a_layer_or_module(page: Page, blocks: Program) -> None:
    page.open(blocks.to_html(), "#stages.1.0.conv/convolution")
    assert page.js("return state.selected.key") == "stages.1.0.conv/convolution"
    page.open(blocks.to_html(), "#stages.1")
    assert page.js("return state.selected.module") == "stages.1"
    page.open(blocks.to_html(), "#%")
    assert page.js("return state.selected") is None


OVERLAPS = """
const found = [], all = [...drawn].filter(([item]) => item !== root);
for (const [a, p] of all) for (const [b, q] of all) {
  const apart = p.x >= q.x + q.width || q.x >= p.x + p.width
    || p.y >= q.y + q.height || q.y >= p.y + p.height;
  const within = q.x <= p.x && p.x + p.width <= q.x + q.width
    && q.y <= p.y && p.y + p.height <= q.y + q.height;
  if (a !== b && a.parent === b.parent && !apart) found.push(`${a.id} and ${b.id} overlap`);
  if (a.parent === b && !within) found.push(`${a.id} leaves ${b.id}`);
}
return found;
"""
LOOSE = """
// The ends of each line, in the picture's coordinates, that touch neither a box nor a border.
const near = (x, y) => [...drawn.values()].some((p) => x > p.x - 2 && x < p.x + p.width + 2
  && Math.min(Math.abs(y - p.y), Math.abs(y - p.y - p.height)) < 2);
const back = view.getCTM().inverse();
return [...document.querySelectorAll('.edge > path')].flatMap((path) => {
  const matrix = back.multiply(path.getCTM());
  return [0, path.getTotalLength()].map((at) => path.getPointAtLength(at).matrixTransform(matrix))
    .filter(({ x, y }) => !near(x, y)).map(({ x, y }) => `${x} ${y}`);
});
"""


@pytest.mark.parametrize("name", ["blocks", "attention", "detector"])
def test_nothing_overlaps_and_no_line_ends_nowhere(
    page: Page, name: str, request: pytest.FixtureRequest
) -> None:
    if name == "detector":
        program = program_of(Detector(), [torch.rand(1, 3, 16, 16)])
    else:
        program = request.getfixturevalue(name)
    page.open(program.to_html())
    for step in ("", "setAll(true)", "setSizes(true)"):
        page.js(step)
        assert page.js(OVERLAPS) == []
        assert page.js(LOOSE) == []
    assert page.js("return drawnLines.length") > 20


def test_names_are_shown_as_they_are(page: Page) -> None:
    nasty = "</script><script>document.title='bad'</script><img src=x onerror=document.title='bad'>"
    net = nn.ModuleDict({nasty.replace(".", "_"): nn.Linear(2, 2)})
    net.forward = lambda x: next(iter(net.values()))(x)
    page.open(program_of(net, [torch.rand(1, 2)]).to_html())
    page.js("setAll(true); search('script'); select(groups[1] || boxes[1])")
    assert nasty.replace(".", "_") in page.details()
    assert page.js("return document.querySelectorAll('img').length") == 0
    assert "bad" not in page.driver.title


def test_a_frame_in_a_notebook_shows_the_picture(page: Page, blocks: Program) -> None:
    page.open(f"<!doctype html><body>{blocks._repr_html_()}</body>")
    page.driver.switch_to.frame(page.driver.find_element(By.TAG_NAME, "iframe"))
    page.click("stages")
    assert "+stages.0" in page.shown()
    page.driver.switch_to.default_content()


def test_of_five_thousand_layers_only_what_is_open_is_drawn(page: Page) -> None:
    kind = {"attributes": {"type": "RELU"}, "types": ("FLOAT",), "shapes": ((1, 8),)}
    names = ["x", *(f"blocks.{i // 100}.{i // 10}.act{i}/relu" for i in range(5000))]
    layers = [
        Layer("ACTIVATION", name, inputs=(before,), outputs=(name,), **kind)
        for before, name in itertools.pairwise(names)
    ]
    ends = [TensorInfo(name, torch.float32, (1, 8)) for name in (names[0], names[-1])]
    program = Program(ends[:1], ends[1:], layers, "by hand")
    page.open(program.to_html())
    assert "+blocks.49" in page.shown()
    assert len(page.shown()) < 60
    assert page.js("return document.querySelectorAll('*').length") < 3000
