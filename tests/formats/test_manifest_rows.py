"""The columns of a manifest: found by name, or refused with the name that was meant."""

import pytest

from gpupipe.errors import DataError
from gpupipe.formats.manifest_rows import ManifestColumns, ManifestRows, check_header, count_row

WANTED = ManifestColumns(
    {"image": "file", "mask": "mask"}, "class", values={"age": "years"}, weight="w"
)


def test_columns_are_found_wherever_they_stand() -> None:
    header = ["w", "class", "years", "mask", "file", "rest"]
    assert check_header(header, WANTED, "a.csv:1") == WANTED
    assert WANTED.list_rest(header) == []


def test_the_rest_is_kept_if_it_is_wanted() -> None:
    wanted = ManifestColumns({"image": "file"}, "class", values={"age": "years"}, keeps_rest=True)
    assert wanted.list_rest(["file", "years", "class", "note"]) == ["years", "note"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["File", "mask", "class", "years", "w"], r"a\.csv:1: no column 'file'.*File.*data\.path"),
        (["file", "class", "years", "w"], r"no column 'mask'.*data\.fields\.mask"),
        (["file", "mask", "years", "w"], r"no column 'class'.*data\.label.*data\.label=null"),
        (["file", "mask", "class", "w"], r"no column 'years'.*data\.values"),
        (["file", "mask", "class", "years"], r"no column 'w'.*data\.weight"),
        (["file;mask;class;years;w"], r"a\.csv:1: the columns seem .* separated by ';'.*as \.csv"),
        (["file\tmask\tclass"], r"separated by tabs: .*with tabs as \.tsv"),
        (["file", "mask", "class", "years", "w", "file"], "2 columns are called 'file'"),
    ],
    ids=["path", "field", "label", "value", "weight", "semicolons", "tabs", "twice"],
)
def test_a_column_that_is_missing_or_twice_is_named(columns: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_header(columns, WANTED, "a.csv:1")


def test_a_single_column_needs_no_labels_unless_they_are_required() -> None:
    wanted = ManifestColumns({"image": "file"}, "class", is_label_required=False)
    assert check_header(["file"], wanted, "").label is None
    with pytest.raises(DataError, match="no column 'class'"):
        check_header(["file"], ManifestColumns({"image": "file"}, "class"), "")


def test_rows_are_named_by_their_line_or_their_number() -> None:
    rows = ManifestRows("a.csv", {"image": ["x.jpg", "y.jpg"]})
    assert len(rows) == 2
    assert rows.where(1) == "a.csv: row 2"
    for line in (2, 5):
        count_row(rows, line, lambda _: None)
    assert rows.where(1) == "a.csv:5"


def test_progress_is_told_now_and_then() -> None:
    rows = ManifestRows("a.csv", {"image": []})
    told: list[int] = []
    for line in range(200_001):
        count_row(rows, line, told.append)
    assert told == [100_000, 200_000]
