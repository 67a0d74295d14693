"""Fetching the row groups of Parquet files, each as a shard, over HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import gpupipe
from gpupipe.cache import file_parts, store_listing, stored_table
from gpupipe.cache.maintenance import fetch_missing_shards
from gpupipe.cache.stored_fill import name_of
from gpupipe.cache.stored_index import StoredLocations
from gpupipe.cache.stored_samples import SampleTable
from gpupipe.config import read
from helpers.cache_contents import disk_size
from helpers.cached_loading import Config, complete, ids, load
from helpers.faulty_store import Faults, serve
from helpers.loaders import ENGINES
from helpers.stored_shards import cached, write_parquet, write_wide_parquets

NAMES = ["0.parquet", "1.parquet"]
COLUMNS = ["image", "label"]
IDS = [(file << 32) + row for file in range(2) for row in range(10)]
GAP = 1 << 16


@pytest.fixture(scope="module")
def images(faces: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[:60]]


@pytest.fixture(scope="module")
def wide(images: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 faces in 2 files of 3 row groups each, with columns that no config needs."""
    return write_wide_parquets(tmp_path_factory.mktemp("wide"), NAMES, images)


@pytest.fixture
def web(wide: Path) -> Iterator[tuple[str, Faults]]:
    with serve(wide) as served:
        yield served


def find_needed(path: Path, group: int) -> list[tuple[int, int]]:
    """Where the columns of a config are in a row group, as pyarrow says."""
    columns = pyarrow.parquet.read_metadata(path).row_group(group)
    needed = []
    for n in range(columns.num_columns):
        column = columns.column(n)
        if column.path_in_schema.partition(".")[0] in COLUMNS:
            begin = min(column.dictionary_page_offset or 2**60, column.data_page_offset)
            needed.append((begin, begin + column.total_compressed_size))
    return needed


def test_a_row_group_is_a_shard_of_which_the_needed_ranges_come(
    make: Any, web: tuple[str, Faults], wide: Path
) -> None:
    url, faults = web
    made = make({"url": url, "shards": NAMES})
    sizes = {f"/{name}": (wide / name).stat().st_size for name in NAMES}
    assert sorted(faults.sent) == [(path, size - GAP, size) for path, size in sizes.items()]
    assert len(made.listing) == 6
    for row, (file, group, begin) in enumerate(
        (file, group, 4 * group) for file in range(2) for group in range(3)
    ):
        faults.sent.clear()
        parts = file_parts.load(made.folder)
        assert parts is not None
        assert made.filler._fetcher.fetch(row, made.folder.dir / "part", parts.get(row))
        needed = find_needed(wide / NAMES[file], group)
        for path, first, last in faults.sent:
            assert path == f"/{NAMES[file]}"
            assert first in (begin for begin, _ in needed)
            assert last in (end for _, end in needed)
        assert sum(b - a for _, a, b in faults.sent) <= sum(b - a for a, b in needed) + GAP
        part = pyarrow.parquet.read_table(made.folder.dir / "part", columns=COLUMNS)
        whole = pyarrow.parquet.read_table(wide / NAMES[file], columns=COLUMNS)
        assert part.equals(whole.slice(begin, 4))
    (made.folder.dir / "part").unlink()
    assert made.fill() == "complete"
    files = [made.folder.list_shard_paths(name)[0] for name in sorted(cached(made.folder))]
    assert len(files) == 6
    every = [pyarrow.parquet.read_table(file, columns=COLUMNS) for file in files]
    wholes = [pyarrow.parquet.read_table(wide / name, columns=COLUMNS) for name in NAMES]
    assert pyarrow.concat_tables(every).equals(pyarrow.concat_tables(wholes))
    table = stored_table.load_table(made.folder.table_path(name_of(1)))
    assert [table.names[n] for n in range(4)] == [f"row {n}" for n in range(4, 8)]


def test_ids_are_the_same_whatever_a_file_is_cut_into(
    make: Any, wide: Path, images: list[bytes], tmp_path: Path
) -> None:
    fingerprints, counts = set(), []
    for size in (1_000, 200_000, 10**6):
        made = make(
            {"url": f"file://{wide}", "shards": "*.parquet"},
            shard_size=size,
            max_bytes=10**8,
            dir=tmp_path / str(size),
        )
        counts.append(len(made.listing))
        fingerprints.add(made.listing.fingerprint)
        assert made.fill() == "complete"
        table = SampleTable(made.folder, made.listing, made.dataset, ["image"])
        assert table.load_newest().tolist() == IDS
        index, rows = table.snapshot.index, table.snapshot.find_rows(table.snapshot.ids)
        for row, number in zip(rows.tolist(), range(20), strict=True):
            assert bytes(index.read(row)) == images[number]
            assert index.labels[row] == number
            assert index.location(row) == f"file://{wide}/{number // 10}.parquet:row {number % 10}"
        table.load([name_of(0)], [])
        assert table.locate(IDS[-1]) == f"file://{wide}/1.parquet:{9}" or size == 10**6
    assert counts == [6, 4, 2]
    assert len(fingerprints) == 1


