"""gpupipe init on lists beside images: .csv, .json and others."""

import json
import os
from pathlib import Path

import pytest

from helpers.init_runs import data_of, init, init_and_run, refused, write_images
from helpers.manifests import save_parquet

FOUR = tuple(f"train/a{n}.jpg" for n in range(4))
WRITTEN = "source: file_list file: train_list.csv root: set"


def rows(header: str, *lines: str) -> str:
    return "\n".join([header, *lines]) + "\n"


def test_ids_without_an_extension_are_joined_as_kaggle_has_them(data: Path) -> None:
    write_images(data, *FOUR, "train/extra.jpg", "test/b0.jpg", "test/b1.jpg")
    lines = [f"a{n},{'boxer' if n % 2 else 'pug'}" for n in range(4)]
    (data / "labels.csv").write_text(rows("id,breed", *lines, "a9,pug"))
    (data / "sample_submission.csv").write_text(rows("id,breed", "b0,pug", "b1,pug"))
    said = init_and_run("set")
    assert "train.yaml: source file_list, 4 samples in 2 classes: boxer, pug" in said
    assert "the column 'breed' is taken for the labels" in said
    assert "1 row of labels.csv left out, with no image: a9" in said
    assert "not read: sample_submission.csv, test/ (2 files), train/extra.jpg" in said
    assert data_of() == WRITTEN
    assert Path("train_list.csv").read_text().splitlines()[:2] == ["path,label", "train/a0.jpg,pug"]


def test_an_id_that_images_of_both_parts_have_is_that_of_its_list(data: Path) -> None:
    write_images(data, "train/0.png", "train/1.png", "val/0.png", "val/1.png")
    for part in ("train", "val"):
        (data / f"{part}.csv").write_text(rows("id,label", "0,x", "1,y"))
    init_and_run("set")
    assert "train/0.png,x" in Path("train_list.csv").read_text()
    assert "val/0.png,x" in Path("val_list.csv").read_text()


def test_classes_that_validation_lists_lack_are_no_doubt_if_they_are_numbers(data: Path) -> None:
    write_images(data, *FOUR)
    lines = [f"train/a{n}.jpg,{n % 3}" for n in range(4)]
    (data / "train.csv").write_text(rows("path,label", *lines))
    (data / "val.csv").write_text(rows("path,label", "train/a3.jpg,1"))
    assert "not certain" not in init_and_run("set")


def test_a_list_that_a_source_reads_is_not_written_again(data: Path) -> None:
    write_images(data, *FOUR)
    lines = [f"a{n}.jpg,{n % 2}" for n in range(4)]
    (data / "list.csv").write_text(rows("name,labels", *lines))
    assert "written for it" not in init_and_run("set")
    assert data_of() == (
        "source: file_list file: set/list.csv root: set/train path: name label: labels"
    )


def test_json_lines_with_whole_paths_are_read_as_they_are(data: Path) -> None:
    write_images(data, *FOUR)
    lines = [json.dumps({"file_name": f"a{n}.jpg", "label": "xy"[n % 2]}) for n in range(4)]
    (data / "train" / "metadata.jsonl").write_text("\n".join(lines))
    assert "written for it" not in init_and_run("set")
    assert data_of() == "source: file_list file: set/train/metadata.jsonl path: file_name"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps({f"a{n}.jpg": "xy"[n % 2] for n in range(4)})),
        ("a.json", json.dumps({f"a{n}.jpg": {"species": "xy"[n % 2]} for n in range(4)})),
        ("a.json", json.dumps([{"id": f"a{n}", "class": "xy"[n % 2]} for n in range(4)])),
        (
            "coco.json",
            json.dumps(
                {
                    "images": [{"id": n, "file_name": f"a{n}.jpg"} for n in range(4)],
                    "annotations": [{"image_id": n, "category_id": n % 2} for n in range(4)],
                    "categories": [{"id": 0, "name": "x"}, {"id": 1, "name": "y"}],
                }
            ),
        ),
        ("a.csv", rows("kind;file", *(f"{'xy'[n % 2]};/data/train/a{n}.jpg" for n in range(4)))),
        ("a.txt", rows("a0 x", *(f"a{n} {'xy'[n % 2]}" for n in range(1, 4)))),
    ],
)
def test_lists_of_other_forms_are_written_anew(data: Path, name: str, content: str) -> None:
    write_images(data, *FOUR)
    (data / name).write_text(content)
    said = init_and_run("set")
    assert "4 samples in 2 classes: x, y" in said
    assert "written for it: train_list.csv" in said


def test_a_parquet_of_ids(data: Path) -> None:
    write_images(data, *FOUR)
    save_parquet(data / "l.parquet", id=[f"a{n}" for n in range(4)], target=[0, 1, 0, 1])
    assert "4 samples in 2 classes: 0, 1" in init_and_run("set")


