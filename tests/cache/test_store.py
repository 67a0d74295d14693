"""Fetching from stores that fail: a real HTTP server that answers 500s, cuts bodies off, stalls and
changes ETags, and a real S3.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from gpupipe.cache.listing import (
    UNKNOWN,
    StoredFile,
    file_version,
    hash_file_version,
    hash_version,
)
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import (
    ChangedError,
    Store,
    StoreError,
    UnfetchableError,
)
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
    assert client.store.fetch(StoredFile(NAME)) == (blobs / NAME).read_bytes()
    assert len(client.pauses) == 4
    for pause, nominal in zip(client.pauses, (0.5, 1, 2, 4), strict=True):
        assert nominal / 2 <= pause <= nominal * 1.5


def test_errors_that_last_are_reported(web: tuple[str, Any]) -> None:
    url, faults = web
    faults.errors[NAME] = 100
    client = Web(url)
    with pytest.raises(UnfetchableError, match=r"500.*\(3 attempts\)"):
        client.store.fetch(StoredFile(NAME))
    assert len(client.pauses) == 2


def test_what_is_not_there_is_not_asked_for_again(web: tuple[str, Any]) -> None:
    client = Web(web[0])
    with pytest.raises(UnfetchableError, match=r"none.jpg"):
        client.store.fetch(StoredFile("none.jpg"))
    assert client.pauses == []


def test_a_body_that_is_cut_off_is_never_taken(web: tuple[str, Any], blobs: Path) -> None:
    url, faults = web
    faults.cuts[NAME] = 2
    client = Web(url)
    assert client.store.fetch(StoredFile(NAME)) == (blobs / NAME).read_bytes()
    assert len(client.pauses) == 2
    faults.cuts[NAME] = 3
    with pytest.raises(UnfetchableError, match=r"\(3 attempts\)"):
        client.store.fetch(StoredFile(NAME))


def test_a_stall_is_an_error(web: tuple[str, Any], blobs: Path) -> None:
    url, faults = web
    faults.stalls[NAME] = 1
    assert Web(url, timeout=0.3).store.fetch(StoredFile(NAME)) == (blobs / NAME).read_bytes()
    faults.stalls[NAME] = 1
    with pytest.raises(
        UnfetchableError,
        match=r"it was not whole after 0.3 s \(data.cache.timeout\) \(1 attempts\)",
    ):
        Web(url, retries=0, timeout=0.3).store.fetch(StoredFile(NAME))


def test_a_file_that_changes_while_it_is_fetched_is_not_taken(
    web: tuple[str, Any], blobs: Path
) -> None:
    url, faults = web
    faults.changes[NAME] = 1
    client = Web(url)
    assert client.store.fetch(StoredFile(NAME)) == (blobs / NAME).read_bytes()
    assert len(client.pauses) == 1
    faults.changes[NAME] = 100
    with pytest.raises(
        UnfetchableError, match=r"changed since it was listed \(ETag [0-9]+, now [0-9]+\)"
    ):
        client.store.fetch(StoredFile(NAME))


def test_a_size_that_is_not_the_listed_one_is_not_taken(blobs: Path) -> None:
    with pytest.raises(ChangedError, match=r"changed since it was listed \(ETag x, now mtime "):
        Web(f"file://{blobs}", retries=0).store.fetch(
            StoredFile(NAME, 19_015, hash_version("x"), "ETag x")
        )
    with pytest.raises(ChangedError, match=r"changed since it was listed \(5 bytes, now 19,015\)"):
        Web(f"file://{blobs}", retries=0).store.fetch(StoredFile(NAME, size=5))


def test_an_object_that_was_replaced_in_s3_is_not_taken(s3: dict[str, Any], bucket: str) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    files.pipe("blobs/other/x.jpg", b"a" * 100)
    store = Store(
        DataSet(url="s3://blobs/other", storage_options=s3), 1, 10.0, lambda seconds: None
    )
    info = store.list_files()["x.jpg"]
    assert store.fetch(StoredFile("x.jpg", info["size"], hash_file_version(info))) == b"a" * 100
    files.pipe("blobs/other/x.jpg", b"b" * 100)
    with pytest.raises(
        UnfetchableError,
        match=r"changed since it was listed \(ETag .{32}, now .{32}\).*\(2 attempts\)",
    ):
        store.fetch(StoredFile("x.jpg", info["size"], hash_file_version(info), file_version(info)))
    with pytest.raises(ChangedError, match=r"changed since it was listed \(40 bytes, now 100\)"):
        store.fetch(StoredFile("x.jpg", 40, 0))


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
    store.fetch(StoredFile(NAME, info["size"], hash_file_version(info)))
    assert asked == ["get_object"]


def test_tags() -> None:
    assert hash_version("") == 0
    assert hash_version('"abc"') == hash_version("abc") != hash_version("abd")
    assert file_version({"size": 3, "mtime": 0.5}) == "mtime 0.5"
    assert hash_file_version({"size": 3, "mtime": 0.5}) == hash_version("0.5")
    assert file_version({"ETag": 'W/"a"', "mtime": 0.5}) == "ETag a"
    assert file_version({"size": 3}) == ""
    assert file_version({"blob_id": "4f2a", "lfs": None}) == "blob 4f2a", "of Hugging Face's hub"
    assert UNKNOWN < 0


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    store = Store(DataSet(url=f"file://{tmp_path}/missing"), 0, 10.0)
    with pytest.raises(DataError, match="missing: no such folder: set data"):
        store.list_files()
    (tmp_path / "empty").mkdir()
    assert Store(DataSet(url=f"file://{tmp_path}/empty"), 0, 10.0).list_files() == {}


def test_wrong_content_of_the_right_length_is_refused_and_asked_for_again(
    web: tuple[str, Any], blobs: Path
) -> None:
    url, faults = web
    data = (blobs / NAME).read_bytes()
    faults.headers["Content-MD5"] = base64.b64encode(hashlib.md5(data).digest()).decode()
    faults.garbled[NAME] = 2
    client = Web(url)
    assert (
        client.store.fetch(StoredFile(NAME, len(data), hash_version("same"), "ETag same")) == data
    )
    assert len(client.pauses) == 2
    faults.garbled[NAME] = 100
    with pytest.raises(StoreError, match=r"other content came: its MD5 is .* in place of"):
        client.store.fetch(StoredFile(NAME, len(data), hash_version("same"), "ETag same"))


@pytest.mark.parametrize("encryption", [None, "AES256", "aws:kms"])
def test_an_etag_of_s3_is_the_md5_unless_the_object_is_encrypted(
    s3: dict[str, Any], bucket: str, encryption: str | None
) -> None:
    import s3fs
    from moto.s3.models import s3_backends

    files = s3fs.S3FileSystem(**s3)
    files.pipe("blobs/md5/x.jpg", b"a" * 100)
    (backend,) = (b for regions in s3_backends.values() for b in regions.values() if b.buckets)
    backend.buckets["blobs"].keys["md5/x.jpg"].encryption = encryption
    backend.buckets["blobs"].keys["md5/x.jpg"]._etag = "0" * 32
    store = Store(DataSet(url="s3://blobs/md5", storage_options=s3), 1, 10.0, lambda seconds: None)
    info = store.list_files()["x.jpg"]
    listed = info["size"], hash_file_version(info), file_version(info)
    assert listed[2] == "ETag " + "0" * 32
    if encryption == "aws:kms":
        assert store.fetch(StoredFile("x.jpg", *listed)) == b"a" * 100
        return
    with pytest.raises(StoreError, match=r"other content came: its MD5 is .* in place of 0{32}"):
        store.fetch(StoredFile("x.jpg", *listed))


def test_an_encrypted_object_of_s3_is_compared_with_its_crc32c(
    s3: dict[str, Any], bucket: str
) -> None:
    pytest.importorskip("crc32c")
    import s3fs
    from moto.s3.models import s3_backends

    s3fs.S3FileSystem(**s3).pipe("blobs/crc/x.jpg", b"123456789")
    (backend,) = (b for regions in s3_backends.values() for b in regions.values() if b.buckets)
    key = backend.buckets["blobs"].keys["crc/x.jpg"]
    key.encryption, key.checksum_algorithm, key._etag = "aws:kms", "CRC32C", "0" * 32
    store = Store(DataSet(url="s3://blobs/crc", storage_options=s3), 1, 10.0, lambda seconds: None)
    info = store.list_files()["x.jpg"]
    listed = StoredFile("x.jpg", info["size"], hash_file_version(info), file_version(info))
    key.checksum_value = base64.b64encode(bytes.fromhex("e3069283")).decode()
    assert store.fetch(listed) == b"123456789"
    key.checksum_value = base64.b64encode(bytes(4)).decode()
    with pytest.raises(StoreError, match=r"its CRC32C is e3069283 in place of 00000000"):
        store.fetch(listed)


def test_an_object_of_several_parts_is_compared_by_its_etag_as_text(
    s3: dict[str, Any], bucket: str
) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    for content in (b"a", b"b"):
        with files.open("blobs/parts/x.jpg", "wb", block_size=5 << 20) as f:
            f.write(content * (5 << 20))
        store = Store(
            DataSet(url="s3://blobs/parts", storage_options=s3), 0, 10.0, lambda seconds: None
        )
        info = store.list_files()["x.jpg"]
        assert "-" in info["ETag"]
        listed = info["size"], hash_file_version(info), file_version(info)
        assert store.fetch(StoredFile("x.jpg", *listed))[:1] == content
        if content == b"a":
            before = listed
    with pytest.raises(ChangedError, match=r"\(ETag .{32}-1, now .{32}-1\)"):
        store.fetch(StoredFile("x.jpg", *before))


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, r"ETag same, now other"),
        ({"ETag": ""}, r"Last-Modified .* 20[0-9]{2} .*, now .* 1970 "),
        ({"ETag": "", "Last-Modified": ""}, r"[0-9,]+ bytes, now 19,015"),
    ],
)
def test_a_file_of_a_web_server_that_changed_after_the_listing_is_named(
    web: tuple[str, Any], blobs: Path, headers: dict[str, str], said: str
) -> None:
    url, faults = web
    faults.headers |= headers
    client = Web(url, retries=0)
    (info,) = client.store.describe_files([NAME], 4)
    size = info["size"] - (1 if "Last-Modified" in headers else 0)
    listed = size, hash_file_version(info), file_version(info)
    changed = {"ETag": '"other"', "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
    faults.headers = {name: headers.get(name, value) for name, value in changed.items()}
    with pytest.raises(ChangedError, match=rf"changed since it was listed \({said}"):
        client.store.fetch(StoredFile(NAME, *listed))


def test_a_server_that_fails_is_no_missing_file(web: tuple[str, Any], blobs: Path) -> None:
    url, faults = web
    faults.heads[NAME] = 3
    client = Web(url, retries=3)
    assert client.store.describe_files([NAME, "none.jpg"], 4)[1] == {}
    assert len(client.pauses) == 1, "the first answer to HEAD and GET was 500"
    faults.heads[NAME] = 100
    with pytest.raises(DataError, match=r"the versions of its files cannot be read: .*500"):
        client.store.describe_files([NAME], 4)
