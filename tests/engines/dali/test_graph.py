"""A first batch that is short: the hardware decoder of a GPU sees a full one before it, and nobody
else notices.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import gpupipe
from gpupipe import config as configs
from gpupipe.dataset.file_columns import FileColumn
from gpupipe.engines.base import Job
from gpupipe.engines.dali import graph
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.runtime import failures
from gpupipe.sampling.sampler import Plan, Sampler

COUNT, BATCH = 60, 8
STEPS: list[Any] = ["decode", {"random_resized_crop": {"size": 20}}, "random_horizontal_flip"]


@dataclass(frozen=True)
class NotedFiles(FileColumn):
    """Files that note which of them are read, batch by batch."""

    def encoded_paths(self, rows: NDArray[np.int64]) -> Any:
        self.__dict__.setdefault("batches", []).append(rows.tolist())
        return super().encoded_paths(rows)

    @property
    def batches(self) -> list[list[int]]:
        return self.__dict__["batches"]  # type: ignore[no-any-return]


def job(root: Path, **options: Any) -> tuple[Job, NotedFiles]:
    changes = {"batch_size": BATCH, "device": "cpu", "threads": 1, "seed": 3} | options
    config = configs.read(
        {"data": {"source": "folder", "root": str(root)}, "pipeline": STEPS}, **changes
    )
    index = config.source.index()
    column = index.columns["image"]
    assert isinstance(column, FileColumn)
    noted = NotedFiles(column.root, column.paths)
    return Job(replace(index, columns={"image": noted}), config.pipeline, config.loader, 1), noted


def plans(job: Job, position: int) -> Any:
    """Of the rest of an epoch, and of the one after it."""
    sampler = Sampler(
        len(job.index), job.loader.batch_size, shuffle=True, seed=3, last_batch="partial"
    )
    sampler.load_state(sampler.state() | {"position": position})
    return [*sampler.begin(), *sampler.begin()]


def delivered(job: Job, position: int, warm_up: bool) -> list[tuple[Plan, dict[str, torch.Tensor]]]:
    engine = DaliEngine(job, None, warm_up=warm_up)
    try:
        return [
            (plan, {name: tensor.clone() for name, tensor in batch.items()})
            for plan, batch in engine.batches(iter(plans(job, position)))
        ]
    finally:
        engine.close()


@pytest.mark.parametrize("left", [3, 1])
def test_a_full_batch_is_decoded_before_a_short_one_and_changes_nothing(
    faces: Path, left: int
) -> None:
    wanted, noted = job(faces)
    found = delivered(wanted, COUNT - left, warm_up=True)
    ids = [plan.ids.tolist() for plan in plans(wanted, COUNT - left)]
    assert len(ids[0]) == left
    assert noted.batches == [np.resize(ids[0], BATCH).tolist(), *ids]
    cold, noted = job(faces)
    expected = delivered(cold, COUNT - left, warm_up=False)
    assert noted.batches == ids
    assert (
        [plan.ids.tolist() for plan, _ in found]
        == [plan.ids.tolist() for plan, _ in expected]
        == ids
    )
    for (_, batch), (_, other) in zip(found, expected, strict=True):
        assert all(torch.equal(batch[name], other[name]) for name in other)


def test_a_first_batch_that_is_full_or_as_large_as_the_data_set_is_the_first(faces: Path) -> None:
    for options in ({}, {"batch_size": 64}):
        wanted, noted = job(faces, **options)
        assert delivered(wanted, 0, warm_up=True)
        assert noted.batches == [plan.ids.tolist() for plan in plans(wanted, 0)]


def test_it_is_done_once(faces: Path) -> None:
    wanted, noted = job(faces)
    engine = DaliEngine(wanted, None, warm_up=True)
    for _ in range(2):
        next(engine.batches(iter(plans(wanted, COUNT - 3))))
    engine.close()
    assert [len(batch) for batch in noted.batches].count(3) == 2
    assert len(noted.batches[0]) == BATCH
    assert noted.batches[1:].count(noted.batches[0]) == 0


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_broken_sample_in_it_is_blamed_once_and_in_its_own_batch(
    faces: Path, tmp_path: Path, on_error: str
) -> None:
    shutil.copytree(faces, tmp_path / "faces")
    wanted, _ = job(
        tmp_path / "faces", on_error=on_error, max_bad=0.5, quarantine=str(tmp_path / "bad.jsonl")
    )
    first = plans(wanted, COUNT - 3)[0]
    broken = Path(wanted.index.location(int(first.ids[1])))
    broken.write_bytes(broken.read_bytes()[:500])
    if on_error == "raise":
        with pytest.raises(gpupipe.SampleError, match=broken.name):
            delivered(wanted, COUNT - 3, warm_up=True)
        return
    found = delivered(wanted, COUNT - 3, warm_up=True)
    assert found[0][0].ids.tolist() == first.ids[[0, 2]].tolist()
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1


def test_a_first_batch_with_a_broken_sample_does_not_count(faces: Path, tmp_path: Path) -> None:
    """The samples that run alone, to find the broken one, would be the first that are decoded."""
    shutil.copytree(faces, tmp_path / "faces")
    wanted, noted = job(tmp_path / "faces", batch_size=COUNT, on_error="skip", max_bad=0.5)
    Path(wanted.index.location(5)).write_bytes(b"not an image at all")
    found = delivered(wanted, 0, warm_up=True)
    assert [len(plan.ids) for plan, _ in found] == [COUNT - 1] * 2
    whole = [batch for batch in noted.batches if 5 not in batch]
    assert [len(batch) for batch in whole] == [COUNT, COUNT - 1, COUNT - 1]


def test_only_where_a_hardware_decoder_may_be_used(faces: Path) -> None:
    wanted, noted = job(faces)
    engine = DaliEngine(wanted, None)
    next(engine.batches(iter(plans(wanted, COUNT - 3))))
    engine.close()
    assert len(noted.batches[0]) == 3


def test_nothing_calls_dali_once_the_gpu_has_failed(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI would end the process. The failure of a real GPU is a test in tests/gpu."""
    wanted, noted = job(faces)
    engine = DaliEngine(wanted, None)
    batches = engine.batches(iter(plans(wanted, 0)))
    next(batches)
    pipe, read = engine._built._runner._pipe, len(noted.batches)
    for name in (failures, graph):
        monkeypatch.setattr(name, "gpu_failure", lambda _device_id: "the GPU failed: start again")
    kept: list[object] = []
    monkeypatch.setattr(failures, "_kept", kept)
    with pytest.raises(gpupipe.errors.EngineError, match="the GPU failed: start again"):
        next(batches)
    engine.close()
    assert pipe in kept
    assert len(noted.batches) <= read + wanted.loader.prefetch
