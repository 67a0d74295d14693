"""A headless browser of this machine, for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def open_browser() -> "Iterator[Browser]":
    """Open Chromium or Chrome, or skip the test; Playwright's own would have to be downloaded."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        pytest.skip("no chromium or google-chrome on the PATH: install Debian's chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=found, args=["--disable-gpu", "--disable-quic", "--disable-sync"]
        )
        yield opened
        opened.close()
