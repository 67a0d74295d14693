"""Fetching from stores that fail: a real HTTP server that answers 500s, cuts bodies off, stalls and
changes ETags, and a real S3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache.listing import UNKNOWN, hash_version
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import Store, Unfetchable, file_version
from gpupipe.errors import DataError

NAME = "class0/000.jpg"


class Web:
    def __init__(self, url: str, retries: int = 2, timeout: float = 5.0) -> None:
        self.pauses: list[float] = []
        self.store = Store(DataSet(url=url), retries, timeout, self.pauses.append)


def test_errors_are_retried_with_growing_pauses(web: tuple[str, Any], blobs: Path) -> None:
    url, faults = web
    faults.errors[NAME] = 4
    client = Web(url, retries=5)
    assert client.store.fetch(NAME) == (blobs / NAME).read_bytes()
    assert len(client.pauses) == 4
    for pause, nominal in zip(client.pauses, (0.5, 1, 2, 4), strict=True):
        assert nominal / 2 <= pause <= nominal * 1.5


def test_errors_that_last_are_reported(web: tuple[str, Any]) -> None:
    url, faults = web
    faults.errors[NAME] = 100
    client = Web(url)
    with pytest.raises(Unfetchable, match=r"500.*\(3 attempts\)"):
        client.store.fetch(NAME)
    assert len(client.pauses) == 2


def test_what_is_not_there_is_not_asked_for_again(web: tuple[str, Any]) -> None:
    client = Web(web[0])
    with pytest.raises(Unfetchable, match=r"none.jpg"):
        client.store.fetch("none.jpg")
    assert client.pauses == []


def test_a_body_that_is_cut_off_is_never_taken(web: tuple[str, Any], blobs: Path) -> None:
    url, faults = web
    faults.cuts[NAME] = 2
    client = Web(url)
    assert client.store.fetch(NAME) == (blobs / NAME).read_bytes()
    assert len(client.pauses) == 2
    faults.cuts[NAME] = 3
    with pytest.raises(Unfetchable, match=r"\(3 attempts\)"):
        client.store.fetch(NAME)


def test_a_stall_is_an_error(web: tuple[str, Any], blobs: Path) -> None:
    url, faults = web
    faults.stalls[NAME] = 1
    assert Web(url, timeout=0.3).store.fetch(NAME) == (blobs / NAME).read_bytes()
    faults.stalls[NAME] = 1
    with pytest.raises(
        Unfetchable, match=r"it was not whole after 0.3 s \(data.cache.timeout\) \(1 attempts\)"
    ):
        Web(url, retries=0, timeout=0.3).store.fetch(NAME)


def test_a_file_that_changes_while_it_is_fetched_is_not_taken(
    web: tuple[str, Any], blobs: Path
) -> None:
    url, faults = web
    faults.changes[NAME] = 1
    client = Web(url)
    assert client.store.fetch(NAME) == (blobs / NAME).read_bytes()
    assert len(client.pauses) == 1
    faults.changes[NAME] = 100
    with pytest.raises(Unfetchable, match=r"it was changed since it was listed"):
        client.store.fetch(NAME)


def test_a_size_that_is_not_the_listed_one_is_not_taken(blobs: Path) -> None:
    with pytest.raises(Unfetchable, match=r"19,015 bytes came in place of 5"):
        Web(f"file://{blobs}", retries=0).store.fetch(NAME, size=5)


def test_an_object_that_was_replaced_in_s3_is_not_taken(s3: dict[str, Any], bucket: str) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    files.pipe("blobs/other/x.jpg", b"a" * 100)
    store = Store(
        DataSet(url="s3://blobs/other", storage_options=s3), 1, 10.0, lambda seconds: None
    )
    info = store.list_files()["x.jpg"]
    assert store.fetch("x.jpg", info["size"], hash_version(file_version(info))) == b"a" * 100
    files.pipe("blobs/other/x.jpg", b"b" * 100)
    with pytest.raises(Unfetchable, match=r"it was changed since it was listed .*\(2 attempts\)"):
        store.fetch("x.jpg", info["size"], hash_version(file_version(info)))
    with pytest.raises(Unfetchable, match=r"40 bytes|100 bytes came in place of 40"):
        store.fetch("x.jpg", 40, 0)


def test_a_plain_md5_etag_needs_no_second_question(
    s3: dict[str, Any], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(DataSet(url=bucket, storage_options=s3), 0, 10.0)
    info = store.list_files()[NAME]
    asked: list[str] = []
    call = store._files._call_s3

    async def counted(method: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(method)
        return await call(method, *args, **kwargs)

    monkeypatch.setattr(store._files, "_call_s3", counted)
    store.fetch(NAME, info["size"], hash_version(file_version(info)))
    assert asked == ["get_object"]


def test_tags() -> None:
    assert hash_version("") == 0
    assert hash_version('"abc"') == hash_version("abc") != hash_version("abd")
    assert file_version({"size": 3, "mtime": 0.5}) == "0.5"
    assert file_version({"size": 3}) == ""
    assert UNKNOWN < 0


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    store = Store(DataSet(url=f"file://{tmp_path}/missing"), 0, 10.0)
    with pytest.raises(DataError, match="missing: no such folder: set data"):
        store.list_files()
    (tmp_path / "empty").mkdir()
    assert Store(DataSet(url=f"file://{tmp_path}/empty"), 0, 10.0).list_files() == {}
