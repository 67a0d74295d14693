"""gpupipe init on images with segmentation masks."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gpupipe
from helpers.init_runs import data_of, init, init_and_run, write_images, write_mask

PAIRED = "root: set path: image label: null fields: {mask: mask} masks: [mask]"


def test_photographs_and_masks_keep_together(data: Path, photos: Path) -> None:
    (data / "images").mkdir()
    for n, photo in enumerate(sorted(photos.rglob("*.jpg"))[:3]):
        shutil.copy(photo, data / "images" / f"{n}.jpg")
        write_mask(data / "masks" / f"{n}_mask.png", bytes([n]))
    assert "train.yaml: source file_list, 3 samples with masks" in init("set")
    assert data_of() == f"source: file_list file: train_list.csv {PAIRED}"
    settings = {"engine": "dataloader", "device": "cpu", "workers": 0, "shuffle": False}
    with gpupipe.load("train.yaml", **settings) as loader:
        batch = next(iter(loader))
    assert [str(batch[name].dtype) for name in ("image", "mask")] == [
        "torch.float32",
        "torch.int64",
    ]
    assert batch["mask"].shape[2:] == batch["image"].shape[2:]
    assert batch["mask"].amax((1, 2, 3)).tolist() == [0, 1, 2]


def test_files_without_a_partner_are_named_and_left_out(data: Path) -> None:
    for n in range(3):
        write_images(data, f"images/{n}.jpg")
        write_mask(data / "masks" / f"{n + 1}.png")
    (data / "notes.md").touch()
    said = init_and_run("set")
    assert "1 image left out, without a partner of the same name: images/0.jpg." in said
    assert "1 mask left out, without a partner of the same name: masks/3.png." in said
    assert "not read: notes.md" in said
    assert Path("train_list.csv").read_text().split() == [
        "image,mask",
        "images/1.jpg,masks/1.png",
        "images/2.jpg,masks/2.png",
    ]


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{part}/images/{n}.jpg", "{part}/masks/{n}.png"),
        ("images/{part}/{n}.jpg", "labels/{part}/{n}.png"),
        ("{part}/{n}.jpg", "{part}_masks/{n}_mask.gif"),
        ("{part}/a/{n}.tif", "{part}/a/{n}_mask.tif"),
        ("leftImg8bit/{part}/a_{n}_leftImg8bit.png", "gtFine/{part}/a_{n}_gtFine_labelIds.png"),
    ],
)
def test_masks_are_found_where_they_usually_are(data: Path, image: str, mask: str) -> None:
    for part in ("train", "val"):
        for n in range(2):
            write_images(data, image.format(part=part, n=n))
            path = data / mask.format(part=part, n=n)
            write_mask(path.with_suffix(path.suffix.replace("tif", "tiff")))
            path.with_suffix(path.suffix.replace("tif", "tiff")).rename(path)
    said = init("set")
    for part in ("train", "val"):
        assert f"{part}.yaml: source file_list, 2 samples with masks" in said
        assert image.format(part=part, n=1) in Path(f"{part}_list.csv").read_text()


def test_class_folders_called_masks_are_classes(data: Path) -> None:
    write_images(data, "with_mask/0.jpg", "with_mask/1.jpg", "without_mask/0.jpg")
    assert "3 samples in 2 classes: with_mask, without_mask" in init("set")


def test_masks_of_0_and_255_become_0_and_1(data: Path) -> None:
    write_images(data, "images/a.png")
    write_mask(data / "masks" / "a.png", b"\0\xff")
    assert "the masks hold 0 and 255, taken for 0 and 1" in init_and_run("set")
    with gpupipe.load("train.yaml", engine="dataloader", device="cpu", workers=0) as loader:
        assert np.unique(next(iter(loader))["mask"]).tolist() == [0, 1]


def test_masks_that_hold_no_class_numbers_are_doubted(data: Path) -> None:
    write_images(data, "images/a.png", "images/b.png")
    write_mask(data / "masks" / "a.png", mode="P")
    write_mask(data / "masks" / "b.png", mode="P")
    assert "of which decode delivers the brightness: masks/a.png, masks/b.png" in init_and_run(
        "set"
    )
    write_mask(data / "masks" / "a.png", bytes(range(0, 240, 3)))
    write_mask(data / "masks" / "b.png", bytes(range(0, 240, 3))[24:])
    assert "the masks hold 72 levels up to 213" in init("set", "--force")


def test_masks_of_another_size_are_doubted(data: Path) -> None:
    write_images(data, "images/a.png", "images/b.png")
    write_mask(data / "masks" / "a.png")
    Image.new("L", (20, 20)).save(data / "masks" / "b.png")
    said = init_and_run("set")
    assert "masks of another size than their images, so that crops differ: masks/b.png" in said
