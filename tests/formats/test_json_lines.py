"""Lists of samples in .jsonl: a JSON object a line, and what is wrong is named with its line."""

import io
from typing import Any

import pytest

from gpupipe.errors import DataError
from gpupipe.formats import manifest
from gpupipe.formats.manifest_rows import ManifestColumns, ManifestRows

LINES = [
    '{"path": "a.jpg", "label": "dog", "size": 3, "boxes": [[1, 2, 3, 4]]}',
    "",
    '{"path": "b.jpg", "label": 7, "size": 2.5, "boxes": []}',
]


def read(lines: list[str], **wanted: Any) -> ManifestRows:
    columns = ManifestColumns({"image": "path"}, "label", **wanted)
    text = "\n".join(lines).encode()
    return manifest.read_stream("list.jsonl", io.BytesIO(text), columns, lambda _: None)


def test_rows_and_their_lines() -> None:
    wanted = {"values": {"size": "size"}, "lists": {"boxes": ("boxes", 4)}, "weight": "size"}
    rows = read(["\ufeff" + LINES[0], *LINES[1:]], **wanted)
    assert rows.paths == {"image": ["a.jpg", "b.jpg"]}
    assert rows.labels == ["dog", "7"]
    assert rows.values["size"].tolist() == [3, 2.5]
    assert rows.weights is not None
    assert rows.weights.tolist() == [3, 2.5]
    assert rows.lists["boxes"].counts.tolist() == [1, 0]
    assert rows.where(1) == "list.jsonl:3"
    assert read(LINES, keeps_rest=True).rest[1] == {"size": 2.5, "boxes": []}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"path": "c.jpg"', "no JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "too many brackets"),
        ('{"label": 1, "size": 1}', "no 'path'"),
        ('{"path": 5, "label": 1, "size": 1}', "5 in 'path' is no path"),
        ('{"path": "c", "label": 1.5, "size": 1}', "the label 1.5"),
        ('{"path": "c", "label": 1, "size": "x"}', "'x' in the column 'size'"),
        ('{"path": "c", "label": 1, "size": NaN}', "nan in the column 'size'"),
        ('{"path": "c", "label": 1}', "no 'size'"),
        ("\udcff", "no JSON"),
    ],
)
def test_a_wrong_line_is_named(line: str, reason: str) -> None:
    columns = ManifestColumns({"image": "path"}, "label", values={"size": "size"})
    text = "\n".join([*LINES, line]).encode(errors="surrogateescape")
    with pytest.raises(DataError, match=rf"^list\.jsonl:4: .*{reason}"):
        manifest.read_stream("list.jsonl", io.BytesIO(text), columns, lambda _: None)
