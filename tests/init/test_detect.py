"""Which source reads a folder."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gpupipe.errors import GpupipeError
from gpupipe.init.detect import detect
from gpupipe.init.detected import TRAIN
from helpers.init_runs import data_of, init_and_run, jpeg, refused, write_images


def sources(folder: Path) -> dict[str, str]:
    return {part: detected.source for part, detected in detect(folder).items()}


def test_folders_of_classes(tmp_path: Path) -> None:
    write_images(tmp_path, *(f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(3)))
    assert sources(tmp_path) == {TRAIN: "folder"}


def test_parts_below_folders_that_hold_nothing_else(tmp_path: Path) -> None:
    parts = ("train", "val")
    write_images(tmp_path, *(f"a/b/{part}/{k}/0.jpg" for part in parts for k in ("cat", "dog")))
    found = detect(tmp_path)
    assert {part: d.source for part, d in found.items()} == {TRAIN: "folder", "val": "folder"}
    assert str(found["val"].options["root"]).endswith("a/b/val")


def test_a_list_beside_images(tmp_path: Path) -> None:
    write_images(tmp_path, "images/0.jpg", "images/1.jpg")
    (tmp_path / "list.csv").write_text("path,label\n0.jpg,cat\n1.jpg,dog\n")
    assert sources(tmp_path) == {TRAIN: "file_list"}


def test_a_single_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 3, 8, 8), np.uint8))
    assert sources(tmp_path / "images.npy") == {TRAIN: "numpy"}
    (tmp_path / "notes.doc").write_text("")
    with pytest.raises(GpupipeError, match="no source reads a file of this name"):
        detect(tmp_path / "notes.doc")
    (tmp_path / "mine.yaml").write_text("")
    with pytest.raises(GpupipeError, match=r"mine\.yaml: .*: 'gpupipe run "):
        detect(tmp_path / "mine.yaml")


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    write_images(tmp_path, *(f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(2)))
    (tmp_path / "README").write_text("")
    assert "README" in detect(tmp_path)[TRAIN].unused
    assert detect(tmp_path, [(tmp_path / "README").absolute()])[TRAIN].unused == ""


def write_parquet(file: Path, column: str, is_typed: bool = False) -> None:
    """Write a Parquet file of two images and labels, as the hub has them."""
    table = pa.table({column: [{"bytes": jpeg()}, {"bytes": jpeg()}], "label": [0, 1]})
    if is_typed:
        features = {column: {"_type": "Image"}, "label": {"_type": "Value", "dtype": "int64"}}
        stored = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": stored})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)


@pytest.mark.parametrize("folder", ["data", "plain_text"])
@pytest.mark.parametrize("column", ["image", "img"])
def test_a_copy_of_a_repository_of_the_hub(folder: str, column: str, data: Path) -> None:
    (data / "README.md").write_text("# a data set")
    for split in ("test", "train"):
        file = data / folder / f"{split}-00000-of-00001.parquet"
        write_parquet(file, column, is_typed=column == "img")
    found = detect(data)
    assert {part: (d.source, d.options["split"]) for part, d in found.items()} == {
        TRAIN: ("hf", "train"),
        "val": ("hf", "test"),
    }
    assert "2 samples" in init_and_run("set")


def test_further_configurations_of_the_hub_are_named(data: Path) -> None:
    for folder in ("large", "small"):
        write_parquet(data / folder / "train-00000-of-00001.parquet", "image")
    (note,) = detect(data)[TRAIN].notes
    assert "small also hold Parquet files" in note


def test_numbered_tables_without_images_are_no_copy_of_the_hub(data: Path) -> None:
    write_images(data, "cats/0.jpg", "dogs/1.jpg")
    table = pa.table({"text": ["a", "b"]})
    (data / "data").mkdir()
    pq.write_table(table, data / "data" / "train-00000-of-00001.parquet")
    assert sources(data) == {TRAIN: "folder"}


def test_what_is_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpupipeError, match="no such folder"):
        detect(tmp_path / "missing")
    with pytest.raises(GpupipeError):
        detect(tmp_path)


def test_a_single_class_is_doubted(data: Path) -> None:
    write_images(data, "cats/0.jpg", "cats/1.jpg")
    assert "all samples are of one class, 'cats'" in init_and_run("set")


def test_a_folder_called_images_is_no_class(data: Path) -> None:
    write_images(data, "images/0.jpg", "images/1.jpg")
    said = init_and_run("set")
    assert "2 samples without labels" in said
    assert "the images are in no class folders" in said


def test_as_many_classes_as_samples_are_doubted(data: Path) -> None:
    write_images(data, "a/0.jpg", "b/1.jpg", "c/2.jpg")
    assert "as many classes as samples (3)" in init_and_run("set")


def test_classes_in_the_only_folder_are_found(data: Path) -> None:
    write_images(data, "pets/all/cat/0.jpg", "pets/all/dog/0.jpg", "pets/all/dog/1.jpg")
    said = init_and_run("set")
    assert "all images are in set/pets/all, so the folders in it are taken for the classes" in said
    assert data_of() == "source: folder root: set/pets/all"


def test_folders_in_class_folders_are_doubted(data: Path) -> None:
    write_images(data, *(f"{name}/{n}.jpg" for name in ("pet/cat", "pet/dog", "car") for n in "01"))
    said = init_and_run("set")
    assert "6 samples in 2 classes: car, pet" in said
    assert "class folders hold further folders (pet/cat, pet/dog): a class is the first" in said


def test_parts_in_the_only_folder_are_found(data: Path) -> None:
    parts = ("train", "test")
    write_images(
        data, *(f"d/{part}/{name}/{n}.jpg" for part in parts for name in "ab" for n in "01")
    )
    init_and_run("set")
    assert data_of("val.yaml") == "source: folder root: set/d/test"


def test_images_beside_class_folders_are_named(data: Path) -> None:
    write_images(data, "a/0.jpg", "a/1.jpg", "b/1.jpg", "cover.jpg")
    (data / "a" / "thumbs.db").touch()
    (data / "list.csv").write_text("path,label\na/0.jpg,1\na/1.jpg,1\nb/1.jpg,2\n")
    assert "not read: a/thumbs.db, cover.jpg, list.csv" in init_and_run("set")


def test_gaps_in_label_numbers_are_doubted(data: Path) -> None:
    write_images(data, *(f"{n}.jpg" for n in range(4)))
    (data / "l.csv").write_text("path,label\n0.jpg,1\n1.jpg,4\n2.jpg,1\n3.jpg,4\n")
    assert "no sample has the label 0, 2, 3, though labels go up to 4" in init_and_run("set")


def test_images_of_several_pages_are_doubted(data: Path) -> None:
    write_images(data, "a/0.tif", "b/0.tif", "b/1.tif")
    page = Image.new("RGB", (48, 40))
    page.save(data / "a" / "0.tif", save_all=True, append_images=[page, page])
    assert "images of several pages, read as the first alone: a/0.tif" in init_and_run("set")


def test_all_empty_class_folders_are_named_at_once(data: Path) -> None:
    write_images(data, "a/0.jpg", "d/0.jpg")
    (data / "b").mkdir()
    (data / "c").mkdir()
    said = refused("set")
    assert f"{Path.cwd()}/set/b, {Path.cwd()}/set/c: no image (" in said
    assert "remove the empty class folders" in said


def test_a_link_to_a_folder_above_ends_the_search(data: Path) -> None:
    write_images(data, "0.jpg", "1.jpg")
    (data / "again").symlink_to(data.absolute())
    assert "a link to a folder that it lies in" in refused("set")


@pytest.mark.parametrize("name", ["train", "test tube"])
def test_a_class_called_as_a_part_is_is_a_class(data: Path, name: str) -> None:
    write_images(data, *(f"{folder}/{n}.jpg" for folder in (name, "car", "van") for n in "01"))
    assert "6 samples in 3 classes" in init_and_run("set")
