"""The contract of a source."""

from __future__ import annotations

import pytest

from gpupipe.dataset.source import Source


def test_a_source_without_an_index_cannot_be_made() -> None:
    class Nothing(Source):
        """Says not which samples there are."""

    with pytest.raises(TypeError, match=r"abstract.*index"):
        Nothing.model_validate({})
