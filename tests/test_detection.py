"""to_original(): predictions return to the stored image."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import detection
from helpers.annotated_folder import load
from helpers.small_images import shrink_all

EVALUATION: list[Any] = [
    "decode",
    {"pad": {"padding": [3, 5, 7, 0]}},
    {"resize": {"size": [40, 60]}},
    {"random_horizontal_flip": {"p": 1.0}},
]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("detection") / "faces", 48)


def test_boxes_return_in_every_form(root: Path) -> None:
    with load(root, EVALUATION, batch_size=7, shuffle=False, engine="cpu") as loader:
        batch, column = next(iter(loader)), loader.index.annotations["boxes"]
    assert column.offsets is not None
    expected = column.values[: column.offsets[7]]
    boxes = batch["boxes"]
    back = detection.to_original(boxes, batch)
    assert isinstance(back, gpupipe.Ragged)
    assert back.values.dtype == torch.float32
    np.testing.assert_allclose(back.values.numpy(), expected, atol=1e-4)
    listed = detection.to_original(list(boxes), batch)
    assert torch.equal(torch.cat(listed), back.values)
    padded, is_row = boxes.pad(0.0)
    dense = detection.to_original(padded, batch)
    assert torch.equal(dense[is_row], back.values)
    targets = [{"to_original": matrix} for matrix in batch["to_original"]]
    assert torch.equal(detection.to_original(boxes, targets).values, back.values)


def test_what_cannot_be_mapped_is_explained(root: Path) -> None:
    with load(root, EVALUATION, batch_size=7, engine="cpu") as loader:
        batch = next(iter(loader))
    with pytest.raises(gpupipe.UsageError, match="boxes of 3 images, but the batch has 7"):
        detection.to_original(torch.zeros(3, 2, 4), batch)
    with load(root, [*EVALUATION, "random_perspective"], batch_size=7, engine="cpu") as loader:
        batch = next(iter(loader))
        assert "to_original" not in batch
        with pytest.raises(gpupipe.UsageError, match="random_perspective"):
            detection.to_original(batch["boxes"], batch)
