"""Fetching the columns that a config needs of Parquet files, and nothing else."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from gpupipe.cache import evict, maintenance, stored_table
from gpupipe.cache.stored_fill import name_of
from helpers.cache_contents import disk_size
from helpers.faulty_store import Faults, serve
from helpers.stored_shards import cached, write_wide_parquets

NAMES = [f"{n:03}.parquet" for n in range(4)]
NAME = NAMES[0]
COLUMNS = ["image", "label"]
SIZE = 900_000
"""About the bytes of a file. A quarter of them is needed."""


@pytest.fixture(scope="module")
def wide(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 faces in 4 files, with columns that no config needs."""
    images = [path.read_bytes() for path in sorted(faces.glob("*/*.jpg"))[:40]]
    return write_wide_parquets(tmp_path_factory.mktemp("wide"), NAMES, images)


@pytest.fixture
def web(wide: Path) -> Iterator[tuple[str, Faults]]:
    with serve(wide) as served:
        yield served


@pytest.fixture(params=["fsspec", "obstore"])
def filled(
    make: Callable[..., Any], web: tuple[str, Faults], request: pytest.FixtureRequest
) -> Callable[..., Any]:
    """Makes a cache of the first file on the web server."""
    if request.param == "obstore":
        pytest.importorskip("obstore")

    def made(**options: Any) -> Any:
        options = {"timeout": 5.0, "shard_size": SIZE} | options
        cache = make({"url": web[0], "shards": NAME}, **options)
        if request.param == "fsspec":
            cache.filler._store.ranges._reader = None
        web[1].asked.clear()
        return cache

    return made


def read_columns(path: Path) -> Any:
    return pyarrow.parquet.read_table(path, columns=COLUMNS)


def test_the_columns_of_a_config_are_fetched_and_others_are_holes(
    filled: Any, web: tuple[str, Faults], wide: Path
) -> None:
    made = filled()
    assert made.filler.publish_shard() == "published"
    path, _ = made.folder.list_shard_paths(name_of(0))
    original = wide / NAME
    assert path.stat().st_size == original.stat().st_size > SIZE
    fetched = made.filler.statistics.bytes
    assert fetched < 0.35 * SIZE
    (shard,) = made.folder.commit_log.live_shards().values()
    assert 0 < path.stat().st_size - fetched - shard.unfetched < 10_000  # a footer
    assert path.stat().st_blocks * 512 < 0.4 * SIZE
    with made.folder.lock():
        assert disk_size(made.folder.dir) <= made.folder.count_bytes() < SIZE
    assert read_columns(path).equals(read_columns(original))
    table = stored_table.load_table(made.folder.table_path(name_of(0)))
    assert table.labels.tolist() == list(range(10))
    assert maintenance.read_status(made.folder).unfetched == shard.unfetched
    assert cached(made.folder)


def test_a_file_is_fetched_whole_by_a_server_that_knows_no_ranges(
    filled: Any, web: tuple[str, Faults], wide: Path
) -> None:
    web[1].has_ranges = False
    made = filled()
    assert made.fill() == "complete"
    path, _ = made.folder.list_shard_paths(name_of(0))
    assert path.read_bytes() == (wide / NAME).read_bytes()
    assert len(web[1].asked) <= 2


@pytest.mark.parametrize("fault", ["errors", "cuts", "stalls", "wrong"])
def test_a_part_that_failed_is_fetched_again(
    filled: Any, web: tuple[str, Faults], wide: Path, fault: str
) -> None:
    made = filled(timeout=0.5 if fault == "stalls" else 5.0)
    getattr(web[1], fault)[NAME] = 2 if fault != "wrong" else 1
    assert made.fill() == "complete"
    path, _ = made.folder.list_shard_paths(name_of(0))
    assert read_columns(path).equals(read_columns(wide / NAME))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("errors", r"500.*\(3 attempts\)"),
        ("cuts", r"\(3 attempts\)"),
        ("stalls", r"it was not whole after 0.2 s \(data.cache.timeout\) \(3 attempts\)"),
        ("forbidden", "403"),
        ("gone", NAME),
        ("changes", r"changed since it was listed \(ETag same, now [0-9]+\)"),
        ("wrong", "row group 0 cannot be read"),
    ],
)
def test_a_file_whose_parts_cannot_be_had_is_named(
    filled: Any, web: tuple[str, Faults], fault: str, said: str
) -> None:
    made = filled(timeout=0.2 if fault == "stalls" else 5.0)
    getattr(web[1], fault)[NAME] = 10**6
    assert made.fill() == "failed"
    (reason,) = made.filler.statistics.failed.reasons.values()
    assert reason.startswith((f"{NAME}: ", f"{web[0]}/{NAME}: ")), reason
    assert re.search(said, reason), reason
    assert bool(made.folder.commit_log.broken_rows()) == (fault in ("changes", "wrong"))
    assert not list((made.folder.dir / "shards").iterdir())


def test_parts_of_different_versions_are_not_one_file(
    make: Any, web: tuple[str, Faults], wide: Path
) -> None:
    pytest.importorskip("obstore")
    made = make({"url": web[0], "shards": NAME}, shard_size=SIZE)
    reads, store = [], made.filler._fetcher._store
    copy = store.copy_range

    def copy_once(*arguments: Any) -> Any:
        reads.append(arguments)
        if len(reads) == 2:
            web[1].changes[NAME] = 1
        return copy(*arguments)

    store.copy_range = copy_once
    assert made.fill() == "complete"
    path, _ = made.folder.list_shard_paths(name_of(0))
    assert read_columns(path).equals(read_columns(wide / NAME))
    assert made.filler.statistics.bytes > 0.3 * SIZE  # the parts came twice


def test_a_damaged_page_is_named(make: Any, wide: Path, tmp_path: Path) -> None:
    content = bytearray((wide / NAME).read_bytes())
    with pyarrow.parquet.ParquetFile(wide / NAME) as file:
        content[file.metadata.row_group(1).column(1).dictionary_page_offset + 30_000] ^= 1
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / NAME).write_bytes(content)
    made = make({"url": f"file://{tmp_path}/store", "shards": NAME})
    assert made.fill() == "failed"
    (why,) = made.folder.commit_log.broken_rows().values()
    assert why.startswith("row group 1 cannot be read: "), why
    assert "CRC" in why


def test_nothing_is_fetched_that_has_no_room(make: Any, wide: Path) -> None:
    size = 900_000  # less than the files take
    made = make({"url": f"file://{wide}", "shards": NAMES}, max_bytes=size)
    assert made.fill() == "no room"
    assert disk_size(made.folder.dir) <= size
    before = made.filler.statistics.bytes
    assert made.filler.publish_shard() == "no room"
    assert made.filler.statistics.bytes == before  # how much is needed is known


def test_a_file_that_was_evicted_comes_again_as_it_was(make: Any, wide: Path) -> None:
    made = make({"url": f"file://{wide}", "shards": NAME})
    assert made.fill() == "complete"
    before = {name: path.read_bytes() for name, path in cached(made.folder).items()}
    with made.folder.lock():
        generation = made.folder.commit_log.generation
        evict.evict_down_to(made.folder, 0)
        pin = made.folder.create_claim("pins", "me", {"generation": generation})
    again = made.another()
    assert [again.publish_shard(fresh=False) for _ in before] == ["published"] * 3
    assert {name: made.folder.shard_path(name).read_bytes() for name in before} == before
    pin.release()
