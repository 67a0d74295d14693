"""The annotations of the rows of a batch, and the EXIF orientations of its files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe.annotations import rows
from gpupipe.annotations.rows import UNKNOWN, AnnotationRows, find_orientations
from helpers.annotated_folder import by_sample, configure, load

SIZE = (30, 50)


def write_images(root: Path) -> None:
    """Eight gray images, one of each EXIF orientation, white in the box of their annotations."""
    (root / "a").mkdir()
    for orientation in range(1, 9):
        pixels = np.full((*SIZE, 3), 20 * orientation, np.uint8)
        image = Image.fromarray(pixels)
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(root / "a" / f"{orientation}.jpg", exif=exif)


def test_rows_are_selected() -> None:
    rows = AnnotationRows({}, {"image": np.array([[1, 2], [3, 4], [5, 6]], np.int32)})
    assert rows.select([2, 0]).declared["image"].tolist() == [[5, 6], [1, 2]]


def test_orientations_are_those_that_an_engine_has_read_and_else_those_of_the_files(
    tmp_path: Path,
) -> None:
    write_images(tmp_path)
    ids = np.array([7, 0, 5])
    for applied in (False, True):
        config = configure(tmp_path, [{"decode": {"apply_exif_orientation": applied}}])
        columns = config.source.index().columns
        for known, expected in (({}, [8, 1, 6]), ({"image": [UNKNOWN, 3, UNKNOWN]}, [8, 3, 6])):
            turned = find_orientations(config.pipeline, columns, ids, known)
            read = {name: values.tolist() for name, values in turned.items()}
            assert read == ({"image": expected} if applied else {})


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_no_file_is_read_again_for_its_orientation(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path)
    read: list[int] = []
    monkeypatch.setattr(rows, "_read_orientations", lambda _, ids: read.extend(ids) or ids)
    steps = [{"decode": {"apply_exif_orientation": True}}, {"resize": {"size": [60, 60]}}]
    with load(tmp_path, steps, engine=engine, batch_size=4, workers=0) as loader:
        assert len(by_sample(loader)) == 8
    assert read == []


def test_boxes_are_turned_with_their_image_on_every_engine(tmp_path: Path) -> None:
    write_images(tmp_path)
    steps = [{"decode": {"apply_exif_orientation": True}}, {"resize": {"size": [60, 60]}}]
    every = []
    for engine in ("cpu", "dali", "dataloader"):
        with load(tmp_path, steps, engine=engine, batch_size=3, workers=0) as loader:
            every.append(by_sample(loader))
            index = loader.index
    boxes = index.annotations["boxes"]
    assert boxes.offsets is not None
    for number in range(8):
        for samples in every:
            sample = samples[number]
            assert torch.equal(sample["boxes"], every[0][number]["boxes"])
            assert sample["orig_size"].tolist() == list(SIZE)
            matrix, corners = sample["to_original"], sample["boxes"].double().reshape(-1, 2)
            back = (corners @ matrix[:2, :2].T + matrix[:2, 2]).reshape(-1, 2, 2)
            back = torch.cat([back.amin(1), back.amax(1)], 1).numpy()
            stored = boxes.values[boxes.offsets[number] : boxes.offsets[number + 1]]
            np.testing.assert_allclose(back, stored, atol=1e-4)
