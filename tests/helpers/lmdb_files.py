"""LMDB databases of tests, as the library writes them."""

from collections.abc import Mapping
from pathlib import Path

import lmdb


def write_lmdb(
    path: Path, values: Mapping[str, bytes], database: str | None = None, subdir: bool = True
) -> Path:
    """Write values by their keys, some at a time, so that both meta pages are written."""
    items = list(values.items())
    with lmdb.open(str(path), map_size=1 << 26, max_dbs=4, subdir=subdir, sync=False) as env:
        inner = env.open_db(database.encode()) if database else None
        for part in range(3):
            with env.begin(write=True) as transaction:
                for key, value in items[part::3]:
                    transaction.put(key.encode(), value, db=inner)
    return path
