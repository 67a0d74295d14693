"""The DALI engine builds a graph for each phase of a schedule, and only then."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe import config
from gpupipe.bench import plan
from gpupipe.engines.base import Job
from gpupipe.engines.dali import engine as dali_engine
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.errors import EngineError, StepError
from gpupipe.loading.assembly import resolve
from gpupipe.sampling.sampler import Plan
from helpers.loaders import load
from helpers.odd_steps import installer

GROWING = [
    "decode",
    {
        "resize": {
            "size": [{"value": 8, "until": 2, "then": {"value": 16, "until": 4, "then": 24}}, 8]
        }
    },
]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs of the graphs that engines build from now on."""
    jobs: list[Job] = []

    class Recorded(dali_engine.BuiltPipeline):
        def __init__(self, job: Job, *more: Any) -> None:
            jobs.append(job)
            super().__init__(job, *more)

    monkeypatch.setattr(dali_engine, "BuiltPipeline", Recorded)
    return jobs


def heights(jobs: list[Job]) -> list[int | None]:
    return [job.pipeline.output_spec.height for job in jobs]


def test_a_graph_is_built_where_numbers_change(faces: Path, built: list[Job]) -> None:
    with load(faces, GROWING, batch_size=30, threads=1, engine="dali") as loader:
        for epoch, size in enumerate([8, 8, 16, 16, 24, 24]):
            assert {b["image"].shape[2] for b in loader} == {size}, epoch
        assert heights(built) == [8, 16, 24]
        loader.sampler.set_epoch(1)
        assert {b["image"].shape[2] for b in loader} == {8}
    assert heights(built)[:4] == [8, 16, 24, 8]
    assert all(not job.pipeline.later for job in built)


def test_no_thread_of_an_old_graph_is_left(faces: Path) -> None:
    """DALI's own threads are not Python's; those that read with Pillow are."""
    with load(faces, GROWING, batch_size=30, threads=2, engine="dali") as loader:
        list(loader)
        before = threading.active_count()
        for _ in range(5):
            list(loader)
        assert threading.active_count() <= before + 2


def test_parts_of_the_work_have_schedules_too(faces: Path) -> None:
    """For `gpupipe profile`: plans of several epochs, without delivery."""
    with load(faces, GROWING, batch_size=4, threads=1, engine="dali") as loader:
        engine = loader.engine
        assert isinstance(engine, DaliEngine)
        plans = [Plan(epoch, np.arange(4), 4, True) for epoch in (0, 2, 3, 4, 0)]
        assert list(engine.iter_without_delivery(iter(plans))) == [4] * 5
        assert list(engine.iter_read_only(iter(plans))) == [4] * 5
        shapes = [b["image"].shape[2] for _, b in engine.batches(iter(plans))]
        assert shapes == [8, 16, 16, 24, 8]


def test_an_engine_whose_next_graph_cannot_be_built_goes_on_elsewhere(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = dali_engine.BuiltPipeline

    def refuse_16(job: Job, *more: Any) -> Any:
        if job.pipeline.output_spec.height == 16:
            raise EngineError("no room for 16")
        return build(job, *more)

    monkeypatch.setattr(dali_engine, "BuiltPipeline", refuse_16)
    with load(faces, GROWING, batch_size=30, threads=1, engine="dali") as loader:
        loader.sampler.set_epoch(2)
        with pytest.raises(EngineError, match="no room for 16"):
            list(loader)
        for epoch, size in ((4, 24), (0, 8)):
            loader.sampler.set_epoch(epoch)
            assert next(iter(loader))["image"].shape[2] == size


def test_a_plugin_step_is_checked_with_the_numbers_of_every_epoch(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = installer(tmp_path, monkeypatch)(
        num_uniforms="    level: int = 0\n    num_uniforms = 1",
        lower=(
            "    def lower(self, image, p):\n"
            "        image.apply('fn', lambda pixels: pixels[:9] if self.level else pixels)"
        ),
    )
    scheduled = {step: {"level": {"value": 0, "until": 7, "then": 1}}}
    resize = {"resize": {"size": [20, 20]}}
    with pytest.raises(StepError, match=f"{step}.*its lower\\(\\) made"):
        load(faces, ["decode", resize, scheduled], threads=1, engine="dali")
    load(faces, ["decode", resize, {step: {"level": 0}}], threads=1, engine="dali").close()


def test_check_builds_the_graph_of_every_epoch(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    build = dali_engine.build_graph

    def recorded(lowering: Lowering, *more: Any) -> Any:
        jobs.append(lowering.job)
        return build(lowering, *more)

    monkeypatch.setattr(dali_engine, "build_graph", recorded)
    raw = {"data": {"source": "folder", "root": faces}, "pipeline": GROWING}
    plan.operators(resolve(config.read(raw, device="cpu", engine="dali")))
    assert heights(jobs) == [8, 16, 24]
