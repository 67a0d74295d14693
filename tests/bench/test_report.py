"""The report of a comparison: its figures, its plots, and its page as a browser shows and prints
it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import statistics
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from made_comparison import BATCHES, COMMAND, RATES, measured
from PIL import Image

from gpupipe import config as configs
from gpupipe.bench import compare, parity, plots, report
from gpupipe.config import Config

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def config(faces: Path) -> Config:
    return configs.read(
        {
            "data": {"source": "folder", "root": str(faces)},
            "pipeline": "affine",
            "loader": {"batch_size": 16, "device": "cpu"},
        }
    )


@pytest.fixture(scope="module")
def agreements(config: Config) -> list[parity.Agreement]:
    return list(parity.measure(config, config.source.index(), ["cpu"], 4))


@pytest.fixture(scope="module")
def folder(
    config: Config, agreements: list[parity.Agreement], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A report. The same device twice, since it is laid out as two are: the CPU and a GPU."""
    made = tmp_path_factory.mktemp("report") / "deep" / "er"
    assert (
        report.write(
            made, measured(RATES), agreements, config, config.source.index(), ["cpu", "cpu"]
        )
        == made / "report.html"
    )
    return made


# --- files


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_results_hold_what_was_measured_and_where(folder: Path) -> None:
    found = json.loads((folder / "results.json").read_text(), parse_constant=no_constant)
    assert found["schema"] == compare.SCHEMA == "gpupipe-compare-1"
    assert {
        "time",
        "processor",
        "cores",
        "memory_gib",
        "gpu",
        "python",
        "system",
        "packages",
    } <= found["machine"].keys()
    assert {"gpupipe", "torch", "numpy"} <= found["machine"]["packages"].keys()
    assert (found["command"], found["repeats"], found["cores"], found["interrupted"]) == (
        COMMAND,
        3,
        [0, 1],
        False,
    )
    assert (found["contest"]["batches"], found["contest"]["warm_up"], found["contest"]["cold"]) == (
        BATCHES,
        3,
        True,
    )
    assert found["ratios_to"] == "DataLoader, 16 workers"
    sides = {s["name"]: s for s in found["sides"]}
    assert {name: s["images_per_second"]["rounds"] for name, s in sides.items()} == {
        name: pytest.approx(values) for name, values in RATES.items()
    }
    cpu = sides["DALI on CPU"]
    assert cpu["images_per_second"]["mean"] == pytest.approx(statistics.fmean(RATES["DALI on CPU"]))
    assert cpu["images_per_second"]["standard_deviation"] == pytest.approx(
        statistics.stdev(RATES["DALI on CPU"])
    )
    assert cpu["ratio"]["low"] < cpu["ratio"]["value"] < cpu["ratio"]["high"]
    assert sides["DataLoader, 16 workers"]["ratio"] is None
    assert [s["workers"] for s in found["sides"]] == [None, None, 0, 1, 16]
    first = {
        "device": "cpu",
        "step": "decode",
        "mean": 0,
        "most": 0,
        "psnr": None,
        "limit": 1,
        "largest": True,
        "images": 4,
        "holds": True,
    }
    assert found["parity"][0] == first


def test_plots_are_pictures_with_a_title(folder: Path) -> None:
    for name, said in (("time", "Time for 100 batches of 256 images"), ("rate", "Images a second")):
        with Image.open(folder / f"{name}.png") as image:
            assert image.format == "PNG"
            assert image.width >= 1000
            image.load()
            assert len(np.unique(np.asarray(image.convert("L")))) > 50, "not blank"
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert said in (title.text or "")


def test_the_same_comparison_makes_the_same_drawing(folder: Path, tmp_path: Path) -> None:
    plots.save(measured(RATES), tmp_path)
    assert (tmp_path / "time.svg").read_bytes() == (folder / "time.svg").read_bytes()


# --- the page


class References(HTMLParser):
    """All that a page points to, and its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [
            value or ""
            for name, value in attrs
            if name
            in ("src", "href", "srcset", "data", "action", "poster", "xlink:href", "background")
        ]


def test_the_page_points_to_nothing_outside_itself(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = References()
    page.feed(text)
    assert page.tags.count("img") == 2 + 4 * 5
    assert [r[:40] for r in page.found if not r.startswith("data:")] == []
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"https?:", text)
    assert text.startswith("<!doctype html>")


def test_a_page_says_first_that_the_work_was_not_the_same(
    config: Config, agreements: list[parity.Agreement], tmp_path: Path
) -> None:
    broken = [*agreements[:-2], *(dataclasses.replace(a, mean=3.0) for a in agreements[-2:])]
    text = report.write(
        tmp_path, measured(RATES), broken, config, config.source.index(), []
    ).read_text()
    said = (
        "They do not do the same work: DALI on cpu and torchvision differ too much, from "
        f"step &#39;{agreements[-2].step}&#39; on."
    )
    assert '<p class="verdict fails">' + said in text
    assert text.index(said) < text.index("<h2>")
    assert text.count(">FAILS<") == 2
    assert "Side by side" not in text


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium or Chrome of this machine; Playwright's own would have to be
    downloaded.
    """
    found = next(
        filter(
            None,
            map(
                shutil.which,
                ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
            ),
        ),
        None,
    )
    if not found:
        pytest.skip("no chromium or google-chrome on the PATH: install Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=found, args=["--disable-gpu", "--disable-quic", "--disable-sync"]
        )
        yield opened
        opened.close()


