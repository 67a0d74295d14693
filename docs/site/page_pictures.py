"""Takes pictures of the pages of the site: as wide as a screen and as a phone, light and dark.

    make docs
    python docs/site/page_pictures.py OUT [PAGE]...     # by default all pages, such as index.html

It prints each page that is wider than its window. Needs playwright, and chromium on the PATH.
"""

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

SITE = Path(__file__).parents[2] / "build" / "site"
_WIDTHS = (1440, 390)
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_MAX_HEIGHT = 8000
"""Longer pages are cut: their pictures cannot be looked at."""


def main(out: Path, names: list[str]) -> None:
    """Write four pictures of each page to the folder `out`."""
    pages = [SITE / name for name in names] or sorted(SITE.rglob("*.html"))
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        for page in pages:
            for width in _WIDTHS:
                for scheme in _SCHEMES:
                    _take(browser, page, width, scheme, out)
        browser.close()


def _take(
    browser: Browser, path: Path, width: int, scheme: Literal["light", "dark"], out: Path
) -> None:
    window = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    window.set_default_timeout(300_000)  # milliseconds: the machine may be busy
    window.goto(path.as_uri())
    window.wait_for_load_state("networkidle")
    content, height = window.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    name = path.relative_to(SITE).with_suffix("")
    if content > width:
        print(f"{name} is {content} pixels wide in a window of {width}")
    picture = out / f"{'-'.join(name.parts)}-{width}-{scheme}.png"
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, _MAX_HEIGHT)}
    window.screenshot(path=picture, full_page=True, clip=clip)
    window.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
