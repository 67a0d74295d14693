"""The samples of the shards in use: their ids, rows and places."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.cache.stored_fill import name_of
from gpupipe.cache.stored_samples import SampleTable
from helpers.cached_loading import Config, load
from helpers.stored_shards import PATTERN, write_tar


@pytest.fixture
def table(make: Any, tars: Path) -> SampleTable:
    """The samples of a complete cache of 6 shards; none is loaded."""
    made = make({"url": f"file://{tars}", "shards": PATTERN})
    assert made.fill() == "complete"
    return SampleTable(made.folder, made.listing, made.dataset, ["image"])


def test_ids_do_not_depend_on_which_shards_are_in_use(table: SampleTable) -> None:
    table.load([name_of(3)], ())
    alone = table.snapshot
    table.load(map(name_of, (4, 0, 3)), ())
    assert alone.ids.tolist() == [(3 << 32) + n for n in range(len(alone.index))]
    assert set(alone.ids.tolist()) < set(table.snapshot.ids.tolist())
    assert (np.diff(table.snapshot.ids) > 0).all()
    rows = table.snapshot.find_rows(alone.ids)
    for row, other in enumerate(rows.tolist()):
        assert alone.index.names[row] == table.snapshot.index.names[other]
        assert bytes(alone.index.read(row)) == bytes(table.snapshot.index.read(other))
        assert alone.index.labels[row] == table.snapshot.index.labels[other]


@pytest.mark.parametrize("id", [0, (3 << 32) + 1000, (5 << 32), 1 << 62])
def test_a_sample_that_is_not_there_is_refused(table: SampleTable, id: int) -> None:
    with pytest.raises(ValueError, match="the cache has no samples"):
        table.snapshot.find_rows(np.array([id]))
    table.load([name_of(3)], ())
    with pytest.raises(ValueError, match="a sample whose shard is not in the cache"):
        table.snapshot.find_rows(np.array([3 << 32, id]))


def test_a_broken_shard_has_one_sample_that_cannot_be_read(table: SampleTable, tars: Path) -> None:
    table.load([name_of(3)], [1, 3])
    assert table.snapshot.ids[0] == 1 << 32
    assert table.locate(1 << 32) == f"file://{tars}/a/002.tar"
    with pytest.raises(OSError, match="changed since it was listed"):
        table.snapshot.index.read(0)
    table.load([], [1])
    assert table.snapshot.ids.tolist() == [1 << 32]
    assert table.locate((2 << 32) + 7) == f"file://{tars}/a/004.tar:7"


def test_values_and_arrays_come_with_their_shards(config: Config, tmp_path: Path) -> None:
    root = tmp_path / "arrays"
    for shard in range(3):
        samples = []
        for n in range(4):
            buffer = io.BytesIO()
            np.save(buffer, np.full((2, 3 + shard, 5), 10 * shard + n, np.float32))
            samples.append({"npy": buffer.getvalue(), "json": json.dumps({"v": shard}).encode()})
        write_tar(root / f"{shard}.tar", samples)
    made = config(
        url=f"file://{root}", shards="*.tar", label=None, epoch="full", values={"v": "json:v"}
    )
    made["data"]["fields"] = {"x": {"member": "npy", "dtype": "float32", "shape": [2, 3, 5]}}
    made["pipeline"] = [{"normalize": {"mean": [0.0, 0.0], "std": [1.0, 1.0]}}]
    said = r"[12].tar: .*s/00000.*.npy: an array of shape \[2, [45], 5\]"
    with load(made, engine="cpu") as loader, pytest.raises(gpupipe.SampleError, match=said):
        list(loader)
    with load(made, engine="cpu", on_error="skip", max_bad=0.9) as loader:
        for batch in loader:
            assert batch["x"].shape[1:] == (2, 3, 5)
            assert (batch["x"][:, 0, 0, 0].long() == (batch["id"] & 0xFFFF)).all()
            assert (batch["v"] == 0).all()