SIZES = {
    "desktop": (1200, 900),
    "window": (970, 700),
    "tablet": (768, 1024),
    "phone": (390, 844),
    "narrow phone": (320, 568),
}


@pytest.fixture
def opened(browser: Browser, folder: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The report in a window of the size, and in the colours, that the test is called with; nothing
    may go wrong, and nothing be fetched.
    """
    width, height = SIZES[request.param[0]]
    mobile = "phone" in request.param[0]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        is_mobile=mobile,
        has_touch=mobile,
        color_scheme=request.param[1],
    )
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asking: asked.append(asking.url))
    page.goto((folder / "report.html").as_uri())
    yield page
    context.close()
    assert said == []
    assert [url[:200] for url in asked if not url.startswith("data:")] == [
        (folder / "report.html").as_uri()
    ]


OUTSIDE = """[...document.querySelectorAll('body *:not(thead, thead *)')]
    .filter(e => { const b = e.getBoundingClientRect();
        return b.left < -1 || b.right > document.documentElement.clientWidth + 1 })
    .map(e => e.outerHTML.slice(0, 80))"""
CUT_OFF = """[...document.querySelectorAll(
    'td, th, p, dd, dt, code, h1, h2, h3, figcaption, figure')]
    .filter(e => !e.closest('thead') && e.scrollWidth > e.clientWidth + 1
        && getComputedStyle(e).display != 'inline')
    .map(e => e.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize(
    "opened",
    [(size, colors) for size in SIZES for colors in ("light", "dark")],
    indirect=True,
    ids=" ".join,
)
def test_the_page_fits_its_window_and_shows_everything(opened: Page) -> None:
    assert opened.title() == "gpupipe compare: config"
    assert opened.evaluate("document.scrollingElement.scrollWidth") <= opened.viewport_size["width"]
    assert opened.evaluate("innerWidth") == opened.viewport_size["width"], (
        "a phone zooms out of a page that is too wide"
    )  # type: ignore[index]
    assert opened.evaluate(OUTSIDE) == []
    assert opened.evaluate(CUT_OFF) == []
    images = opened.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight, "
        "i.clientWidth, i.alt])"
    )
    assert len(images) == 22
    assert all(
        complete and wide > 0 and high > 0 and shown > 80 and alt
        for complete, wide, high, shown, alt in images
    )
    first = opened.locator("h1 ~ .verdict").first
    assert "DALI on GPU delivers" in first.inner_text()
    assert first.bounding_box()["y"] < 300, "the verdict comes first"  # type: ignore[index]
    assert opened.locator("h1").count() == 1
    assert opened.locator("h2").all_inner_texts() == [
        "How fast",
        "Do they do the same work?",
        "Side by side",
        "How it was measured",
        "Machine",
    ]
    text = opened.locator("body").inner_text()
    for said in (
        "stand-in data, <not> LFW",
        COMMAND,
        "dropped from the page cache",
        "20 batches timed",
        "after the first and 3 more",
        "They do the same work",
    ):
        assert said in text


@pytest.mark.parametrize(
    "opened", [("phone", "light"), ("desktop", "light")], indirect=True, ids=" ".join
)
def test_a_table_stays_one_where_its_rows_are_cards(opened: Page) -> None:
    table = opened.get_by_role("table", name="How fast each side is")
    assert table.get_by_role("columnheader").all_inner_texts()[1:] == [
        "images/s",
        "ratio",
        "first batch",
        "CPU s / 1,000",
        "peak memory",
        "GPU busy",
    ]
    assert table.get_by_role("rowheader").all_inner_texts() == list(RATES)
    assert table.get_by_role("cell").first.inner_text() == "144,333 ± 17,898"
    head = table.locator("td").first.evaluate("e => getComputedStyle(e, '::before').content")
    assert head == (
        '"images/s"' if opened.viewport_size == {"width": 390, "height": 844} else "none"
    )


@pytest.mark.parametrize("opened", [("desktop", "dark")], indirect=True, ids=" ".join)
def test_it_prints_on_white_paper_with_nothing_cut_off(opened: Page) -> None:
    opened.emulate_media(media="print", color_scheme="dark")
    opened.set_viewport_size({"width": 688, "height": 1000})  # A4 without its margins
    assert opened.evaluate("document.scrollingElement.scrollWidth") <= 688
    assert opened.evaluate(OUTSIDE) == []
    assert (
        opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert opened.locator("thead").first.bounding_box()["height"] > 10, "a table, no cards"
    printed = opened.pdf(format="A4")
    assert printed.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
