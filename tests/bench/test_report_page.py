"""The page of a report, as a browser shows and prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers import browsers
from helpers.full_product import IS_FULL
from helpers.made_comparison import COMMAND, RATES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.open_browser() as opened:
        yield opened


SIZES = {
    "desktop": (1200, 900),
    "window": (970, 700),
    "tablet": (768, 1024),
    "phone": (390, 844),
    "narrow phone": (320, 568),
}


@pytest.fixture
def opened(browser: Browser, report_folder: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
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
    page.goto((report_folder / "report.html").as_uri())
    yield page
    context.close()
    assert said == []
    assert [url[:200] for url in asked if not url.startswith("data:")] == [
        (report_folder / "report.html").as_uri()
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


COLORS = ("light", "dark")
WINDOWS = [
    (size, colors)
    for number, size in enumerate(SIZES)
    for colors in (COLORS if IS_FULL else [COLORS[number // 4]])
    if IS_FULL or size in ("desktop", "narrow phone")
]


@pytest.mark.parametrize("opened", WINDOWS, indirect=True, ids=" ".join)
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
