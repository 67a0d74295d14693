"""Filling a cache in this process: which samples are drawn, what is written, what never happens."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import epochs, evict, shard_files, status
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.rate_limit import RateLimit


def disk_size(folder: Path) -> int:
    """What a folder takes, as du counts."""
    total = 0
    for path in (folder, *folder.rglob("*")):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # it went meanwhile
            continue
    return total


def rows_of(folder: CacheFolder) -> list[int]:
    folder.commit_log.refresh()
    return [
        int(row)
        for name, shard in folder.commit_log.live_shards().items()
        for row in shard_files.load_table(folder.table_path(name), shard.table_hash)[0]
    ]


def began(folder: CacheFolder) -> None:
    """An epoch that has all that there is, and is over."""
    with folder.lock():
        epochs.record_epoch(
            folder,
            folder.commit_log.generation,
            sum(s.samples for s in folder.commit_log.live_shards().values()),
        )


def test_every_sample_is_fetched_once_and_is_what_the_store_has(make: Any, blobs: Path) -> None:
    made = make()
    assert made.fill() == "complete"
    assert sorted(rows_of(made.folder)) == list(range(40))
    for name, shard in made.folder.commit_log.live_shards().items():
        data = made.folder.shard_path(name).read_bytes()
        assert len(data) == shard.bytes <= 100_000
        assert shard_files.hash_file(made.folder.shard_path(name)) == shard.hash
        for row, offset, length in shard_files.load_table(
            made.folder.table_path(name), shard.table_hash
        ).T:
            assert data[offset : offset + length] == (blobs / made.listing.names[row]).read_bytes()
    assert made.another().publish_shard() == "complete"
    assert not list((made.folder.dir / "tmp").iterdir()) + list(
        (made.folder.dir / "claims").iterdir()
    )


def test_the_order_follows_from_the_seed(make: Any, tmp_path: Path) -> None:
    orders = []
    for n, seed in enumerate((1, 1, 2)):
        made = make({"seed": seed}, dir=tmp_path / str(n))
        made.fill()
        orders.append(rows_of(made.folder))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_two_fillers_never_fetch_the_same(make: Any) -> None:
    made = make()
    others = [made.another() for _ in range(3)]
    threads = [
        threading.Thread(target=lambda f=f: [None for _ in iter(f.publish_shard, "complete")])
        for f in others
    ]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rows_of(made.folder)) == list(range(40))
    assert sum(f.statistics.samples for f in others) == 40


def test_weights_say_what_comes_first_and_zero_what_never_comes(
    make: Any, blobs: Path, tmp_path: Path
) -> None:
    lines = [f"class{n % 4}/{n:03}.jpg,{n % 4},{(0, 1, 1, 8)[n % 4]}" for n in range(40)]
    (tmp_path / "m.csv").write_text("\n".join(["path,label,w", *lines]))
    first: Counter[int] = Counter()
    for seed in range(30):
        made = make(
            {"manifest": str(tmp_path / "m.csv"), "weight": "w", "seed": seed},
            dir=tmp_path / f"c{seed}",
        )
        made.filler.publish_shard()
        first.update(row % 4 for row in rows_of(made.folder))
    assert made.fill() == "complete"
    assert {row % 4 for row in rows_of(made.folder)} == {1, 2, 3}
    assert first[0] == 0
    assert first[3] > 2.5 * (first[1] + first[2]) / 2 > 0


def test_sizes_need_not_be_known(make: Any, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(
        "\n".join(["path,label", *(f"class{n % 4}/{n:03}.jpg,{n % 4}" for n in range(40))])
    )
    made = make({"manifest": str(tmp_path / "m.csv")})
    assert made.fill() == "complete"
    assert sorted(rows_of(made.folder)) == list(range(40))
    assert all(s.bytes <= 100_000 for s in made.folder.commit_log.live_shards().values())
    assert len(made.folder.commit_log.live_shards()) == 10


@pytest.mark.parametrize("known", [True, False])
def test_a_sample_larger_than_a_shard_gets_one_of_its_own(
    make: Any, tmp_path: Path, known: bool
) -> None:
    root = tmp_path / "large" / "a"
    root.mkdir(parents=True)
    for n, size in enumerate((10, 300_000, 10)):
        (root / f"{n}.jpg").write_bytes(b"x" * size)
    (tmp_path / "m.csv").write_text("path\na/0.jpg\na/1.jpg\na/2.jpg\n")
    dataset: dict[str, Any] = {"url": f"file://{root.parent}"} | (
        {} if known else {"manifest": str(tmp_path / "m.csv"), "label": None}
    )
    made = make(dataset)
    assert made.fill() == "complete"
    assert sorted(rows_of(made.folder)) == [0, 1, 2]


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
    assert status.read_status(made.folder).evicted > 10


def test_which_shards_go_first(make: Any, tmp_path: Path) -> None:
    for policy, expected in (("fifo", "00000001"), ("lru", "00000003")):
        made = make(max_bytes="600kB", policy=policy, low_water=0.8, dir=tmp_path / policy)
        made.fill()
        began(made.folder)
        with made.folder.lock():
            epochs.record_epoch(made.folder, 2, 8)  # a later epoch goes on with an old generation
            made.folder.remove_leftovers()
            evict.make_room(made.folder, 100_000)
            gone = (
                made.folder.commit_log.published.keys()
                - made.folder.commit_log.live_shards().keys()
            )
        assert min(gone) == expected


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


def test_a_shard_whose_samples_changed_cannot_be_had_again(make: Any, tmp_path: Path) -> None:
    root = tmp_path / "data" / "a"
    root.mkdir(parents=True)
    (root / "1.jpg").write_bytes(b"old")
    (tmp_path / "m.csv").write_text("path\na/1.jpg\n")
    made = make(
        {"url": f"file://{root.parent}", "manifest": str(tmp_path / "m.csv"), "label": None}
    )
    made.fill()
    with made.folder.lock():
        evict.evict_down_to(made.folder, 0)
        pin = made.folder.create_claim("pins", "me", {"generation": 1})
    (root / "1.jpg").write_bytes(b"new")
    assert made.filler.publish_shard() == "failed"
    assert made.filler.statistics.lost == {
        "00000001": "its samples are others in the store than when it was made"
    }
    pin.release()


def test_a_published_shard_that_is_gone_and_cannot_be_made_again_is_left_out_of_the_next_generation(
    make: Any, tmp_path: Path
) -> None:
    root = tmp_path / "data" / "a"
    root.mkdir(parents=True)
    for n in range(3):
        (root / f"{n}.jpg").write_bytes(b"x" * 90_000)
    made = make({"url": f"file://{root.parent}"})
    assert made.fill() == "complete"
    (root / made.listing.names[rows_of(made.folder)[1]].rpartition("/")[2]).unlink()
    made.folder.shard_path("00000002").unlink()
    assert made.filler.publish_shard() == "failed"
    assert made.filler.statistics.lost.keys() == {"00000002"}
    made.folder.commit_log.refresh()
    assert list(made.folder.commit_log.live_shards()) == ["00000001", "00000003"]


def test_what_another_worker_could_fetch_is_no_failure_any_more(
    make: Any, web: tuple[str, Any]
) -> None:
    url, faults = web
    faults.errors["/007.jpg"] = 1000
    made = make({"url": url})
    assert made.fill() == "failed"
    faults.errors.clear()
    assert made.another().publish_shard() == "published"
    assert made.filler.publish_shard() == "complete"
    assert made.filler.statistics.failed.reasons == {}


def test_what_cannot_be_fetched_is_left_out_named_and_tried_again(
    make: Any, web: tuple[str, Any]
) -> None:
    url, faults = web
    faults.errors["/007.jpg"] = 1000
    made = make({"url": url})
    assert made.fill() == "failed"
    assert len(rows_of(made.folder)) == 39
    assert next(iter(made.filler.statistics.failed.reasons.values())).startswith("class3/007.jpg: ")
    faults.errors.clear()
    assert made.another().publish_shard() == "published"
    assert sorted(rows_of(made.folder)) == list(range(40))


@pytest.mark.parametrize("fault", ["errors", "cuts", "changes"])
def test_a_store_that_fails_now_and_then_never_poisons_the_cache(
    make: Any, web: tuple[str, Any], blobs: Path, fault: str
) -> None:
    url, faults = web
    getattr(faults, fault).update({f"/{n:03}.jpg": 1 + n % 2 for n in range(0, 40, 3)})
    made = make({"url": url})
    assert made.fill() == "complete"
    for name, shard in made.folder.commit_log.live_shards().items():
        data = made.folder.shard_path(name).read_bytes()
        for row, offset, length in shard_files.load_table(
            made.folder.table_path(name), shard.table_hash
        ).T:
            assert data[offset : offset + length] == (blobs / made.listing.names[row]).read_bytes()


def test_a_rate_limit_is_of_all_workers_together(tmp_path: Path) -> None:
    waits: list[float] = []
    first, second = (RateLimit(tmp_path / "rate", 1000, waits.append) for _ in range(2))
    started = time.time()
    for rate in (first, second, first, second):
        rate.take(1000)
    behind = time.time() - started
    assert all(n + 0.5 - behind <= wait <= n + 0.5 + 0.01 for n, wait in enumerate(waits))
    RateLimit(tmp_path / "other", None, waits.append).take(10**12)
    assert len(waits) == 4


def test_hit_rate_and_what_status_counts(make: Any) -> None:
    made = make()
    assert status.read_status(made.folder).hit_rate is None
    made.filler.publish_shard()
    began(made.folder)
    assert status.read_status(made.folder).hit_rate == 0.0
    made.filler.publish_shard()
    for _ in range(2):
        began(made.folder)
    found = status.read_status(made.folder)
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
    assert status.read_status(made.folder).epochs == 3


def test_old_tables_go_when_they_take_more_than_their_share(make: Any) -> None:
    made = make(max_bytes="500kB", low_water=0.0)
    for _ in range(40):
        if made.filler.publish_shard() == "no room":
            began(made.folder)
    tables = {p.stem for p in (made.folder.dir / "tables").iterdir()}
    spare = tables - made.folder.commit_log.live_shards().keys()
    assert len(spare) <= 500_000 / 16 / 4096
    assert len(made.folder.commit_log.published) > 10


def test_a_damaged_table_stops_a_worker_by_name(make: Any) -> None:
    made = make()
    made.filler.publish_shard()
    made.folder.table_path("00000001").write_bytes(b"x")
    with pytest.raises(Exception, match=r"00000001.npy: damaged"):
        made.another().publish_shard()


def test_a_damaged_record_of_an_epoch_is_left_out(make: Any) -> None:
    made = make()
    (made.folder.dir / "epochs.jsonl").write_text(
        '[]\n{"generation": "x"}\n'
        + json.dumps({"generation": 1, "samples": 2, "time": 3.0})
        + "\n"
    )
    assert epochs.read_epochs(made.folder) == [epochs.Epoch(1, 2, 3.0)]


def test_the_shards_are_readable_by_others_while_the_mask_of_the_maker_is_kept(make: Any) -> None:
    old = os.umask(0o027)
    try:
        made = make()
        made.filler.publish_shard()
        assert made.folder.shard_path("00000001").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)
