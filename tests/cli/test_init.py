"""gpupipe init, on every format: what it writes is a config that runs."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tfrecord import TFRecordWriter

import gpupipe
from gpupipe import config
from gpupipe.cli.app import main
from helpers import disks
from helpers.init_runs import init, jpeg
from helpers.lmdb_files import write_lmdb
from helpers.record_files import packed, written
from helpers.zip_files import write_zip

COUNT = 6


def class_folders(root: Path, names: str = "ab") -> None:
    for n in range(COUNT):
        path = root / names[n % len(names)] / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(40 + n))


def flat(root: Path) -> None:
    for n in range(COUNT):
        (root / f"{n}.jpg").write_bytes(jpeg())


FLAT = {f"{n}.jpg": jpeg() for n in range(COUNT)}


def listed(root: Path) -> None:
    flat(root)
    rows = [f"{n}.jpg,{'ab'[n % 2]}" for n in range(COUNT)]
    (root / "list.csv").write_text("\n".join(["file_name,category", *rows]) + "\n")


def parquet(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    flat(root)
    columns = {"path": [f"{n}.jpg" for n in range(COUNT)], "label": [0, 1] * (COUNT // 2)}
    pa.parquet.write_table(pa.table(columns), root / "list.parquet")


def images_in_parquet(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    images = [{"bytes": jpeg(), "path": f"{n}.jpg"} for n in range(COUNT)]
    table = pa.table({"image": images, "label": [0, 1] * (COUNT // 2)})
    pa.parquet.write_table(table, root / "train-00000-of-00001.parquet")


def tar(root: Path, name: str = "train-000.tar", label: str = "cls") -> None:
    with tarfile.open(root / name, "w") as shard:
        for n in range(COUNT):
            text = json.dumps({"label": n % 2}) if label == "json" else str(n % 2)
            for suffix, data in (("jpg", jpeg()), (label, text.encode())):
                info = tarfile.TarInfo(f"{n:03}.{suffix}")
                info.size = len(data)
                shard.addfile(info, io.BytesIO(data))


def tfrecord(root: Path, image: str = "image/encoded", label: str = "image/class/label") -> None:
    writer = TFRecordWriter(str(root / "part-00000-of-00001"))
    for n in range(COUNT):
        writer.write({image: (jpeg(), "byte"), label: (n % 2, "int")})
    writer.close()


def rec(root: Path) -> None:
    written(root / "train.rec", *(packed(float(n % 2), jpeg(), n) for n in range(COUNT)))


def arrays(root: Path) -> None:
    np.save(root / "x_train.npy", np.zeros((COUNT, 3, 8, 8), np.uint8))
    np.save(root / "y_train.npy", np.arange(COUNT) % 2)


def array_folders(root: Path) -> None:
    for n in range(COUNT):
        (root / "ab"[n % 2]).mkdir(exist_ok=True)
        np.save(root / "ab"[n % 2] / f"{n}.npy", np.zeros((3, 8 + n, 9), np.float32))


def npz(root: Path) -> None:
    np.savez(root / "set.npz", only=np.zeros((COUNT, 4), np.float32))


def npz_with_labels(root: Path) -> None:
    labels = np.arange(COUNT) % 2
    np.savez(root / "set.npz", Label=labels, image=np.zeros((COUNT, 4), np.float32), w=labels)


def zipped(root: Path, folder: str = "data/train/", classes: str = "ab") -> None:
    files = {f"{folder}{classes[n % len(classes)]}/{n}.jpg": jpeg() for n in range(COUNT)}
    write_zip(root / "images.zip", files | {"data/val/a/0.jpg": jpeg(), "readme.txt": b""})


def database(root: Path, key: str = "image-{n}") -> None:
    values = {key.format(n=n, c="ab"[n % 2]): jpeg() for n in range(COUNT)}
    if key == "image-{n}":
        values |= {f"label-{n}": b"%d" % (n % 2) for n in range(COUNT)}
    write_lmdb(root, values)


def hub(root: Path) -> None:
    import datasets

    features = datasets.Features(
        {"img": datasets.Image(), "fine": datasets.ClassLabel(names=["cat", "dog"])}
    )
    images = [{"bytes": jpeg(), "path": None} for _ in range(COUNT)]
    columns = {"img": images, "fine": [0, 1] * (COUNT // 2)}
    every = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": every, "test": every}).save_to_disk(str(root))


CASES: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "class folders": (class_folders, "folder", 2),
    "a flat folder": (flat, "folder", 1),
    "a csv": (listed, "file_list", 2),
    "a parquet": (parquet, "file_list", 2),
    "images in parquet": (images_in_parquet, "parquet", 2),
    "a tar": (tar, "webdataset", 2),
    "a tar with json": (lambda root: tar(root, "s.tar", "json"), "webdataset", 2),
    "tfrecord": (tfrecord, "tfrecord", 2),
    "tfrecord of others": (lambda root: tfrecord(root, "img", "x/label"), "tfrecord", 2),
    "recordio": (rec, "recordio", 2),
    "x and y": (arrays, "numpy", 2),
    "arrays in class folders": (array_folders, "numpy", 2),
    "a zip": (zipped, "zip", 2),
    "a zip without classes": (lambda root: write_zip(root / "a.zip", FLAT), "zip", 1),
    "an lmdb": (database, "lmdb", 2),
    "an lmdb of classes": (lambda root: database(root, "{c}/{n}.jpg"), "lmdb", 2),
    "an lmdb without labels": (lambda root: database(root / "x.lmdb", "{n}"), "lmdb", 1),
    "hugging face": (hub, "hf", 2),
    "an npz file": (npz, "numpy", 1),
    "an npz file with labels": (npz_with_labels, "numpy", 2),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_the_config_of_every_format_runs(here: Path, name: str) -> None:
    make, source, num_classes = CASES[name]
    labels = f"in {num_classes} classes: " if num_classes > 1 else "without labels"
    make(here / "set")
    said = init("set")
    assert f"train.yaml: source {source}, {COUNT} samples {labels}" in said
    text = (here / "train.yaml").read_text()
    assert text.startswith("# Written by 'gpupipe init set'."), "no schema is installed here"
    assert max(map(len, text.splitlines())) <= 100
    settings = {"engine": "dataloader", "device": "cpu", "workers": 0, "last_batch": "partial"}
    with gpupipe.load("train.yaml", **settings) as loader:
        batches = list(loader)
    name = next(iter(batches[0]))
    assert sum(len(batch[name]) for batch in batches) == COUNT
    assert ("label" in batches[0]) == (num_classes > 1)
    first = batches[0][name]
    assert str(first.dtype) == "torch.float32"


@pytest.mark.parametrize("classes", ["a", "ab"])
def test_the_advised_split_has_validation_data_of_each_class(here: Path, classes: str) -> None:
    class_folders(here / "set", classes)
    advice = re.search(r"write 'split: (\{.*?\})'", init("set"))
    assert advice
    settings = {"engine": "dataloader", "device": "cpu", "workers": 0, "last_batch": "partial"}
    settings |= {"split": yaml.safe_load(advice[1]), "subset": "val"}
    with gpupipe.load("train.yaml", **settings) as loader:
        assert sum(len(batch["image"]) for batch in loader) == len(classes)


def test_validation_data_gets_a_config_of_its_own(here: Path) -> None:
    class_folders(here / "set" / "train")
    class_folders(here / "set" / "val")
    (here / "schemas").mkdir()
    (here / "schemas/config.json").write_text("{}")
    said = init("set", "--out", "configs/my_train.yaml")
    assert "configs/my_val.yaml: source folder" in said
    train, val = (config.read(f"configs/my_{part}.yaml") for part in ("train", "val"))
    assert (train.loader.shuffle, val.loader.shuffle) == (True, False)
    assert [e.key for e in val.pipeline.entries][1:3] == ["resize", "center_crop"]
    assert "$schema=../schemas/config.json" in Path("configs/my_val.yaml").read_text()


def test_classes_that_differ_are_said_in_both_files(here: Path) -> None:
    class_folders(here / "set" / "train", "abc")
    class_folders(here / "set" / "val", "ab")
    init("set")
    for part in ("train", "val"):
        assert "data has other classes, so class numbers" in Path(f"{part}.yaml").read_text()


def test_parts_are_told_by_the_names_of_files(here: Path) -> None:
    tar(here / "set", "train-000.tar")
    tar(here / "set", "train-001.tar")
    tar(here / "set", "val-000.tar")
    said = init("set")
    assert f"train.yaml: source webdataset, {2 * COUNT} samples" in said
    assert f"val.yaml: source webdataset, {COUNT} samples" in said


def test_gray_and_unreadable_images(here: Path) -> None:
    for n in range(4):
        (here / "set" / f"{n}.jpg").write_bytes(jpeg(mode="L"))
    (here / "set" / "4.jpg").write_bytes(b"no image")
    said = init("set")
    assert "  1 image that cannot be read " in said
    assert "'gpupipe inspect train.yaml' names" in said
    text = Path("train.yaml").read_text()
    assert "decode: {mode: gray}" in text
    assert "on_error: skip  # 1 image of those looked at cannot be read" in text


def test_a_full_disk_leaves_no_file(here: Path, tmp_path: Path) -> None:
    flat(here / "set")
    with disks.mounted(tmp_path / "disk", "1m") as disk:
        disks.fill(disk)
        done = CliRunner().invoke(main, ["init", "set", "--out", str(disk / "train.yaml")])
        assert done.exit_code == 1
        assert f"{disk}/train.yaml cannot be written: no space left" in done.output
        assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_a_folder_without_permission_is_named(here: Path) -> None:
    class_folders(here / "set")
    # Root reads all without these.
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * (os.geteuid() == 0)
    (here / "set" / "a").chmod(0)
    done = subprocess.run(
        [*drop, sys.executable, "-m", "gpupipe", "init", "set"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "set/a: cannot be read while the folder is scanned: Permission denied" in done.stderr
    assert "Traceback" not in done.stderr


def test_files_that_are_there_stay(here: Path) -> None:
    flat(here / "set")
    Path("train.yaml").write_text("mine")
    done = CliRunner().invoke(main, ["init", "set"])
    assert done.exit_code == 1
    assert "train.yaml is there already: take another --out, or --force" in done.output
    assert Path("train.yaml").read_text() == "mine"
    init("set", "--force")
    assert config.read("train.yaml").source_name == "folder"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("notes.md", "nothing that a source reads"),
    ],
)
def test_what_no_source_reads_is_said(here: Path, file: str, words: str) -> None:
    (here / "set" / file).write_text("{}")
    done = CliRunner().invoke(main, ["init", "set"])
    assert done.exit_code == 1
    assert words in done.output
    assert not Path("train.yaml").exists()


def test_names_of_columns_are_found_in_any_case(here: Path) -> None:
    listed(here / "set")
    file = here / "set" / "list.csv"
    file.write_text(file.read_text().replace("category", "Category"))
    assert f"{COUNT} samples in 2 classes: a, b" in init("set")
    assert "label: Category" in Path("train.yaml").read_text()


def test_a_file_whose_name_only_begins_with_that_of_a_part_is_none(here: Path) -> None:
    tar(here / "set", "train-000.tar")
    tar(here / "set", "evaluated.tar")
    init("set")
    assert not Path("val.yaml").exists()
