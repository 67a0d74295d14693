"""Filling a cache with the shards of a store: what is fetched, checked, refused and made again."""

import hashlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache import evict, stored_table
from gpupipe.cache.maintenance import fetch_missing_shards, remove_damaged_shards
from gpupipe.cache.stored_fill import name_of, row_of
from gpupipe.errors import DataError
from gpupipe.sources.parquet import Parquet
from gpupipe.sources.webdataset import Webdataset
from helpers.cache_contents import began, disk_size
from helpers.stored_shards import NAMES, PATTERN, cached, write_tar


def rows_of(made: Any) -> list[int]:
    return [row_of(name) for name in cached(made.folder)]


def test_every_shard_is_fetched_once_and_is_what_the_store_has(make: Any, tars: Path) -> None:
    made = make({"url": f"file://{tars}", "shards": PATTERN})
    assert [made.listing.names[n] for n in range(6)] == sorted(NAMES)
    assert made.fill() == "complete"
    files = cached(made.folder)
    assert sorted(map(row_of, files)) == list(range(6))
    for name, file in files.items():
        content = file.read_bytes()
        assert content == (tars / made.listing.names[row_of(name)]).read_bytes()
        table = stored_table.load_table(made.folder.table_path(name))
        assert table.labels.tolist() == [
            int(text[-6:]) for text in map(table.names.__getitem__, range(len(table)))
        ]
        field = table.fields["image"]
        for offset, length in zip(field.offset, field.length, strict=True):
            assert content[offset : offset + 2] == b"\xff\xd8"
            assert content[offset + length - 2 : offset + length] == b"\xff\xd9"
    assert made.another().publish_shard() == "complete"
    for kind in ("tmp", "claims"):
        assert not list((made.folder.dir / kind).iterdir())
    assert made.filler.statistics.samples == 60
    assert made.filler.statistics.bytes == sum(f.stat().st_size for f in tars.rglob("*.tar"))


def test_the_order_follows_from_the_seed(make: Any, tars: Path, tmp_path: Path) -> None:
    orders = []
    for n, seed in enumerate((1, 1, 2)):
        data = {"url": f"file://{tars}", "shards": PATTERN, "seed": seed}
        made = make(data, dir=tmp_path / str(n))
        made.fill()
        orders.append(rows_of(made))
    assert orders[0] == orders[1] != orders[2]


def test_a_manifest_says_which_shards_and_which_first(
    make: Any, tars: Path, tmp_path: Path
) -> None:
    lines = [f"{name},{weight}" for name, weight in zip(NAMES, (0, 1, 1, 1000, 1, 0), strict=True)]
    (tmp_path / "m.csv").write_text("\n".join(["path,w", *lines]))
    data = {"url": f"file://{tars}", "shards": PATTERN, "manifest": str(tmp_path / "m.csv")}
    first = set()
    for seed in range(3):
        made = make(data | {"weight": "w", "seed": seed}, dir=tmp_path / str(seed))
        assert made.filler.publish_shard() == "published"
        first.update(made.listing.names[row] for row in rows_of(made))
    assert first == {NAMES[3]}
    assert made.fill() == "complete"
    assert len(rows_of(made)) == 4


def test_several_fillers_never_fetch_the_same(make: Any, tars: Path) -> None:
    made = make({"url": f"file://{tars}", "shards": PATTERN})
    others = [made.another() for _ in range(3)]

    def fill(filler: Any) -> None:
        while filler.publish_shard() == "published":
            pass

    threads = [threading.Thread(target=fill, args=[filler]) for filler in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rows_of(made)) == list(range(6))
    assert sum(filler.statistics.samples for filler in others) == 60


def test_the_disk_never_takes_more_than_it_may_while_shards_come_and_go(
    make: Any, tars: Path
) -> None:
    size = 650_000
    made = make({"url": f"file://{tars}", "shards": PATTERN}, max_bytes=size, low_water=0.6)
    seen: set[int] = set()
    for _ in range(30):
        while made.filler.publish_shard() == "published":
            assert disk_size(made.folder.dir) <= size
        seen.update(rows_of(made))
        began(made.folder)
    assert seen == set(range(6))
    with made.folder.lock():
        assert disk_size(made.folder.dir) <= made.folder.count_bytes() <= size
    assert len(made.folder.commit_log.publication_generations()) == 6
    assert made.filler.statistics.samples > 60


@pytest.fixture
def copy(tars: Path, tmp_path: Path) -> Path:
    """The shards in a folder of its own."""
    return Path(shutil.copytree(tars, tmp_path / "copy"))


def test_a_shard_that_came_damaged_is_broken_until_it_comes_whole(
    make: Any, web_tars: tuple[str, Any]
) -> None:
    url, faults = web_tars
    made = make({"url": url, "shards": NAMES})
    faults.wrong[NAMES[2]] = 1
    assert made.fill() == "failed"
    (row,) = made.folder.commit_log.broken_rows()
    assert list(made.filler.statistics.failed.reasons) == [row]
    assert made.filler.statistics.exhausted == made.folder.commit_log.generation
    mending = made.another()
    assert mending.publish_shard() == "published"
    assert mending.statistics.changed == {}
    assert made.fill() == "complete"
    assert made.folder.commit_log.broken_rows() == {}
    assert not made.filler.statistics.failed.reasons


