"""The extension of kernels, and its variants for processors, each in turn."""

from collections.abc import Iterator

import pytest

extension = pytest.importorskip("gpupipe._kernels", reason="the extension is not built")


@pytest.fixture(params=extension.variants())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a variant, which runs in the test."""
    extension.select(request.param)
    yield request.param
    extension.select(extension.variants()[0])
