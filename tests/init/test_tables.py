"""Lists of samples in the forms that people write, and the column that holds the labels."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupipe.errors import GpupipeError
from gpupipe.init.tables import (
    NUM_ANNOTATIONS,
    choose_label,
    find_label_name,
    holds_parts,
    is_file_list,
    read_table,
)
from helpers.manifests import save_parquet

PETS = {"path": ["a.jpg", "b.jpg"], "label": ["cat", "dog"]}


def write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "path,label\na.jpg,cat\nb.jpg,dog\n"),
        ("a.csv", "\ufeffpath;label\na.jpg;cat\n\nb.jpg;dog\nhalf a row\n"),
        ("a.tsv", "path\tlabel\na.jpg\tcat\nb.jpg\tdog"),
        ("a.txt", "path|label\na.jpg|cat\nb.jpg|dog".replace("|", ",")),
        ("a.txt", "a.jpg cat\nb.jpg dog\n"),
    ],
)
def test_tables_of_text(tmp_path: Path, name: str, text: str) -> None:
    assert read_table(write(tmp_path, name, text)) == PETS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", {"a.jpg": "cat", "b.jpg": "dog"}),
        ("a.json", {"a.jpg": {"label": "cat"}, "b.jpg": {"label": "dog"}}),
        ("a.json", [{"path": "a.jpg", "label": "cat"}, {"path": "b.jpg", "label": "dog"}]),
        ("a.jsonl", '{"path": "a.jpg", "label": "cat"}\n{"path": "b.jpg", "label": "dog"}\n'),
    ],
)
def test_forms_of_json(tmp_path: Path, name: str, content: Any) -> None:
    assert read_table(write(tmp_path, name, content)) == PETS


def test_parquet(tmp_path: Path) -> None:
    save_parquet(tmp_path / "a.parquet", **PETS)
    assert read_table(tmp_path / "a.parquet") == PETS


def coco(*image_ids: int) -> dict[str, Any]:
    return {
        "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
        "annotations": [{"image_id": n, "category_id": 10 + n} for n in image_ids],
        "categories": [{"id": 11, "name": "cat"}, {"id": 12, "name": "dog"}],
    }


def test_coco_has_labels_if_each_image_has_one_annotation(tmp_path: Path) -> None:
    plain = {"id": ["1", "2"], "file_name": ["a.jpg", "b.jpg"]}
    one = read_table(write(tmp_path, "a.json", coco(1, 2)))
    assert one == plain | {"label": ["cat", "dog"]}
    many = read_table(write(tmp_path, "a.json", coco(1, 1, 1)))
    assert many == plain | {NUM_ANNOTATIONS: ["3", "0"]}


@pytest.mark.parametrize("content", ["{", "7", {"a": [1]}, [1, 2], []])
def test_other_json_is_no_table(tmp_path: Path, content: Any) -> None:
    assert read_table(write(tmp_path, "a.json", content)) == {}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet", "a.json"):
        with pytest.raises(GpupipeError, match=f"{name}: cannot be read"):
            read_table(tmp_path / name)
    with pytest.raises(GpupipeError, match=r"cannot be read as \.parquet"):
        read_table(write(tmp_path, "b.parquet", "no parquet"))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "path,label\n", True),
        ("a.csv", "path;label\n", False),
        ("a.tsv", "path\tlabel\n", True),
        ("a.txt", "a.jpg cat\n", True),
        ("a.txt", "path,label\n", False),
        ("a.json", "{}", False),
        ("a.parquet", "", True),
    ],
)
def test_what_the_source_file_list_reads(
    tmp_path: Path, name: str, text: str, expected: bool
) -> None:
    assert is_file_list(write(tmp_path, name, text)) is expected


PATHS = [f"{n}.jpg" for n in range(8)]
BREEDS = ["cat", "dog"] * 4


def table(**columns: list[str]) -> dict[str, list[str]]:
    return {"path": PATHS, **columns}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["id", "Label"], "Label"),
        (["class_id", "label"], "label"),
        (["target", "y"], "target"),
        (["breed", "id"], None),
        ([], None),
    ],
)
def test_names_of_labels(names: list[str], expected: str | None) -> None:
    assert find_label_name(names) == expected


def test_a_column_that_is_called_labels_is_taken_without_a_note() -> None:
    choice = choose_label(table(label=BREEDS, breed=BREEDS), "path")
    assert (choice.label, choice.values, choice.notes, choice.fault) == ("label", [], [], "")


def test_a_column_of_few_values_is_taken_and_that_is_said() -> None:
    choice = choose_label(table(breed=BREEDS, name=[f"rex{n}" for n in range(8)]), "path")
    assert choice.label == "breed"
    assert "'breed' is taken for the labels, since it has few values (cat, dog)" in choice.notes[0]
    both = choose_label(table(breed=BREEDS, color=["red", "black"] * 4), "path")
    assert (both.label, both.notes[0].endswith("so has color.")) == ("breed", True)


def test_texts_are_taken_before_numbers_and_several_numbers_are_not() -> None:
    numbers = ["0", "1"] * 4
    assert choose_label(table(count=numbers, breed=BREEDS), "path").label == "breed"
    assert choose_label(table(count=numbers), "path").label == "count"
    assert choose_label(table(count=numbers, weight=numbers), "path").label is None


def test_numbers_that_are_no_classes_are_values() -> None:
    choice = choose_label(table(label=[f"{n}.5" for n in range(8)]), "path")
    assert (choice.label, choice.values) == (None, ["label"])
    assert "holds numbers that are no classes" in choice.notes[0]


def test_captions_are_not_labels() -> None:
    captions = [f"a photo of animal {n}" for n in range(8)]
    for name in ("label", "text"):
        choice = choose_label(table(**{name: captions}), "path")
        assert choice.label is None
        assert f"'{name}' has 8 different texts in 8 rows, as captions have" in choice.notes[0]


def test_without_a_likely_column_there_are_no_labels() -> None:
    choice = choose_label(table(weight=[f"{n}.25" for n in range(8)]), "path")
    assert choice.label is None
    assert "no column looks like labels" in choice.notes[0]
    assert "values: [weight]" in choice.notes[0]


@pytest.mark.parametrize(
    ("texts", "expected"), [(["Train", "val"] * 4, True), (["cat", "train"], False), ([], False)]
)
def test_parts_are_no_labels(texts: list[str], expected: bool) -> None:
    assert holds_parts(texts) is expected
    if expected:
        assert choose_label(table(split=texts), "path").label is None
