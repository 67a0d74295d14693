"""Data sets that a config names."""

import pytest

from gpupipe.errors import DataError
from gpupipe.sources.helpers.dataset_origin import DatasetOrigin


def test_a_call_that_fails_says_where() -> None:
    origin = DatasetOrigin("json:loads", {"s": "{"}, None)
    with pytest.raises(DataError, match=r"data\.call: json:loads raised JSONDecodeError: .* at /"):
        origin.open()