def test_boxes_of_coco_are_not_read_and_that_is_said(data: Path) -> None:
    write_images(data, *FOUR)
    images = [{"id": n, "file_name": f"a{n}.jpg"} for n in range(4)]
    boxes = [{"image_id": n // 2, "category_id": 1, "bbox": [0, 0, 2, 2]} for n in range(4)]
    (data / "coco.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    said = init_and_run("set")
    assert "4 samples without labels" in said
    assert "the annotations in coco.json, such as boxes, are not read" in said


def test_several_lists_are_doubted(data: Path) -> None:
    write_images(data, *FOUR)
    for name, count in (("one", 3), ("two", 4)):
        lines = [f"train/a{n}.jpg,{n % 2}" for n in range(count)]
        (data / f"{name}.csv").write_text(rows("path,label", *lines))
    said = init_and_run("set")
    assert "of several lists two.csv is read, and not one.csv: name another in data.file" in said


def test_captions_are_no_labels(data: Path) -> None:
    write_images(data, *FOUR)
    lines = [f"a{n}.jpg,A dog number {n} runs ." for n in range(4)]
    (data / "captions.txt").write_text(rows("image,caption", *lines, "a0.jpg,A dog that sits ."))
    said = init_and_run("set")
    assert "the column 'caption' has 5 different texts in 5 rows" in said
    assert "images with several rows in captions.txt come several times: train/a0.jpg" in said
    assert "5 samples without labels" in said


def test_numbers_that_are_no_classes_become_values(data: Path) -> None:
    write_images(data, *FOUR)
    (data / "l.csv").write_text(rows("id,label", *(f"a{n},{n / 2}" for n in range(4))))
    said = init_and_run("set")
    assert "the column 'label' holds numbers that are no classes" in said
    assert data_of() == f"{WRITTEN} label: null values: [target]"


def test_several_columns_of_numbers_are_no_labels(data: Path) -> None:
    write_images(data, *FOUR)
    (data / "l.csv").write_text(rows("id,rust,scab", *(f"a{n},{n % 2},{n // 2}" for n in range(4))))
    assert "For numbers in a batch write 'values: [rust, scab]'" in init_and_run("set")


def test_a_column_tells_the_parts(data: Path) -> None:
    write_images(data, *FOUR)
    lines = [f"a{n},{('train', 'train', 'val', 'test')[n]},{n % 2}" for n in range(4)]
    (data / "l.csv").write_text(rows("id,split,y", *lines, "a9,train,0"))
    said = init_and_run("set")
    assert "the parts of l.csv are named by its column 'split'; 1 row of neither part" in said
    assert "1 row of l.csv left out, with no image: a9" in said
    assert "train/a3.jpg" in said.partition("not read: ")[2]
    assert Path("train_list.csv").read_text().count("\n") == 3
    assert "a2" in Path("val_list.csv").read_text()


def test_folders_tell_the_parts_of_a_list(data: Path) -> None:
    write_images(data, *FOUR, "val/b0.jpg", "val/b1.jpg")
    lines = [f"{name},{name[1]}" for name in ("a0", "a1", "a2", "a3", "b0", "b1")]
    (data / "l.csv").write_text(rows("id,label", *lines))
    said = init_and_run("set")
    assert "the parts of l.csv are named by the folders of the images" in said
    assert Path("val_list.csv").read_text().splitlines()[1:] == ["val/b0.jpg,0", "val/b1.jpg,1"]


def test_a_list_for_validation_beside_one_without_a_part(data: Path) -> None:
    write_images(data, *FOUR)
    (data / "l.csv").write_text(rows("id,label", "a0,0", "a1,1"))
    (data / "val.csv").write_text(rows("id,label", "a2,0", "a3,1"))
    assert "several lists" not in init_and_run("set")
    assert "a3" in Path("val_list.csv").read_text()


def test_names_that_no_text_shows_as_they_are(data: Path) -> None:
    write_images(data, "a/0.jpg", "a/1.jpg", "b/1.jpg")
    (data / "empty.csv").touch()
    Path(os.fsdecode(b"set/no\xffutf8")).touch()
    (data / "two\nlines").touch()
    said = init_and_run("set")
    assert "not read: empty.csv, 'no\\udcffutf8', 'two\\nlines'" in said


def test_a_label_that_is_missing_is_an_error(data: Path) -> None:
    write_images(data, *FOUR)
    (data / "l.csv").write_text(rows("id,label", "a0,x", "a1,", "a2,y", "a3,x"))
    assert "l.csv: the column 'label': row 2: the label is empty" in refused("set")


def test_a_list_of_files_that_are_elsewhere_is_an_error(data: Path) -> None:
    (data / "l.csv").write_text(rows("path,label", "x.jpg,0"))
    assert "l.csv must name images that are below this folder" in refused("set")
    assert "no column names images below set (path, label)" in refused("set/l.csv")


def test_text_that_is_no_list_stays_unread(data: Path) -> None:
    write_images(data, "cat/0.jpg", "dog/0.jpg", "dog/1.jpg")
    (data / "README.txt").write_text("A set of pets, two kinds.\nSee a.com\n")
    said = init_and_run("set")
    assert "3 samples in 2 classes: cat, dog" in said
    assert "not read: README.txt" in said


def test_what_init_wrote_is_no_data(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(data, *FOUR)
    (data / "l.csv").write_text(rows("id,label", *(f"a{n},{n % 2}" for n in range(4))))
    monkeypatch.chdir(data)
    first = init(".")
    assert init(".", "--force") == first
