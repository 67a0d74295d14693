"""Masks in PNGs: the pixels of torchvision and Pillow, from native programs."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.engines.cpu import samples
from gpupipe.runtime.installation import find_extension
from helpers.jpeg_kinds import encode
from helpers.png_kinds import join, make_chunk, make_kinds, make_others, split

MOVED = ["image", "mask"]
NEAREST = {"size": 40, "interpolation": "nearest"}
PIPELINES: dict[str, list[Any]] = {
    "crop": [
        {"random_resize": {"min_size": 30, "max_size": 90, "on": MOVED}},
        {"random_horizontal_flip": {"on": MOVED}},
        {
            "random_crop": {
                "size": 60,
                "pad_if_needed": True,
                "fill": {"image": 0, "mask": 255},
                "on": MOVED,
            }
        },
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"to_dtype": {"dtype": "int64", "on": "mask"}},
    ],
    "resize": [{"resize": {"size": [44, 31], "on": MOVED}}],
    "resized crop": [{"random_resized_crop": {"size": 40, "on": MOVED}}],
    "nearest image": [{"resize": NEAREST}, {"resize": {"size": 40, "on": "mask"}}],
}
COUNT = 12


def write(folder: Path, masks: list[bytes], size: tuple[int, int] = (50, 70)) -> dict[str, Any]:
    """JPEGs, of which every third is a PNG, each with a mask; as the YAML's `data`."""
    with (folder / "list.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "mask"])
        for n, mask in enumerate(masks):
            content = encode(size, "420", n) if n % 3 else make_kinds(*size, n)["RGB"]
            (folder / f"{n}.jpg").write_bytes(content)
            (folder / f"{n}.mask.png").write_bytes(mask)
            rows.writerow([folder / f"{n}.jpg", folder / f"{n}.mask.png"])
    columns = {"path": "image", "label": None, "fields": {"mask": "mask"}, "masks": ["mask"]}
    return {"source": "file_list", "file": str(folder / "list.csv"), **columns}


def load(data: Any, steps: list[Any], engine: str, **options: Any) -> Any:
    decode = ["decode", {"decode": {"mode": "gray", "on": "mask"}}]
    settings = {"workers": 0} if engine == "dataloader" else {"threads": 1}
    settings |= {"device": "cpu", "batch_size": COUNT, "shuffle": False, "seed": 5, **options}
    config = {"data": data, "pipeline": [*decode, *steps]}
    return gpupipe.load(config, engine=engine, **settings)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """For each call of a native program, how many samples it was asked for and did not do."""
    undone: list[int] = []
    run_native = samples.run_native

    def run_and_note(run: Any, rows: range) -> list[int]:
        failed = run_native(run, rows)
        undone.append(len(failed))
        return failed

    monkeypatch.setattr(samples, "run_native", run_and_note)
    yield undone


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_images_and_masks_are_those_of_the_reference(
    tmp_path: Path, pipeline: str, native: list[int]
) -> None:
    kinds = list(make_kinds(50, 70).values())
    data = write(tmp_path, (kinds * 2)[:COUNT])
    steps = PIPELINES[pipeline]
    with load(data, steps, "cpu") as loader, load(data, steps, "dataloader") as reference:
        (batch,), (expected,) = loader, reference
    for name in MOVED:
        assert (batch[name].dtype, batch[name].shape) == (
            expected[name].dtype,
            expected[name].shape,
        )
    assert torch.equal(batch["mask"], expected["mask"])
    apart = (batch["image"].double() - expected["image"].double()).abs().max()
    assert apart <= (1e-6 if batch["image"].is_floating_point() else 0)
    if find_extension("_png") is not None and find_extension("_jpeg") is not None:
        assert native
        assert not any(native), "all samples of both fields are done by their native programs"


def test_masks_of_other_kinds_run_alone_beside_the_native_ones(
    tmp_path: Path, native: list[int]
) -> None:
    size, steps = (12, 16), PIPELINES["crop"]
    usual = make_kinds(*size)["gray"]
    names = ["transparent colour", "profile", "interlaced", "two runs of pixels"]
    others = [make_others(*size)[name] for name in names]
    head, pixels, end = split(usual)
    trailing = join(head, make_chunk(b"IDAT", pixels[8:-4] + b"1"), end)
    assert Image.open(write_file(tmp_path, trailing)).load() is not None
    data = write(tmp_path, [usual, *others[:2], trailing, usual, *others[:2], usual], size)
    with load(data, steps, "cpu") as loader, load(data, steps, "dataloader") as reference:
        (batch,), (expected,) = loader, reference
    assert torch.equal(batch["mask"], expected["mask"])
    if find_extension("_png") is not None and find_extension("_jpeg") is not None:
        assert set(native) == {0, 5}, "none of the images, and the masks that Pillow decodes"


def test_a_damaged_mask_is_named_and_skipped(tmp_path: Path) -> None:
    usual = make_kinds(50, 70)["gray"]
    data = write(tmp_path, [usual, usual[:200], usual])
    steps = PIPELINES["resize"]
    with (
        load(data, steps, "cpu") as loader,
        pytest.raises(gpupipe.SampleError, match=r"1\.mask\.png"),
    ):
        list(loader)
    with load(data, steps, "cpu", on_error="skip", max_bad=0.5) as loader:
        (batch,) = loader
    assert batch["mask"].shape == (2, 1, 44, 31)


def test_max_pixels_holds_for_pngs(tmp_path: Path) -> None:
    data = write(tmp_path, [make_kinds(50, 70)["gray"]] * 2)
    with (
        load(data | {"max_pixels": 3499}, PIPELINES["resize"], "cpu") as loader,
        pytest.raises(gpupipe.SampleError, match="max_pixels=3,499"),
    ):
        list(loader)


def test_the_exif_orientation_of_a_png_is_applied(tmp_path: Path) -> None:
    """Such a PNG is left to Pillow; the others beside it are not."""
    shades = np.arange(12 * 16, dtype=np.uint8).reshape(12, 16)
    (tmp_path / "0.png").write_bytes(make_others(12, 16)["EXIF"])
    data = {"source": "folder", "root": str(tmp_path), "label": None}
    (tmp_path / "1.png").write_bytes(make_kinds(16, 12)["gray"])
    steps = [{"decode": {"mode": "gray", "apply_exif_orientation": True}}]
    options: Any = {"device": "cpu", "engine": "cpu", "batch_size": 2, "shuffle": False}
    with gpupipe.load({"data": data, "pipeline": steps}, **options) as loader:
        (batch,) = loader
    assert torch.equal(batch["image"][0, 0], torch.from_numpy(np.rot90(shades, -1).copy()))


def write_file(folder: Path, content: bytes) -> Path:
    path = folder / "written.png"
    path.write_bytes(content)
    return path
