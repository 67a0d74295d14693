"""The process that lists a data set, and then waits."""

from typing import Any

import pytest

from gpupipe import config as configs


@pytest.mark.parametrize("has_versions", [True, False])
def test_a_listing_without_versions_says_so_once(
    web: tuple[str, Any], config: Any, capfd: pytest.CaptureFixture[str], has_versions: bool
) -> None:
    url, faults = web
    if not has_versions:
        faults.headers |= {"ETag": "", "Last-Modified": ""}
    source = configs.read(config(url=url)).source
    for _ in range(2):
        assert len(source.index()) == 40
    said = f"gpupipe cache: {url}: 40 of 40 files were listed without a version (ETag, MD5, time"
    assert capfd.readouterr().err.count(said) == (0 if has_versions else 1)
