"""What `gpupipe cache status` counts; damaged shards are found, removed and fetched again."""

from typing import Any

import numpy as np
import pytest

from gpupipe.cache import shard_files
from gpupipe.cache.maintenance import fetch_missing_shards, read_status, remove_damaged_shards
from helpers.cache_contents import began, rows_of


def test_hit_rate_and_what_status_counts(make: Any) -> None:
    made = make()
    assert read_status(made.folder).hit_rate is None
    made.filler.publish_shard()
    began(made.folder)
    assert read_status(made.folder).hit_rate == 0.0
    made.filler.publish_shard()
    for _ in range(2):
        began(made.folder)
    found = read_status(made.folder)
    assert (
        found.generation,
        found.shards,
        found.samples,
        found.rows,
        found.epochs,
        found.requested,
    ) == (2, 2, 8, 40, 3, 20)
    assert found.hit_rate == pytest.approx(12 / 20)
    with (made.folder.dir / "epochs.jsonl").open("a") as f:
        f.write('{"generation": 2, "samp')
    assert read_status(made.folder).epochs == 3


def remove_damaged(made: Any) -> dict[str, str]:
    return remove_damaged_shards(made.folder, len(made.listing), lambda done, total: None)


@pytest.fixture
def whole(make: Any) -> Any:
    made = make()
    made.fill()
    made.folder.commit_log.refresh()
    return made


def test_a_sound_cache_is_left_alone(whole: Any) -> None:
    progress: list[tuple[int, int]] = []
    shards = whole.folder.list_present_shards()
    found = remove_damaged_shards(
        whole.folder, len(whole.listing), lambda *counts: progress.append(counts)
    )
    assert found == {}
    assert whole.folder.list_present_shards() == shards
    assert progress == [(n, len(shards)) for n in range(1, len(shards) + 1)]


def test_a_damaged_shard_is_removed_and_comes_again_as_it_was(whole: Any) -> None:
    path = whole.folder.shard_path("00000002")
    content = path.read_bytes()
    path.write_bytes(content[:5000] + b"damage" + content[5006:])
    assert list(remove_damaged(whole)) == ["00000002"]
    assert not path.exists()
    assert fetch_missing_shards(whole.folder, whole.another()) == {}
    assert path.read_bytes() == content


def test_a_damaged_table_is_made_again_of_its_shard(whole: Any) -> None:
    shard = whole.folder.commit_log.published["00000001"]
    path = whole.folder.table_path("00000001")
    expected = np.array(shard_files.load_table(path, shard.table_hash))
    path.write_bytes(b"damage")
    assert remove_damaged(whole) == {}
    assert np.array_equal(shard_files.load_table(path, shard.table_hash), expected)


def test_a_shard_that_is_damaged_with_its_table_is_evicted(whole: Any) -> None:
    whole.folder.shard_path("00000001").write_bytes(b"damage")
    whole.folder.table_path("00000001").write_bytes(b"damage")
    assert list(remove_damaged(whole)) == ["00000001"]
    whole.folder.commit_log.refresh()
    assert "00000001" not in whole.folder.commit_log.live_shards()
    whole.another().publish_shard()
    whole.fill()
    assert sorted(rows_of(whole.folder)) == list(range(40))
