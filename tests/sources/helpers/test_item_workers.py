"""Items that are read in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.engines.bad_samples import list_skipped
from gpupipe.sources.helpers.item_workers import pack, unpack
from helpers.user_datasets import Elsewhere


def test_parts_come_back_as_they_were_packed() -> None:
    items = [[np.arange(n, dtype=np.uint8), np.zeros(0, np.uint8)] for n in (3, 0, 5)]
    found = unpack(pack(items))
    assert [[part.tolist() for part in parts] for parts in found] == [
        [part.tolist() for part in parts] for parts in items
    ]


def load(dataset: Any, **options: Any) -> gpupipe.Loader:
    settings = {"device": "cpu", "engine": "cpu", "ids": True, "batch_size": 8, "threads": 2}
    data = {"workers": 2, "timeout": 60}
    steps = ["decode", {"center_crop": {"size": 8}}]
    return gpupipe.load(dataset, pipeline=steps, **{"data": data, **settings, **options})


def test_processes_read_items_and_the_faulty_ones_are_named(faces: Path) -> None:
    dataset = Elsewhere(faces, raises=5, dies=7)
    with load(dataset, on_error="skip", max_bad=0.1) as loader:
        batches = list(loader)
        skipped = sorted(list_skipped(loader.engine))
    processes = {int(n) for batch in batches for n in batch["process"]}
    assert len(processes) >= 2
    assert os.getpid() not in processes
    assert skipped == [5, 7]
    with (
        load(dataset, shuffle=False, batch_size=6) as loader,
        pytest.raises(
            gpupipe.SampleError, match=r"Elsewhere\[5\]: .*KeyError: 'no such key' at .*datasets.py"
        ),
    ):
        list(loader)


def test_a_data_set_that_hangs_is_ended(faces: Path) -> None:
    dataset = Elsewhere(faces, hangs=1)
    data = {"workers": 1, "timeout": 1}
    with (
        load(dataset, data=data, shuffle=False, batch_size=2) as loader,
        pytest.raises(gpupipe.SampleError, match=r"Elsewhere\[1\]: .*not returned after 1 s at /"),
    ):
        list(loader)


def test_a_data_set_that_no_process_can_import_is_refused(faces: Path) -> None:
    dataset = Elsewhere(faces)
    dataset.broken = lambda: 0  # type: ignore[attr-defined]
    with pytest.raises(gpupipe.DataError, match=r"data\.workers: .*cannot be sent to a process"):
        load(dataset)
