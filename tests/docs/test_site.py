"""The site: its links, and its pages as a browser shows them, opened as files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from gpupipe.pipeline.step_registry import STEPS
from helpers import browsers
from helpers.full_product import IS_FULL

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).parents[2] / "docs"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
# A phone zooms out of a page that is too wide: innerWidth is larger then.
PROBLEMS = """width => [
    Math.max(document.scrollingElement.scrollWidth, innerWidth) > width ? 'too wide' : '',
    ...[...document.images].filter(i => i.loading != 'lazy' && !i.naturalWidth).map(i => i.src),
].filter(Boolean)"""


class PageParser(HTMLParser):
    """Collects the anchors of a page, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "id" and value:
                self.anchors.add(value)
            elif key == "href" and tag == "a" and value:
                self.links.append(value)
            elif key in ("src", "href") and value:
                self.loaded.append(value)


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, PageParser]:
    found = {path: PageParser(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(found) > 30
    return found


def test_every_link_leads_to_a_page_and_an_anchor(
    site: Path, pages: dict[Path, PageParser]
) -> None:
    broken = []
    for page, parser in pages.items():
        for link in parser.links + parser.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("https", "mailto") and link in parser.links:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or (parts.fragment and parts.fragment not in anchors):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS / "site" / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = set(re.findall(r": (\S+\.md)$", navigation, re.M))
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} <= named


def test_every_step_has_a_section(pages: dict[Path, PageParser], site: Path) -> None:
    steps = pages[site / "reference" / "steps.html"]
    assert set(STEPS.builtin_names) <= steps.anchors
    pictures = {path.stem for path in (site / "reference" / "steps").glob("*.jpg")}
    assert len(pictures) > 40
    assert {"dali", "linear_transformation"} >= set(STEPS.builtin_names) - pictures


def read_text(path: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8")))


def test_a_step_begins_with_its_yaml_and_names_no_module(site: Path) -> None:
    html = (site / "reference" / "steps.html").read_text(encoding="utf-8")
    section = html.partition('<h2 id="random_affine">')[2].partition("<h2 ")[0]
    example, picture = section.index('"highlight"'), section.index("steps/random_affine.jpg")
    assert example < picture < section.index("transform")
    text = read_text(site / "reference" / "steps.html")
    assert "- random_affine: {degrees: 30" in text
    assert "degrees number or [min, max]; required" in text
    assert re.findall(r"torchvision\.transforms\.v2\.[A-Z]\w+", text) == []
    assert 'href="https://arxiv.org/abs/1805.09501"' in html


def test_the_commands_have_no_empty_rows_and_begin_where_a_user_does(site: Path) -> None:
    page = site / "reference" / "cli.html"
    html, text = page.read_text(encoding="utf-8"), read_text(page)
    assert "<td></td>" not in html
    assert "\\|" not in text
    assert "INTEGER RANGE" not in text
    order = [text.index(f"gpupipe {name} [OPTIONS]") for name in ("init", "check", "run", "tune")]
    assert order == sorted(order)


def test_a_long_signature_has_one_argument_a_line(site: Path) -> None:
    text = read_text(site / "reference" / "api.html")
    assert re.search(r"load\(\n    config: [^\n]+,\n    \*overrides: str,\n    progress", text)


def test_examples_of_docstrings_are_code(site: Path) -> None:
    html = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert "<blockquote>" not in html
    assert len(re.findall(">Examples:<", html)) > 15


def test_the_search_has_no_sources_of_benchmarks_and_examples(site: Path) -> None:
    content = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    pages = {entry["location"] for entry in json.loads(content.partition("=")[2])["docs"]}
    assert {page for page in pages if re.match("repository/(benchmarks|examples)", page)} == set()
    assert {"changelog.html", "security.html", "stability.html"} <= pages


def test_the_page_for_errors_finds_its_assets(site: Path) -> None:
    loaded = [link for link in PageParser(site / "404.html").loaded if "://" not in link]
    assert len(loaded) > 3
    assert [link for link in loaded if not (site / link.partition("?")[0]).is_file()] == []


@pytest.mark.parametrize(
    ("page", "shown", "hidden"),
    [
        ("howto/engine_plugin", ["class PillowEngine(Engine)", "gpupipe.engines"], "include:"),
        ("repository/CONTRIBUTING", ["class BlobColumn(Column)", "def doctor("], "class Sqlite"),
    ],
)
def test_code_is_included_from_files(site: Path, page: str, shown: list[str], hidden: str) -> None:
    html = (site / f"{page}.html").read_text()
    text = unescape(re.sub(r"<[^>]+>", "", html))
    assert [words for words in shown if words not in text] == []
    assert hidden not in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.open_browser() as opened:
        yield opened


@contextmanager
def quiet_page(browser: Browser, site: Path, size: str, colors: str) -> Iterator[Page]:
    """A page that may print nothing to the console, and ask for nothing outside the site."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        is_mobile=size == "phone",
        has_touch=size == "phone",
        color_scheme=colors,  # type: ignore[arg-type]
    )
    page = context.new_page()
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    yield page
    context.close()
    assert messages == []
    own = (f"{site.as_uri()}/", "data:", "about:", "blob:")
    assert [url for url in requests if not url.startswith(own)] == []


WINDOWS = [(size, colors) for size in SIZES for colors in ("light", "dark")]


@pytest.mark.parametrize(
    ("size", "colors"), WINDOWS if IS_FULL else [("phone", "light"), ("desktop", "dark")]
)
def test_pages_fit_their_window(
    browser: Browser, site: Path, pages: dict[Path, PageParser], size: str, colors: str
) -> None:
    shown = [site / "index.html", site / "reference" / "steps.html"]
    if (size, colors) == ("phone", "light"):
        shown = sorted(path for path in pages if "repository" not in path.parts)
    problems = {}
    with quiet_page(browser, site, size, colors) as page:
        for path in shown:
            page.goto(path.as_uri(), wait_until="load")
            if found := page.evaluate(PROBLEMS, SIZES[size][0]):
                problems[str(path.relative_to(site))] = found
            scheme = page.evaluate("document.body.dataset.mdColorScheme")
            assert scheme == {"light": "default", "dark": "slate"}[colors]
    assert problems == {}


def test_a_table_that_is_wider_than_a_phone_shows_that_it_scrolls(
    browser: Browser, site: Path
) -> None:
    with quiet_page(browser, site, "phone", "light") as page:
        page.goto((site / "commands.html").as_uri(), wait_until="load")
        wide = page.evaluate(
            "[...document.querySelectorAll('.md-typeset__scrollwrap')]"
            ".filter(e => e.scrollWidth > e.clientWidth)"
            ".map(e => [e, e.querySelector('table')].map(getComputedStyle))"
            ".map(([e, table]) => [e.backgroundImage, table.backgroundColor])"
        )
    assert wide
    assert all("gradient" in image for image, _ in wide)
    assert {color for _, color in wide} == {"rgba(0, 0, 0, 0)"}, "they would hide the shadow"


@pytest.mark.parametrize("size", SIZES)
def test_the_search_works_in_pages_that_are_opened_as_files(
    browser: Browser, site: Path, size: str
) -> None:
    with quiet_page(browser, site, size, "light") as page:
        page.goto((site / "index.html").as_uri())
        if size == "phone":
            page.locator("label.md-header__button[for=__search]").click()
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("random_horizontal_flip")
        page.locator(".md-search-result__link[href*='steps.html']").first.click()
        page.wait_for_url("**/reference/steps.html*")
        assert "Every step" in page.title()
