"""Filling a cache in this process: which samples are drawn, what is written, what never happens."""

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import evict, shard_files
from helpers.cache_contents import rows_of


def test_every_sample_is_fetched_once_and_is_what_the_store_has(make: Any, blobs: Path) -> None:
    made = make()
    assert made.fill() == "complete"
    assert sorted(rows_of(made.folder)) == list(range(40))
    for name, shard in made.folder.commit_log.live_shards().items():
        data = made.folder.shard_path(name).read_bytes()
        assert len(data) == shard.bytes <= 100_000
        assert shard_files.hash_file(made.folder.shard_path(name)) == shard.hash
        for row, offset, length, _ in shard_files.load_table(
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
    assert made.filler.statistics.lost["00000001"].startswith(
        "a/1.jpg: changed since it was listed (mtime "
    )
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
    made = make({"url": url})
    getattr(faults, fault).update({f"/{n:03}.jpg": 1 + n % 2 for n in range(0, 40, 3)})
    assert made.fill() == "complete"
    for name, shard in made.folder.commit_log.live_shards().items():
        data = made.folder.shard_path(name).read_bytes()
        for row, offset, length, _ in shard_files.load_table(
            made.folder.table_path(name), shard.table_hash
        ).T:
            assert data[offset : offset + length] == (blobs / made.listing.names[row]).read_bytes()


def test_a_damaged_table_stops_a_worker_by_name(make: Any) -> None:
    made = make()
    made.filler.publish_shard()
    made.folder.table_path("00000001").write_bytes(b"x")
    with pytest.raises(Exception, match=r"00000001.npy: damaged"):
        made.another().publish_shard()


def test_the_shards_are_readable_by_others_while_the_mask_of_the_maker_is_kept(make: Any) -> None:
    old = os.umask(0o027)
    try:
        made = make()
        made.filler.publish_shard()
        assert made.folder.shard_path("00000001").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


def test_a_changed_file_is_broken_until_it_is_as_it_was_listed(
    make: Any, web: tuple[str, Any]
) -> None:
    url, faults = web
    made = make({"url": url})
    faults.changes["/007.jpg"] = 1000
    assert made.fill() == "failed"
    log = made.folder.commit_log
    ((row, why),) = log.broken_rows().items()
    assert made.listing.names[row] == "class3/007.jpg"
    assert why.startswith("changed since it was listed (ETag same, now ")
    assert log.broken_rows(1) == {}
    before = log.generation
    assert made.another().publish_shard() == "failed"
    log.refresh()
    assert log.generation == before + 1, "it names another ETag"
    faults.changes.clear()
    assert made.another().publish_shard() == "published"
    assert sorted(rows_of(made.folder)) == list(range(40))
    assert log.broken_rows() == {}
    assert log.broken_rows(before) == {row: why}
