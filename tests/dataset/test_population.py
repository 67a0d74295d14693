"""Which sources grow, are read elsewhere in another way, or mix others."""

from __future__ import annotations

import pytest

from gpupipe.dataset.mixture import Mixing
from gpupipe.dataset.population import Growing, PartlyAvailable, ReadThrough
from gpupipe.dataset.source import SOURCES


@pytest.mark.parametrize("name", sorted(SOURCES.builtin_names))
def test_only_remote_grows_and_only_mix_mixes(name: str) -> None:
    source = SOURCES.find(name)
    for hook in (Growing, ReadThrough, PartlyAvailable):
        assert issubclass(source, hook) == (name == "remote"), hook
    assert issubclass(source, Mixing) == (name == "mix")
