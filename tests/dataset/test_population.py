"""Which sources grow: their epochs may have different samples."""

from pathlib import Path

import pytest

from gpupipe.cache.cached_population import CachedPopulation
from gpupipe.dataset.population import Growing, Population
from gpupipe.sources.folder import Folder
from gpupipe.sources.remote import Remote


def test_a_source_grows_if_it_has_a_population() -> None:
    assert issubclass(Remote, Growing)
    assert not isinstance(Folder(root=Path("photos")), Growing)


def test_a_population_must_say_all_that_a_sampler_asks() -> None:
    class Forgetful(Population):
        def ids(self, epoch: int, problem: object) -> None:  # type: ignore[override]
            return None

    with pytest.raises(TypeError, match=r"close.*generation.*is_ready.*release.*resume"):
        Forgetful()  # type: ignore[abstract]
    assert not CachedPopulation.__abstractmethods__
