"""Items that are read in processes of their own."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.engines.bad_samples import list_skipped
from gpupipe.sources.helpers.item_workers import pack, unpack
from helpers.full_product import IS_FULL
from helpers.process_ends import ends
from helpers.user_datasets import Elsewhere, PathsElsewhere


def test_parts_come_back_as_they_were_packed() -> None:
    items = [[np.arange(n, dtype=np.uint8), np.zeros(0, np.uint8)] for n in (3, 0, 5)]
    found = unpack(pack(items))
    assert [[part.tolist() for part in parts] for parts in found] == [
        [part.tolist() for part in parts] for parts in items
    ]


pytestmark = pytest.mark.usefixtures("forked_executable")


def load(dataset: Any, **options: Any) -> gpupipe.Loader:
    settings = {"device": "cpu", "engine": "cpu", "ids": True, "batch_size": 8, "threads": 2}
    data = {"workers": 2, "timeout": 60}
    steps = ["decode", {"center_crop": {"size": 8}}]
    return gpupipe.load(dataset, pipeline=steps, **{"data": data, **settings, **options})


def test_processes_read_items_and_a_faulty_one_is_named(faces: Path) -> None:
    dataset = Elsewhere(faces, raises=59)
    with load(dataset, shuffle=False, batch_size=20) as loader:
        batches = iter(loader)
        processes = {int(n) for _ in range(2) for n in next(batches)["process"]}
        assert len(processes) == 2
        assert os.getpid() not in processes
        with pytest.raises(
            gpupipe.SampleError,
            match=r"Elsewhere\[59\]: .*KeyError: 'no such key' at .*datasets.py",
        ):
            next(batches)
    assert all(map(ends, processes)), "close() ends them"


def test_the_path_of_an_item_at_fault_is_asked_for_in_a_process(faces: Path) -> None:
    """The item may hang, or end its process."""
    dataset = PathsElsewhere(faces, dies=7)
    with load(dataset, data={"workers": 1}) as loader:
        dataset.asked.clear()  # type: ignore[attr-defined]
        assert loader.index.location(3) == str(dataset.paths[3])
        assert loader.index.location(7).endswith("PathsElsewhere[7]")
        assert dataset.asked == []  # type: ignore[attr-defined]


@pytest.mark.skipif(not IS_FULL, reason="starts ten processes: GPUPIPE_TEST_ALL=1")
def test_processes_that_end_or_hang_are_named_and_others_go_on(faces: Path) -> None:
    dataset = Elsewhere(faces, dies=7, hangs=1)
    data = {"workers": 2, "timeout": 5}
    with load(dataset, on_error="skip", max_bad=0.1, data=data) as loader:
        assert sum(len(batch["image"]) for batch in loader) == 58
        reasons = list_skipped(loader.engine)
    assert sorted(reasons) == [1, 7]
    assert "has not returned after 5 s at /" in reasons[1]
    assert "helpers/user_datasets.py:" in reasons[1], "the line of the data set, not of gpupipe"
    assert "ended its process (status 3)" in reasons[7]


def test_a_data_set_that_no_process_can_import_is_refused(faces: Path) -> None:
    dataset = Elsewhere(faces)
    dataset.broken = lambda: 0  # type: ignore[attr-defined]
    with pytest.raises(gpupipe.DataError, match=r"data\.workers: .*cannot be sent to a process"):
        load(dataset)
