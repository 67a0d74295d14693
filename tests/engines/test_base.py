"""The contract of an engine: what a class must have, and how a job draws the steps of a batch."""

import re
from collections.abc import Generator, Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.bench.candidates import Tunable, list_candidates
from gpupipe.bench.compare import Comparable
from gpupipe.bench.parity import NamesDecoder
from gpupipe.bench.plan import Checkable
from gpupipe.bench.profile import Profilable
from gpupipe.config import LoaderConfig
from gpupipe.engines.bad_samples import QuarantiningEngine, list_skipped
from gpupipe.engines.base import Batch, BatchStream, Engine, EngineTraits, Job
from gpupipe.engines.registry import find
from gpupipe.loader import MixesBatches, PadsImages
from gpupipe.loading.assembly import Connects, HoldsFiles
from gpupipe.loading.ignored_settings import ExplainsUnused
from gpupipe.runtime.registry import ENGINES
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import Selection

CONTRACT = {
    *("name", "on", "can_run", "traits", "batches", "mark_consumed"),
    *("close", "device", "settings"),
}
CHANGING: list[Any] = [
    "decode",
    {"resize": {"size": {"from": 8, "to": 16, "epochs": [0, 1]}}},
    {"random_crop": {"size": 6}},
]


class Smallest(Engine):
    """An engine with what the contract demands, and no more."""

    name = "smallest"
    settings = frozenset({"threads", "prefetch"})

    def __init__(self, threads: int) -> None:
        self.device = "cpu"
        self.traits = self.traits.with_counts(threads, 1)

    @classmethod
    def on(cls, job: Job, device: str) -> Engine:
        return cls(job.threads)

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        for plan in plans:
            yield plan, {}

    def close(self) -> None:
        pass


def test_the_contract_has_nothing_else() -> None:
    members = {*vars(Engine), *vars(BatchStream), *Engine.__annotations__}
    members |= {*BatchStream.__annotations__}
    assert {name for name in members if not name.startswith("_")} == CONTRACT


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"on": Engine.on}, "`on()`"),
        ({"batches": Engine.batches}, "`batches()`"),
        ({"close": Engine.close}, "`close()`"),
        ({"name": None}, "`name`, a text"),
        ({"settings": {"threads"}}, "`settings`, a frozenset of names"),
        ({"traits": {}, "close": Engine.close}, "`traits`, an EngineTraits, `close()`"),
    ],
)
def test_a_class_without_a_part_of_the_contract_cannot_be_made(
    changes: dict[str, Any], lacks: str
) -> None:
    with pytest.raises(TypeError, match=f"Incomplete is no.*it lacks {re.escape(lacks)}\\."):
        type("Incomplete", (Smallest,), changes)


def test_a_base_of_engines_may_leave_parts_to_them() -> None:
    class Base(Engine, abstract=True):
        pass

    class Whole(Base):
        name, settings = "whole", frozenset[str]()
        on, batches, close = Smallest.on, Smallest.batches, Smallest.close

    assert not hasattr(Base, "name")
    assert Whole.traits == EngineTraits()


def test_an_engine_that_does_not_quarantine_skips_nothing() -> None:
    engine = Smallest(2)
    assert list_skipped(engine) == {}
    engine.mark_consumed(Plan)  # type: ignore[arg-type]
    assert engine.can_run(None, "cpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread"), (2, "2 threads")])
def test_the_traits_of_an_engine_are_its_own_and_frozen(threads: int, words: str) -> None:
    traits = Smallest(threads).traits
    assert (traits.parallelism_with_unit, traits.batches_ahead) == (words, 1)
    assert Smallest.traits == EngineTraits()
    with pytest.raises(FrozenInstanceError):
        traits.parallelism = 3  # type: ignore[misc]


def test_tune_tries_the_settings_that_the_engine_has() -> None:
    options = LoaderConfig(batch_size=1)
    tried = list_candidates(options, Smallest, False, 1)
    assert tried == {"threads": [1, 2], "prefetch": [1, 2, 4], "batch_size": [1, 2]}
    only: Any = type("Only", (Smallest,), {"settings": frozenset({"prefetch"})})
    tried = list_candidates(options, only, False, 1)
    assert tried == {"prefetch": [1, 2, 4], "batch_size": [1, 2]}