def test_a_cache_smaller_than_a_file_holds_its_row_groups_in_turn(
    config: Config, images: list[bytes], tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    path, size = tmp_path / "store" / "large.parquet", 700_000
    write_parquet(path, images, 0)
    assert path.stat().st_size > size
    settings = config(
        url=f"file://{tmp_path}/store", shards="*.parquet", max_bytes=size, low_water=0.6
    )
    seen: set[int] = set()
    with load(settings, engine="cpu") as loader:
        end = time.monotonic() + 100
        while len(seen) < 60:
            assert time.monotonic() < end
            epoch = list(loader)
            assert len(set(ids(epoch))) == len(ids(epoch)) < 60
            for batch in epoch:
                assert batch["label"].tolist() == batch["id"].tolist()
            seen |= set(ids(epoch))
            assert disk_size(tmp_path / "cache") <= size
            time.sleep(0.05)  # row groups are fetched meanwhile
    assert seen == set(range(60))


def test_row_groups_after_an_empty_one_have_their_numbers(
    make: Any, images: list[bytes], tmp_path: Path
) -> None:
    table = pyarrow.table({"image": images[:3], "label": range(3), "rest": ["x" * 10**6] * 3})
    with pyarrow.parquet.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for begin, count in ((0, 0), (0, 1), (1, 0), (1, 2)):
            writer.write_table(table.slice(begin, count))
    assert pyarrow.parquet.read_metadata(tmp_path / "a.parquet").num_row_groups == 4
    whole = table.select(["image", "label"])
    with pyarrow.parquet.ParquetWriter(tmp_path / "b.parquet", whole.schema) as writer:
        writer.write_table(whole.slice(0, 0))
        writer.write_table(whole)
    made = make({"url": f"file://{tmp_path}", "shards": "*.parquet"})
    parts = file_parts.load(made.folder)
    assert parts is not None
    assert parts.groups.tolist() == [1, 3, 0], "a file that is fetched whole has all"
    assert parts.samples.tolist() == [1, 2, 3]
    assert made.fill() == "complete"


def test_a_cache_that_cannot_hold_two_row_groups_is_refused(
    config: Config, wide: Path, make: Any
) -> None:
    settings = config(url=f"file://{wide}", shards="*.parquet", max_bytes=350_000, workers=0)
    with pytest.raises(gpupipe.DataError, match=r"two largest shards take 4.*350,000: make it la"):
        load(settings)


@pytest.mark.parametrize("fault", ["forbidden", "gone", "wrong"])
def test_a_file_whose_end_was_not_to_be_had_when_it_was_listed_is_one_shard(
    make: Any, web: tuple[str, Faults], fault: str
) -> None:
    url, faults = web
    getattr(faults, fault)[NAMES[1]] = 10**6
    made = make({"url": url, "shards": NAMES})
    assert len(made.listing) == 4
    assert made.fill() == "failed"
    ((row, why),) = made.filler.statistics.failed.reasons.items()
    assert row == 3
    assert NAMES[1] in why
    assert bool(made.folder.commit_log.broken_rows()) == (fault == "wrong")
    getattr(faults, fault).clear()
    assert made.another().publish_shard() == "published"
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"])
    assert table.load_newest().tolist() == IDS
    parts = file_parts.load(made.folder)
    assert parts is not None
    assert parts.get(3) is None
    assert len(cached(made.folder)) == 4


def test_a_store_that_fails_while_ends_are_read_is_named(
    make: Any, web: tuple[str, Faults]
) -> None:
    url, faults = web
    faults.errors[NAMES[1]] = 10**6
    said = rf"{url}/1.parquet: its end cannot be read: .*500.*\(3 attempts\): see data.url"
    with pytest.raises(gpupipe.DataError, match=said):
        make({"url": url, "shards": NAMES})


def test_the_parts_of_a_file_are_of_the_version_that_its_end_was_of(
    make: Any, web: tuple[str, Faults], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_listing, "_MAX_ASKED_FILES", 0)
    url, faults = web
    made = make({"url": url, "shards": NAMES[0]})
    assert [made.listing.versions[n] for n in range(3)] == ["ETag same"] * 3
    faults.changes[NAMES[0]] = 10**6
    assert made.fill() == "failed"
    reasons = made.filler.statistics.failed.reasons.values()
    assert len(reasons) == 3
    assert all("changed since it was listed (ETag same, now " in why for why in reasons)


def test_a_damaged_list_of_parts_is_named(make: Any, wide: Path) -> None:
    made = make({"url": f"file://{wide}", "shards": NAMES})
    made.folder.parts_path.write_bytes(b"x")
    with pytest.raises(gpupipe.DataError, match=r"parts.idx: the list of the parts is damaged"):
        made.another()


def test_parts_that_a_killed_lister_has_left_are_not_those_of_another_listing(
    make: Any, web: tuple[str, Faults]
) -> None:
    url, faults = web
    made = make({"url": url, "shards": NAMES})
    made.folder.listing_path.unlink()
    faults.has_ranges = False
    again = make({"url": url, "shards": NAMES})
    assert len(again.listing) == 2
    assert again.fill() == "complete"


@pytest.fixture
def sparse(images: list[bytes], tmp_path: Path) -> Path:
    """Five files, of which the second and the last have three faces each, and the others none."""
    root = tmp_path / "sparse"
    root.mkdir()
    for n in range(5):
        write_parquet(root / f"{n}.parquet", images[: 3 * (n in (1, 4))], 0)
    return root


SPARSE_IDS = [(file << 32) + row for file in (1, 4) for row in range(3)]


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_files_without_rows_have_no_samples(
    config: Config, sparse: Path, options: dict[str, Any], has_ranges: bool
) -> None:
    with serve(sparse) as (url, faults):
        faults.has_ranges = has_ranges
        settings = config(url=url, shards="*.parquet", epoch="full")
        with load(settings, **options) as loader:
            assert len(loader) == 2
            epoch = iter(loader)
            before, state = ids([next(epoch)]), loader.state_dict()
            rest = ids(epoch)
            assert sorted(before + rest) == SPARSE_IDS
        with load(settings, **options) as again:
            again.load_state_dict(state)
            assert ids(again) == rest
            assert sorted(ids(again)) == SPARSE_IDS


def test_shards_without_samples_do_not_count_among_those_that_an_epoch_waits_for(
    make: Any, config: Config, sparse: Path
) -> None:
    data = {"url": f"file://{sparse}", "shards": "*.parquet", "label": "label"}
    made = make(data, min_shards=1)
    assert file_parts.load(made.folder) is not None, "the first file is cut, though into no parts"
    assert made.fill() == "complete"
    assert made.folder.commit_log.broken_rows() == {}
    live = made.folder.commit_log.live_shards()
    assert [live[name_of(row)].samples for row in range(5)] == [0, 3, 0, 0, 3]
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"])
    locations = StoredLocations(made.folder, table)
    empty = {name: shard for name, shard in live.items() if not shard.samples}
    missing = locations.count_missing(empty, 0)
    assert missing == 2
    assert locations.explain_wait(empty, 0, missing).startswith("0 shards of the 1 of data.cache.")
    assert locations.explain_wait(live, 0, 0) == ""
    assert locations.locate(empty).tolist() == []
    assert locations.locate(live).tolist() == SPARSE_IDS
    assert locations.locate(empty).tolist() == []
    assert cached(made.folder).keys() == live.keys()
    made.folder.shard_path(name_of(0)).unlink()
    assert fetch_missing_shards(made.folder, made.another()) == {}


def test_all_samples_are_there_though_some_files_have_none(config: Config, sparse: Path) -> None:
    settings = config(url=f"file://{sparse}", shards="*.parquet")
    complete(settings)
    assert len(read(settings).source.index().find_whole()) == 6
    nothing = config(url=f"file://{sparse}", shards="0.parquet", dir=str(sparse / "cache"))
    complete(nothing)
    with pytest.raises(gpupipe.DataError, match=r"sparse: no sample in 1 shard: see data\.shards"):
        read(nothing).source.index().find_whole()


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_store_of_which_no_file_has_rows_is_an_error_at_once(
    config: Config, sparse: Path, has_ranges: bool
) -> None:
    with serve(sparse) as (url, faults):
        faults.has_ranges = has_ranges
        settings = config(url=url, shards=["0.parquet", "2.parquet"], wait=86_400)
        said = "epoch 0 cannot begin: 0 shards .*, with 2 shards without samples"
        with load(settings) as loader, pytest.raises(gpupipe.DataError, match=said):
            len(loader)
