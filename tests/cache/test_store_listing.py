"""Listings and manifests of remote data sets, and what they must not hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpupipe.cache import listing, store_listing
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store import Store
from gpupipe.errors import DataError


def listed(url: str, **options: Any) -> listing.Listing:
    data = DataSet(url=url, **options)
    return store_listing.list_samples(data, Store(data, 0, 10.0))


def manifest(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_files_are_sorted_and_folders_are_classes(blobs: Path) -> None:
    found = listed(f"file://{blobs}")
    names = [found.names[i] for i in range(len(found))]
    assert names == sorted(str(p.relative_to(blobs)) for p in blobs.glob("*/*.jpg"))
    assert found.classes == ["class0", "class1", "class2", "class3"]
    assert [found.classes[n] for n in found.labels] == [name.partition("/")[0] for name in names]
    assert found.sizes.tolist() == [(blobs / name).stat().st_size for name in names]
    assert (found.tags != 0).all()


def test_s3_says_sizes_and_versions_and_http_is_asked_for_them(
    bucket: str, s3: dict[str, Any], blobs: Path, web: tuple[str, Any]
) -> None:
    local, remote = listed(f"file://{blobs}"), listed(bucket, storage_options=s3)
    assert remote.sizes.tolist() == local.sizes.tolist()
    assert len(set(remote.tags.tolist())) == 40
    assert remote.fingerprint == local.fingerprint
    over_http = listed(web[0])
    assert over_http.fingerprint == local.fingerprint
    assert over_http.sizes.tolist() == local.sizes.tolist()
    assert {over_http.versions[n] for n in range(40)} == {"ETag same"}


def test_the_files_of_a_manifest_have_sizes_and_versions(
    bucket: str, s3: dict[str, Any], blobs: Path, tmp_path: Path
) -> None:
    text = "path\nclass0/000.jpg\nclass1/001.jpg\nclass0/000.jpg\nclass0/missing.jpg\n"
    options = {"manifest": manifest(tmp_path / "m.csv", text), "label": None}
    for found in (
        listed(f"file://{blobs}", **options),
        listed(bucket, storage_options=s3, **options),
    ):
        assert found.sizes.tolist() == [19_015, 19_068, 19_015, listing.UNKNOWN]
        assert (found.tags != 0).tolist() == [True, True, True, False]
        assert found.versions[0] == found.versions[2] != found.versions[3] == ""


def test_a_store_that_fails_is_not_taken_for_a_missing_folder(web: tuple[str, Any]) -> None:
    web[1].forbidden["/denied"] = 10
    with pytest.raises(DataError, match=r"cannot be listed: .*: see data\.url"):
        listed("http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(DataError, match="cannot be listed: ClientResponseError: 403"):
        listed(f"{web[0]}/denied")
    with pytest.raises(DataError, match=r"/nowhere: no such folder: set data\.url"):
        listed(f"{web[0]}/nowhere")


def test_too_many_files_are_not_asked_for(
    web: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_listing, "_MAX_ASKED_FILES", 39)
    found = listed(web[0])
    assert not found.tags.any()
    assert found.versions[0] == ""


def test_a_csv_with_labels_weights_values_and_further_columns(blobs: Path, tmp_path: Path) -> None:
    first = "file,who,w,age,note\nclass0/000.jpg,eve,1,33,a\n"
    text = first + f'file://{blobs}/class1/001.jpg,adam,0.5,-4,"b,c"\n\n'
    options: dict[str, Any] = {"path": "file", "label": "who", "weight": "w", "values": ["age"]}
    found = listed(f"file://{blobs}", manifest=manifest(tmp_path / "m.csv", text), **options)
    assert [found.names[0], found.names[1]] == ["class0/000.jpg", "class1/001.jpg"]
    assert (found.labels.tolist(), found.classes) == ([1, 0], ["adam", "eve"])
    assert found.weights.tolist() == [1.0, 0.5]
    assert found.values["age"].tolist() == [33, -4]
    assert found.values["age"].dtype == np.int64
    assert found.get_sample(1).metadata == {"class": "adam", "age": "-4", "note": "b,c"}


def test_a_parquet_with_whole_numbers_as_labels(blobs: Path, tmp_path: Path) -> None:
    table = pyarrow.table(
        {"path": ["class0/000.jpg", "class1/001.jpg"], "label": [5, 0], "x": [0.5, 2.0]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    found = listed(f"file://{blobs}", manifest=str(tmp_path / "m.parquet"), values=["x"])
    assert found.labels.tolist() == [5, 0]
    assert len(found.classes) == 6
    assert (found.values["x"].dtype, found.values["x"].tolist()) == (np.float64, [0.5, 2.0])


def test_a_manifest_may_lie_in_the_store(s3: dict[str, Any], bucket: str) -> None:
    import s3fs

    s3fs.S3FileSystem(**s3).pipe("blobs/list.csv", b"path\nclass0/000.jpg\n")
    found = listed(bucket, storage_options=s3, manifest="s3://blobs/list.csv", label=None)
    assert (found.labels.tolist(), found.classes) == ([-1], [])


ODD = [
    "../x.jpg",
    "a/../../x.jpg",
    "/etc/passwd",
    "a//b.jpg",
    "",
    ".",
    "a/./b",
    "a\0b",
    "file:///etc/passwd",
    "s3://other/x",
    "a\\..\\b",
    "c:/x",
    "x" * 5000,
    "a/..",
]


@pytest.mark.parametrize("name", ODD, ids=lambda n: n[:20].encode("unicode_escape").decode())
def test_names_that_lead_elsewhere_are_refused(blobs: Path, tmp_path: Path, name: str) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"path": ["class0/000.jpg", name]}), tmp_path / "m.parquet"
    )
    with pytest.raises(
        DataError, match=r"m.parquet: row 2: .* is no name of a file below data.url"
    ):
        listed(f"file://{blobs}", manifest=str(tmp_path / "m.parquet"), label=None)


@given(st.text())
@example("..")
@example("a/..")
def test_a_name_that_is_accepted_stays_below_the_url(name: str) -> None:
    try:
        store_listing.check_name(name, "here")
    except DataError:
        return
    assert not Path(name).is_absolute()
    assert ".." not in name.split("/")
    assert name.strip("/") == name != ""


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("path,label\n", {}, "m.csv: no rows"),
        ("", {}, "m.csv: no rows"),
        ("pth,label\na,b\n", {}, r"no column 'path'; did you mean 'pth'\?"),
        ("path,path,label\na,b,c\n", {}, "2 columns are called 'path'"),
        ("path,label\na/b,\n", {}, r"m.csv:2: '' is no label"),
        ("path,label\na/b,c,d\n", {}, r"m.csv:2: 3 values, but the header names 2 columns"),
        ("path,label,w\na/b,c,-1\n", {"weight": "w"}, "m.csv:2: -1 is no weight"),
        ("path,label,w\na/b,c,nan\n", {"weight": "w"}, "nan is no weight"),
        ("path,label,w\na/b,c,0\n", {"weight": "w"}, "every weight is 0"),
        (
            "path,label,w\na/b,c,x\n",
            {"values": ["w"]},
            r"m.csv:2: 'x' in the column 'w' is no number",
        ),
        ("path,label\na/b,99999999\n", {}, "m.csv: a/b: the label .99999999. is too large"),
        ('path,label\n"a', {}, "cannot be read as .csv"),
    ],
)
def test_mistakes_in_a_manifest_are_named(
    blobs: Path, tmp_path: Path, text: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        listed(f"file://{blobs}", manifest=manifest(tmp_path / "m.csv", text), **options)


@pytest.mark.parametrize(
    ("content", "ending", "said"),
    [
        (b"\xff\xfe", "csv", "cannot be read as .csv in UTF-8"),
        (b"no", "parquet", "cannot be read as .parquet"),
    ],
)
def test_files_that_are_no_manifest(
    blobs: Path, tmp_path: Path, content: bytes, ending: str, said: str
) -> None:
    (tmp_path / f"m.{ending}").write_bytes(content)
    with pytest.raises(DataError, match=said):
        listed(f"file://{blobs}", manifest=str(tmp_path / f"m.{ending}"))
    with pytest.raises(
        DataError, match=r"none.csv: cannot be read: .*No such file.*set data.manifest"
    ):
        listed(f"file://{blobs}", manifest=str(tmp_path / "none.csv"))


def test_a_weight_of_a_parquet_that_is_no_number_is_named(blobs: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"path": ["a"], "w": ["x"]}), file)
    with pytest.raises(DataError, match=r"column 'w' holds string, but should hold numbers$"):
        listed(f"file://{blobs}", manifest=str(file), label=None, weight="w")


def test_nothing_to_list_is_named(blobs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no files that end in png: set data.url, or data.extensions"
    ):
        listed(f"file://{blobs}", extensions=["png"])
    (tmp_path / "1.jpg").touch()
    with pytest.raises(DataError, match=r"'1.jpg' lies in no folder that names its class"):
        listed(f"file://{tmp_path}")
    assert listed(f"file://{tmp_path}", label=None).classes == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "bucket/x"}, "a URL such as s3"),
        ({"url": "memory://x"}, "is seen by one process alone"),
        ({"url": "s3://b", "path": "p"}, "path: of a manifest, and none is given"),
        ({"url": "s3://b", "manifest": "x.txt"}, "should end in .csv or .parquet"),
        ({"url": "s3://b", "manifest": "x.csv", "values": ["label"]}, "what a batch has anyway"),
    ],
)
def test_settings_of_the_data_set_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        DataSet(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_bytes": "a lot"}, "bytes: a number, or one such as 64MB"),
        ({"max_bytes": True}, "bytes: a number"),
        ({"max_bytes": "1TB", "workers": -1}, "greater than or equal to 0"),
        ({"max_bytes": "1TB", "low_water": 1.5}, "less than or equal to 1"),
        ({"max_bytes": "1TB", "epoch": "some"}, "'grow', 'new' or 'full'"),
    ],
)
def test_settings_of_the_cache_that_cannot_be(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        CacheOptions(dir=tmp_path, **options)


@pytest.mark.parametrize("content", [b"x", b"[]", b"{}", b""])
def test_a_kept_listing_that_is_damaged_is_named(make: Any, content: bytes) -> None:
    made = make()
    made.folder.listing_path.write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"listing.idx: the list of the samples is damaged .*delete the cache's folder",
    ):
        listing.load(made.folder)


def test_a_turned_bit_in_a_kept_listing_is_named(make: Any) -> None:
    """In the header, where a class has another name or the fingerprint is another, or behind it."""
    made = make()
    file = made.folder.listing_path
    whole = file.read_bytes()
    texts = (made.listing.classes[0], made.listing.fingerprint)
    for place in (*(whole.index(text.encode()) for text in texts), len(whole) // 2, -1):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DataError, match="the list of the samples is damaged"):
            listing.load(made.folder)
    file.write_bytes(whole)
    listing.load(made.folder)


def test_a_missing_client_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"abfs://c/x: cannot be opened: .*(adlfs|[Ii]nstall)"):
        Store(DataSet(url="abfs://c/x"), 0, 1.0)
    with pytest.raises(DataError, match="nonsense://x: cannot be opened"):
        Store(DataSet(url="nonsense://x"), 0, 1.0)
