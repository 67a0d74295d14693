"""Keys and values of LMDB databases, and templates of keys."""

from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from gpupipe.formats import DamagedError, lmdb_keys
from gpupipe.formats.lmdb_keys import KeyTemplate
from helpers.lmdb_files import write_lmdb

DRAW = np.random.default_rng(0)
VALUES = {f"{'key' * (n % 100)}{n}": DRAW.bytes(int(DRAW.integers(0, 12_000))) for n in range(900)}
"""Keys and values of all sizes: in the tree's own pages, and in overflow pages of their own."""


def load_database(path: Path) -> np.ndarray[Any, Any]:
    return np.fromfile(path / "data.mdb", np.uint8)


def read(data: np.ndarray[Any, Any], database: str | None = None) -> list[tuple[bytes, bytes]]:
    values = lmdb_keys.iter_values(data, database)
    return [
        (v.key, data[v.offset : v.offset + v.length].tobytes()) for v in values if not v.is_database
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lmdb(tmp_path_factory.mktemp("lmdb") / "x", VALUES)


def test_all_that_the_library_reads_in_its_order(folder: Path) -> None:
    with lmdb.open(str(folder), readonly=True, lock=False) as env, env.begin() as transaction:
        assert env.stat()["depth"] > 2
        expected = list(transaction.cursor())
    assert read(load_database(folder)) == expected
    assert len(expected) == len(VALUES)


def test_what_was_deleted_and_replaced(folder: Path, tmp_path: Path) -> None:
    write_lmdb(tmp_path / "x", VALUES)
    with lmdb.open(str(tmp_path / "x"), map_size=1 << 26) as env:
        with env.begin(write=True) as transaction:
            for key in list(VALUES)[::2]:
                transaction.delete(key.encode())
        with env.begin(write=True) as transaction:
            transaction.put(b"new", b"n" * 9000)
            expected = list(transaction.cursor())
    assert read(load_database(tmp_path / "x")) == expected


def test_an_empty_database_and_a_named_one(tmp_path: Path) -> None:
    assert read(load_database(write_lmdb(tmp_path / "empty", {}))) == []
    named = load_database(write_lmdb(tmp_path / "named", {"a": b"1", "b": b"2" * 5000}, "images"))
    assert read(named) == []
    assert read(named, "images") == [(b"a", b"1"), (b"b", b"2" * 5000)]
    for missing in ("image", "a"):
        with pytest.raises(LookupError):
            read(named, missing)


def test_several_values_a_key_are_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26, max_dbs=1) as env:
        database = env.open_db(b"d", dupsort=True)
        with env.begin(write=True) as transaction:
            for value in (b"1", b"2"):
                transaction.put(b"a", value, db=database)
    with pytest.raises(ValueError, match="b'a' has several values"):
        read(load_database(tmp_path), "d")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes are no LMDB"),
        (b"x" * 9000, "9,000 bytes are no LMDB"),
    ],
    ids=["empty", "other"],
)
def test_what_is_no_lmdb(content: bytes, words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        read(np.frombuffer(content, np.uint8))


def test_a_file_that_is_cut_off_is_told(folder: Path) -> None:
    data = load_database(folder)
    for size in (100, 5000, 4096 * 20, len(data) // 2):
        with pytest.raises(DamagedError, match=r"cut off|no LMDB"):
            read(data[:size])


def test_any_change_of_the_tree_is_a_result_or_an_error(folder: Path) -> None:
    data = load_database(folder)
    refused = 0
    for _ in range(300):
        changed = data.copy()
        pages = DRAW.integers(0, len(data) // 4096, 40) * 4096
        changed[pages + DRAW.integers(0, 200, 40)] = DRAW.integers(0, 256, 40)
        try:
            for value in lmdb_keys.iter_values(changed):
                assert 0 <= value.offset <= value.offset + value.length <= len(data)
        except ValueError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("image-{id}", "image-007", {"id": "007"}),
        ("{class}/{name}.jpg", "cat/1.jpg", {"class": "cat", "name": "1"}),
        ("{class}/{name}.jpg", "cat/a/b.jpg", {"class": "cat", "name": "a/b"}),
        ("{a}.{b}", "x\n.y", {"a": "x\n", "b": "y"}),
        ("image-{id}", "image-", None),
        ("image-{id}", "an image-1", None),
        ("{name}.jpg", "1xjpg", None),
        ("fixed", "fixed", {}),
    ],
)
def test_what_placeholders_stand_for(text: str, key: str, values: dict[str, str] | None) -> None:
    template = KeyTemplate(text)
    assert template.match(key) == values
    if values is not None:
        assert template.fill(values) == key


@pytest.mark.parametrize("text", ["{", "a}", "{a}{a}", "{a b}", "{}"])
def test_what_is_no_template(text: str) -> None:
    with pytest.raises(ValueError, match="is no template"):
        KeyTemplate(text)


def test_whether_the_key_is_all_placeholder() -> None:
    assert KeyTemplate("{id}").is_part
    assert not KeyTemplate("{id}.jpg").is_part
    assert not KeyTemplate("{a}{b}").is_part