def test_the_settings_of_each_engine_are_settings_of_the_loader() -> None:
    for name in ENGINES.names():
        engine = find(name)
        assert engine.name == name
        assert engine.settings <= set(LoaderConfig.model_fields), name
        assert engine.traits.overruled_settings <= engine.settings, name
        assert engine.traits.parallelism_setting in LoaderConfig.model_fields, name
        if isinstance(engine, ExplainsUnused):
            assert set(engine.unused(LoaderConfig())) <= engine.settings, name


def job_of(root: Path, **views: Any) -> Job:
    config: Any = {"data": {"source": "folder", "root": root}, "pipeline": CHANGING}
    if views:
        config["pipeline"] = {"steps": CHANGING, "views": views}
    checked = configs.read(config, seed=3)
    return Job(checked.source.index(), checked.pipeline, checked.loader, 1)


def test_a_job_draws_the_steps_of_the_epoch_of_a_plan(faces: Path) -> None:
    job, ids = job_of(faces), np.arange(4)
    for epoch, size in ((0, 8), (1, 16)):
        decode, resize, crop = job.steps_for(Plan(epoch, ids, 4, False))["image"]
        assert (decode.entry.key, resize.entry.step.size) == ("decode", size)
        expected = crop.entry.parameters(3, epoch, ids)
        assert crop.parameters.keys() == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(crop.parameters[name], values)


def test_a_sample_that_comes_again_gets_other_draws(faces: Path) -> None:
    job, ids = job_of(faces), np.zeros(20, np.int64)
    plain = Plan(1, ids, 20, False)
    again = Plan(1, ids, 20, False, repeats=np.arange(20))
    drawn = [
        next(iter(job.steps_for(plan)["image"][2].parameters.values())) for plan in (plain, again)
    ]
    assert [len(np.unique(values, axis=0)) > 1 for values in drawn] == [False, True]


@pytest.mark.parametrize("repeats", [1, 2])
def test_plans_that_are_drawn_at_once_get_what_each_draws_alone(faces: Path, repeats: int) -> None:
    steps = ["trivial_augment_wide", {"random_apply": {"transforms": ["random_erasing"], "p": 0.5}}]
    job, alike = job_of(faces, a={"steps": steps, "count": 2}), (("a_0", "a_1"),)
    sampler = Sampler(
        40, 8, shuffle=True, seed=3, last_batch="partial", selection=Selection(repeats=repeats)
    )
    plans = list(sampler.begin())
    for plan in [*plans, plans[1]]:  # once more, as after a sample that failed
        drawn = job.steps_for(plan, alike)
        alone = job.steps_for(replace(plan, siblings=None), alike)
        assert drawn.keys() == alone.keys() == {"image", "a_0"}
        for name, of_field in alone.items():
            for step, expected in zip(drawn[name], of_field, strict=True):
                assert step.entry is expected.entry
                assert step.parameters.keys() == expected.parameters.keys()
                for key, values in expected.parameters.items():
                    assert np.array_equal(step.parameters[key], values)
                    assert step.parameters[key].dtype == values.dtype


def test_views_have_steps_of_their_own(faces: Path) -> None:
    views = {name: {"steps": ["random_horizontal_flip"]} for name in ("left", "right")}
    steps = job_of(faces, **views).steps_for(Plan(0, np.arange(2), 2, False))
    assert [len(steps[name]) for name in ("image", "left", "right")] == [3, 1, 1]


def test_engines_get_steps_from_the_job_alone() -> None:
    """Else one forgets the schedules, the views or the repeats. One place tries a lone step."""
    package = Path(gpupipe.__file__).parent / "engines"
    callers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\w\.parameters\(", path.read_text())
    }
    assert callers == {"cpu/lowering.py"}
    assert (package / "cpu/lowering.py").read_text().count(".parameters(") == 1, "of a lone step"


def test_the_built_in_engines_that_read_the_data_quarantine() -> None:
    engines = [find(name) for name in ENGINES.names()]
    assert all(issubclass(e, QuarantiningEngine) for e in engines if issubclass(e, Engine))


def test_built_in_engines_have_nothing_else_but_what_a_protocol_asks_for() -> None:
    """Each protocol stands beside the one command, or the kind of source, that needs it."""
    protocols = (
        *(Checkable, Comparable, Connects, ExplainsUnused, HoldsFiles, MixesBatches),
        *(NamesDecoder, PadsImages, Profilable, Tunable),
    )
    asked = {name for protocol in protocols for name in vars(protocol)}
    for engine in map(find, ENGINES.names()):
        members = {name for name in dir(engine) if not name.startswith("_")}
        assert members <= CONTRACT | asked, engine.name
