"""Any content of a manifest is an index or a complaint."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpupipe.errors import DataError
from helpers.manifests import listed, save_parquet

FREELY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)


PIECES = st.sampled_from(
    [
        "path",
        "label",
        ",",
        "\t",
        " ",
        "\n",
        "\r\n",
        "\r",
        '"',
        "#",
        "a.jpg",
        "/",
        "..",
        "./",
        "\0",
        "0",
        "7",
        "-1",
        "1.5",
        "cat",
        "\ufeff",
        "é",
        "99999999",
    ]
)


TEXTS = st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode())


TABLES = st.lists(st.lists(PIECES, max_size=4).map(",".join), max_size=8).map(
    lambda lines: "\n".join(["path,label", *lines]).encode()
)


def index_or_complaint(suffix: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            index = listed(Path(folder) / f"l{suffix}", content)
        except DataError as e:
            assert str(e).startswith(folder)
            return
        assert 0 < len(index) == len(index.names)
        if index.has_labels:
            assert 0 <= index.labels.min() <= index.labels.max() < len(index.classes)
        for i in range(len(index)):
            assert os.path.normpath(index.location(i)) == index.location(i), (
                "nothing leaves the root"
            )
            assert index.location(i).startswith(f"{folder}/")
            assert b"\0" not in os.fsencode(index.location(i))


@FREELY
@given(st.sampled_from([".txt", ".csv", ".tsv"]), st.binary(max_size=200) | TEXTS | TABLES)
@example(".csv", b"path\r\na\rb")
@example(".txt", b"\xef\xbb\xbf\xef\xbb\xbfa")
def test_any_content_is_an_index_or_a_complaint(suffix: str, content: bytes) -> None:
    index_or_complaint(suffix, content)


@pytest.fixture(scope="module")
def good_parquet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save_parquet(
        tmp_path_factory.mktemp("parquet") / "l.parquet", path=["a.jpg", "b.jpg"], label=["x", "y"]
    ).read_bytes()


@FREELY
@given(st.data())
def test_a_damaged_parquet_is_an_index_or_a_complaint(
    good_parquet: bytes, data: st.DataObject
) -> None:
    content = bytearray(good_parquet)
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=3)
    ):
        content[place] = byte
    index_or_complaint(
        ".parquet",
        bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]),
    )
