"""Which samples of stored shards a process has checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.cache.stored_column import forget_checked
from gpupipe.cache.stored_fill import name_of
from gpupipe.cache.stored_samples import SampleTable
from helpers.stored_shards import PATTERN


def test_a_sample_is_checked_once_until_its_shard_is_forgotten(make: Any, tars: Path) -> None:
    made = make({"url": f"file://{tars}", "shards": PATTERN}, workers=0)
    made.fill()
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"])
    table.load([name_of(2), name_of(4)], ())
    column: Any = table.snapshot.index.columns["image"]
    rows = np.arange(len(column))
    first = column.read(rows[5:])
    path = made.folder.shard_path(name_of(4))
    content = bytearray(path.read_bytes())
    last = int(column.offset[-1]) + 3000
    content[last] ^= 1
    path.write_bytes(content)
    assert len(column.read(rows[5:])) == len(first), "all of them were checked"
    forget_checked(column.root, [4])
    with pytest.raises(OSError, match="no download worker is running that could fetch it again"):
        column.read(rows[-1:])
    assert len(column.read(rows[:5])) == 5
    assert column.location(len(rows) - 1, "s/000042") == f"file://{tars}/b/003.tar:s/000042"
    assert column.take(rows[:2]).take(np.array([1])).rows.tolist() == [(2 << 32) + 1]
