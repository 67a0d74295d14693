"""Samples as they are stored: bytes, and boxes and points with their numbers."""

import io
from pathlib import Path

import numpy as np
import pytest

from gpupipe.config import Config
from gpupipe.conversion.convert import convert
from gpupipe.conversion.plan import Options, plan_storage
from gpupipe.conversion.samples import BadSample, ConvertedReader, ConvertedSample, encode_npy
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import SOURCES, Progress, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.decoders.chain import DecoderChain
from helpers import annotated_folder
from helpers.annotated_folder import AnnotatedFolder


class Boxed(AnnotatedFolder):
    """Boxes with labels, points and visibility, and no tags."""

    def annotation_specs(self) -> dict[str, Spec]:
        return {name: spec for name, spec in super().annotation_specs().items() if name != "tags"}

    def index(self, progress: Progress = ignore_progress) -> Index:
        index = super().index(progress)
        index.annotations.pop("tags")
        return index


@pytest.fixture(scope="module")
def boxed(photo_folder: Path) -> Config:
    """The photographs with boxes and points."""
    config = annotated_folder.configure(photo_folder, ["decode"])
    object.__setattr__(config, "source", Boxed(root=photo_folder))
    return config


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_boxes_points_and_visibility_are_those_of_the_source(
    boxed: Config, format: str, tmp_path: Path
) -> None:
    options = Options(format, shard_bytes=1_000_000)  # type: ignore[arg-type]
    result = convert(boxed, tmp_path / "out", options, ignore_progress)
    data = result.plan.options_of_source(
        f"{tmp_path}/out/*.{format}", {}, f"{tmp_path}/out/classes.txt"
    )
    name = {"tar": "webdataset", "parquet": "parquet"}[format]
    index, other = boxed.source.index(), SOURCES.find(name)(**data).index()
    assert other.classes == index.classes
    assert list(other.annotations) == list(index.annotations)
    for field, column in index.annotations.items():
        stored = other.annotations[field]
        assert np.array_equal(stored.values, column.values), field
        assert (stored.offsets is None) == (column.offsets is None)
        assert column.offsets is None or np.array_equal(stored.offsets, column.offsets)
    assert np.array_equal(other.values["image_id"], index.values["image_id"])


def test_boxes_and_points_of_an_image_that_is_made_smaller_fit_it(boxed: Config) -> None:
    index = boxed.source.index()
    plans = [plan_storage(boxed, index, Options(max_side=side)) for side in (None, 160)]
    before, after = (
        next(ConvertedReader(plan, index, DecoderChain()).read(range(1))) for plan in plans
    )
    assert isinstance(before, ConvertedSample)
    assert isinstance(after, ConvertedSample)
    height, width = index.sizes["image"][0].tolist()
    decoded = DecoderChain().find(after.contents["image"].data)[2]
    assert max(decoded.width, decoded.height) == 160
    scale = np.array([decoded.width / width, decoded.height / height])
    boxes = np.array(before.lists["boxes"]) * [*scale, *scale]
    assert np.allclose(after.lists["boxes"], boxes, rtol=1e-6)
    points = np.reshape(before.lists["keypoints"], (-1, 3)) * [*scale, 1]
    assert np.allclose(np.reshape(after.lists["keypoints"], (-1, 3)), points, rtol=1e-6)
    assert after.lists["labels"] == before.lists["labels"]
    assert after.changes == {"reduced": 1}


def test_a_file_that_is_gone_is_a_bad_sample_and_its_neighbours_are_not(
    boxed: Config, photo_folder: Path
) -> None:
    index = boxed.source.index()
    gone = Path(index.location(2))
    content = gone.read_bytes()
    gone.unlink()
    try:
        reader = ConvertedReader(plan_storage(boxed, index, Options()), index, DecoderChain())
        samples = list(reader.read(range(5)))
    finally:
        gone.write_bytes(content)
    assert [isinstance(sample, BadSample) for sample in samples] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert samples[2][1:] == (str(gone), "no such file or directory")


def test_an_array_is_stored_with_its_header_in_c_order() -> None:
    array = np.arange(24, dtype=np.uint16).reshape(2, 3, 4).transpose(2, 0, 1)
    content = encode_npy(array)
    assert np.array_equal(np.load(io.BytesIO(content.data)), array)
    numbers = bytes(content.data)[-content.numbers :]
    assert numbers == np.ascontiguousarray(array).tobytes()
