"""Which shards are evicted, when, and what stays."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import evict, maintenance
from helpers import stored_shards
from helpers.cache_contents import began, disk_size, rows_of


def test_a_full_cache_waits_until_an_epoch_had_its_samples(make: Any) -> None:
    made = make(max_bytes="600kB", low_water=0.7)
    assert made.fill() == "no room"
    first = set(rows_of(made.folder))
    assert 10 < len(first) < 30
    assert made.filler.publish_shard() == "no room"
    began(made.folder)
    assert made.filler.publish_shard() == "published"
    made.folder.commit_log.refresh()
    assert made.folder.commit_log.live_shards().keys() != made.folder.commit_log.published.keys()
    assert not made.folder.shard_path("00000001").exists()


@pytest.mark.parametrize("policy", ["fifo", "lru", "random"])
def test_the_disk_never_holds_more_than_max_bytes(make: Any, policy: str) -> None:
    made = make(max_bytes="500kB", low_water=0.6, policy=policy)
    most, seen = 0, set()
    for _ in range(60):
        outcome = made.filler.publish_shard()
        most = max(most, disk_size(made.folder.dir))
        seen.update(rows_of(made.folder))
        if outcome == "no room":
            began(made.folder)
        with made.folder.lock():
            assert made.folder.count_bytes() <= 500_000
            assert disk_size(made.folder.dir) <= made.folder.count_bytes() + 4096
    assert 300_000 < most <= 500_000
    assert len(seen) == 40
    assert maintenance.read_status(made.folder).evicted > 10


@pytest.mark.parametrize(
    ("policy", "generation", "since", "expected"),
    [
        ("fifo", 2, 0, "00000001"),
        ("lru", 2, 0, "00000003"),  # a later epoch goes on with an old generation
        ("lru", 2, 1, "00000001"),  # and had only what was new then
        ("lru", 1, 0, "00000002"),
    ],
)
def test_which_shards_go_first(
    make: Any, policy: str, generation: int, since: int, expected: str
) -> None:
    made = make(max_bytes="600kB", policy=policy, low_water=0.8)
    made.fill()
    began(made.folder)
    with made.folder.lock():
        evict.record_epoch(made.folder, generation, since, 8)
        made.folder.remove_leftovers()
        evict.make_room(made.folder, 100_000)
    gone = made.folder.commit_log.published.keys() - made.folder.commit_log.live_shards().keys()
    assert min(gone) == expected


def test_stored_shards_go_in_the_order_in_which_they_came(make: Any, tars: Path) -> None:
    made = make({"url": f"file://{tars}", "shards": stored_shards.PATTERN})
    made.fill()
    folder = made.folder
    folder.commit_log.refresh()
    came = list(folder.commit_log.live_shards())
    assert came != sorted(came)
    with folder.lock():
        assert evict.evict_down_to(folder, folder.count_bytes() - 1) == came[:1]


def test_what_an_epoch_pinned_stays_and_what_was_evicted_meanwhile_goes_with_the_pin(
    make: Any,
) -> None:
    made = make(max_bytes="600kB", low_water=0.5)
    made.fill()
    began(made.folder)
    folder = made.folder
    with folder.lock():
        generation = folder.commit_log.generation
        pin = folder.create_claim("pins", "me", {"generation": generation})
    assert made.filler.publish_shard() == "no room"
    folder.commit_log.refresh()
    evicted = folder.commit_log.published.keys() - folder.commit_log.live_shards().keys()
    assert evicted
    assert folder.list_present_shards() == folder.commit_log.published.keys()
    pin.release()
    assert made.filler.publish_shard() == "published"
    assert not evicted & folder.list_present_shards()
    assert all(folder.table_path(name).exists() for name in evicted)


def test_a_pinned_generation_gets_its_shards_again_byte_for_byte(make: Any) -> None:
    made = make(max_bytes="600kB")
    made.fill()
    folder = made.folder
    generation, before = (
        folder.commit_log.generation,
        {n: folder.shard_path(n).read_bytes() for n in folder.list_present_shards()},
    )
    with folder.lock():
        assert len(evict.evict_down_to(folder, 0)) == len(before)
    assert not folder.list_present_shards()
    with folder.lock():
        pin = folder.create_claim("pins", "me", {"generation": generation})
    for _ in before:
        assert made.filler.publish_shard() == "published"
    assert {n: folder.shard_path(n).read_bytes() for n in folder.list_present_shards()} == before
    assert folder.commit_log.generation == generation + 1
    pin.release()


@pytest.mark.parametrize("size", ["520kB", "550kB", "580kB", "610kB", "640kB"])
def test_a_generation_that_filled_the_cache_finds_room_again(make: Any, size: str) -> None:
    """Though the manifest is longer since, and tables of what was evicted take room."""
    made = make(max_bytes=size, low_water=0.5)
    made.fill()
    folder = made.folder
    for _ in range(6):
        began(folder)
        with folder.lock():
            generation = folder.commit_log.generation
        made.fill()
    with folder.lock():
        pins = [folder.create_claim("pins", "me", {"generation": generation})]
        pins += [folder.create_claim("pins", str(n), {"generation": generation}) for n in range(3)]
        wanted = folder.commit_log.live_shards(generation).keys()
    made.fill()
    with folder.lock():
        assert wanted <= folder.list_present_shards()
        assert folder.count_bytes() <= folder.options.max_bytes
    for pin in pins:
        pin.release()


def test_old_tables_go_when_they_take_more_than_their_share(make: Any) -> None:
    made = make(max_bytes="500kB", low_water=0.0)
    for _ in range(40):
        if made.filler.publish_shard() == "no room":
            began(made.folder)
    tables = {p.stem for p in (made.folder.dir / "tables").iterdir()}
    spare = tables - made.folder.commit_log.live_shards().keys()
    assert len(spare) <= 500_000 / 16 / 4096
    assert len(made.folder.commit_log.published) > 10
