"""What a shard that could not be made or published leaves behind: nothing."""

import errno
from pathlib import Path
from typing import Any

import pytest

from helpers.stored_shards import PATTERN


@pytest.mark.parametrize("kind", ["packed", "stored"])
def test_a_log_that_cannot_be_written_leaves_no_trace_of_a_shard(
    make: Any, tars: Path, kind: str
) -> None:
    made = make({"url": f"file://{tars}", "shards": PATTERN} if kind == "stored" else {})
    log = made.folder.dir / "manifest.jsonl"
    log.mkdir()  # as a disk that fails: opening it raises OSError
    with pytest.raises(IsADirectoryError):
        made.filler.publish_shard()
    log.rmdir()
    for folder in ("tmp", "claims", "shards", "tables"):
        assert not list((made.folder.dir / folder).iterdir())
    assert made.fill() == "complete"


def test_a_disk_that_fails_is_no_full_disk(make: Any) -> None:
    made = make()
    (made.folder.dir / "tmp").rmdir()
    with pytest.raises(OSError, match="tmp") as failed:
        made.filler.publish_shard()
    assert failed.value.errno == errno.ENOENT
    assert not list((made.folder.dir / "claims").iterdir())
