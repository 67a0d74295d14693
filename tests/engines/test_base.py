"""What an engine has that only says its name and makes batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from gpupipe.config import LoaderConfig
from gpupipe.engines.base import Batch, Engine, Job, Operator, Profilable
from gpupipe.engines.registry import find
from gpupipe.errors import EngineError
from gpupipe.runtime.engine_registration import names
from gpupipe.sampling.sampler import Plan


class Smallest(Engine):
    """An engine with what the contract demands, and no more."""

    name = "smallest"
    settings = frozenset({"threads", "prefetch"})

    def __init__(self, threads: int) -> None:
        self.device, self.parallelism, self.batches_ahead = "cpu", threads, 1

    @classmethod
    def on(cls, job: Job, device: str) -> Engine:
        return cls(job.threads)

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        for plan in plans:
            yield plan, {}

    def lowering(self) -> list[Operator]:
        return []

    def close(self) -> None:
        pass


@pytest.mark.parametrize("missing", ["on", "batches", "lowering", "close"])
def test_an_engine_without_a_part_of_the_contract_cannot_be_made(missing: str) -> None:
    incomplete: Any = type("Incomplete", (Smallest,), {missing: getattr(Engine, missing)})
    with pytest.raises(TypeError, match=rf"abstract method '?{missing}"):
        incomplete(1)


def test_nothing_is_skipped_or_unmapped_by_default() -> None:
    engine = Smallest(2)
    assert (engine.skipped, engine.skipped_samples, engine.quarantine_file) == (0, {}, "")
    engine.unmap_files({0})
    engine.mark_consumed(Plan)  # type: ignore[arg-type]
    assert not isinstance(engine, Profilable)


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread"), (2, "2 threads")])
def test_the_parallelism_is_in_words(threads: int, words: str) -> None:
    assert Smallest(threads).parallelism_with_unit == words


def test_tune_tries_the_settings_that_the_engine_has() -> None:
    assert Smallest.tunable(False, [1, 2]) == {"threads": [1, 2], "prefetch": [1, 2, 4]}
    only: Any = type("Only", (Smallest,), {"settings": frozenset({"prefetch"})})
    assert only.tunable(False, [1, 2]) == {"prefetch": [1, 2, 4]}


def test_an_engine_that_reads_its_data_has_no_server() -> None:
    with pytest.raises(EngineError, match="smallest reads the data itself, and has no server"):
        Smallest.connect(LoaderConfig(), 1.0, None)


def test_the_settings_of_each_engine_are_settings_of_the_loader() -> None:
    for name in names():
        engine = find(name)
        assert engine.name == name
        assert engine.settings <= set(LoaderConfig.model_fields), name
        assert engine.overruled_settings <= engine.settings, name
        assert engine.parallelism_setting in LoaderConfig.model_fields, name
        assert set(engine.unused(LoaderConfig())) <= engine.settings, name