def test_a_shard_that_is_damaged_in_the_store_is_named(make: Any, copy: Path) -> None:
    whole = (copy / NAMES[2]).read_bytes()
    (copy / NAMES[2]).write_bytes(whole[: len(whole) // 2])
    made = make({"url": f"file://{copy}", "shards": PATTERN})
    assert made.fill() == "failed"
    ((row, why),) = made.folder.commit_log.broken_rows().items()
    assert made.listing.names[row] == NAMES[2]
    assert why.startswith("cut off"), why
    assert "tmp" not in why
    (reason,) = made.filler.statistics.failed.reasons.values()
    assert reason.startswith(f"file://{copy}/{NAMES[2]}: cut off")
    assert sorted(rows_of(made)) == sorted(set(range(6)) - {row})


def test_an_index_beside_a_shard_is_not_fetched(make: Any, copy: Path) -> None:
    alone = make({"url": f"file://{copy}", "shards": PATTERN}).listing
    for n, path in enumerate(copy.rglob("*.tar")):
        index = path.with_suffix(".idx") if n % 2 else path.with_name(f"{path.name}.idx")
        index.write_text("v1.2 1\njpg 512 1 a.jpg\n")
    data = {"url": f"file://{copy}", "shards": "**/*", "shard_format": "webdataset"}
    made = make(data, dir=copy.parent / "another")
    assert made.listing.fingerprint == alone.fingerprint
    assert made.fill() == "complete"
    assert sorted(rows_of(made)) == list(range(6))
    assert made.filler.statistics.bytes == sum(f.stat().st_size for f in copy.rglob("*.tar"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"classes": ["cat", "dog"]}, ""),
        ({"label": None}, ""),
        ({"label": "txt"}, "s/000000: no member s/000000.txt"),
    ],
)
def test_labels_that_are_names_have_the_numbers_of_classes(
    make: Any, tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    samples = [{"jpg": b"\xff\xd8\xff", "cls": name} for name in (b"dog", b"cat", b"dog")]
    write_tar(tmp_path / "named" / "x.tar", samples)
    made = make({"url": f"file://{tmp_path}/named", "shards": "*.tar"} | data)
    assert made.fill() == ("failed" if said else "complete")
    if said:
        assert said in next(iter(made.folder.commit_log.broken_rows().values()))
    else:
        table = stored_table.load_table(made.folder.table_path(name_of(0)))
        assert table.labels.tolist() == ([1, 0, 1] if "classes" in data else [-1, -1, -1])


@pytest.mark.parametrize(
    ("ending", "labels", "classes", "said"),
    [
        ("tar", ["cat", "dog"], ["cat", "dgo"], "s/000001: the label 'dog' is none of .*'dgo'?"),
        ("tar", ["0", "2"], ["cat", "dog"], "s/000001: the label 2 is none of the 2 classes of "),
        ("parquet", ["cat", "dog"], ["cat", "dgo"], "row 1: the label 'dog' is none .*'dgo'?"),
        ("parquet", [0, 2], ["cat", "dog"], "row 1: the label 2 is none of the 2 classes of da"),
    ],
)
def test_a_label_that_is_no_class_is_an_error_as_with_local_shards(
    make: Any, tmp_path: Path, ending: str, labels: list[Any], classes: list[str], said: str
) -> None:
    store, jpeg = tmp_path / "store", b"\xff\xd8\xff"
    if ending == "tar":
        write_tar(store / "x.tar", [{"jpg": jpeg, "cls": name.encode()} for name in labels])
    else:
        pa = pytest.importorskip("pyarrow")
        store.mkdir()
        table = pa.table({"image": [jpeg] * 2, "label": labels})
        pytest.importorskip("pyarrow.parquet").write_table(table, store / "x.parquet")
    made = make({"url": f"file://{store}", "shards": f"*.{ending}", "classes": classes})
    with pytest.raises(DataError, match=rf"^file://{store}/x.{ending}:{said}"):
        made.fill()
    assert not made.folder.commit_log.broken_rows()
    local = {"tar": Webdataset, "parquet": Parquet}[ending](
        shards=f"{store}/x.{ending}", classes=classes
    )
    with pytest.raises(DataError, match=rf"{store}/x.{ending}:{said}"):
        local.index()


def test_a_shard_that_was_evicted_comes_again_as_it_was_or_not_at_all(
    make: Any, copy: Path
) -> None:
    made = make({"url": f"file://{copy}", "shards": PATTERN})
    made.fill()
    contents = {name: file.read_bytes() for name, file in cached(made.folder).items()}
    with made.folder.lock():
        generation = made.folder.commit_log.generation
        evict.evict_down_to(made.folder, 0)
        pin = made.folder.create_claim("pins", "me", {"generation": generation})
    assert not made.folder.list_present_shards()
    changed = copy / made.listing.names[0]
    changed.write_bytes(changed.read_bytes() + bytes(512))
    filler = made.another()
    outcomes = [filler.publish_shard(fresh=False) for _ in range(6)]
    assert sorted(outcomes) == ["failed", *["published"] * 5]
    assert filler.statistics.lost[name_of(0)].split(" (")[0].endswith("changed since it was listed")
    for name in made.folder.list_present_shards():
        assert made.folder.shard_path(name).read_bytes() == contents[name]
    pin.release()


def test_verify_finds_damage_and_fetches_the_shard_again(make: Any, tars: Path) -> None:
    made = make({"url": f"file://{tars}", "shards": PATTERN})
    made.fill()
    made.folder.commit_log.refresh()
    before = {name: hashlib.md5(f.read_bytes()).digest() for name, f in cached(made.folder).items()}
    path = made.folder.shard_path(name_of(1))
    content = bytearray(path.read_bytes())
    content[30_000] ^= 1
    path.write_bytes(content)
    made.folder.table_path(name_of(4)).write_bytes(b"damage")
    found = remove_damaged_shards(made.folder, 6, lambda done, total: None)
    assert found == {
        name_of(1): "its checksum is another than when it was published",
        name_of(4): "its table is damaged",
    }
    assert fetch_missing_shards(made.folder, made.another()) == {}
    after = {name: hashlib.md5(f.read_bytes()).digest() for name, f in cached(made.folder).items()}
    assert after == before
