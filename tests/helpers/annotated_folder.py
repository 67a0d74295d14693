"""A folder of images with drawn boxes and points: a source for tests, and loaders of it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.annotation_columns import AnnotationColumn
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.source import Progress, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.loader import create_loader
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from gpupipe.sources.folder import Folder

POINTS = 5
PAIRS = ((0, 1), (3, 4))
SPECS = {
    "boxes": Spec.of_boxes(),
    "labels": Spec.of_rows("int64", rows_with="boxes"),
    "keypoints": Spec.of_points(rows_with="boxes", count=POINTS, flip_pairs=PAIRS),
    "visibility": Spec.of_rows(
        "int64", rows_with="boxes", shape=(POINTS,), visibility_of="keypoints"
    ),
    "tags": Spec.of_rows("int64"),
}
RAGGED = tuple(SPECS)


class AnnotatedFolder(Folder):
    """A folder whose images have 0 to `most` boxes each, drawn by the image's number.

    Every third image has none, and all have none if `most` is 0. Each box has a label and 5 points;
    each image has 0 to 2 tags.
    """

    most: int = 8

    def annotation_specs(self) -> dict[str, Spec]:
        return SPECS

    def index(self, progress: Progress = ignore_progress) -> Index:
        listed = super().index(progress)
        count = len(listed)
        sizes = np.array([_size_of(listed.location(i)) for i in range(count)], np.int32)
        drawn = [draw(i, sizes[i], self.most) for i in range(count)]
        columns = {
            name: AnnotationColumn(
                spec.kind,
                "image",
                spec.annotation.rows_with if spec.annotation else "",
                np.concatenate([of_sample[name] for of_sample in drawn]),
                _offsets(drawn, name) if name in ("boxes", "tags") else None,
            )
            for name, spec in SPECS.items()
        }
        return build(
            listed.root,
            listed.names,
            None,
            ["one", "two", "three"],
            columns=listed.columns,
            values={"image_id": np.arange(count) + 1000},
            annotations=columns,
            sizes={"image": sizes},
        )


def draw(number: int, size: Any, most: int) -> dict[str, Any]:
    """Return the annotations of one image of `size` [height, width]."""
    rng = np.random.default_rng(number)
    count = 0 if number % 3 == 2 or not most else int(rng.integers(1, most + 1))
    high, wide = float(size[0]), float(size[1])
    corners = np.sort(rng.random((count, 2, 2)), 1) * [wide, high]
    points = np.floor(rng.random((count, POINTS, 2)) * [wide, high])
    return {
        "boxes": corners.reshape(count, 4).astype(np.float32),
        "labels": rng.integers(0, 3, count),
        "keypoints": points.astype(np.float32),
        "visibility": rng.integers(0, 3, (count, POINTS)),
        "tags": rng.integers(0, 99, number % 3),
    }


def _size_of(path: str) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.height, image.width


def _offsets(drawn: Sequence[dict[str, Any]], name: str) -> Any:
    return np.cumsum([0, *(len(of_sample[name]) for of_sample in drawn)])


def configure(root: Path, steps: Sequence[Any] | dict[str, Any], **options: Any) -> Config:
    """Return the config of an annotated folder.

    Args:
        root: The folder.
        steps: The pipeline.
        **options: Settings of `loader:`, and `most` and `cache_decoded` of the source.
    """
    most, cache = options.pop("most", 8), options.pop("cache_decoded", None)
    loader = LoaderConfig.model_validate({"device": "cpu", "ids": True, **options})
    data = {"source": "folder", "root": root, "cache_decoded": cache}
    # Steps and format may need boxes, which the source `folder` has not: they are built apart.
    config = configs.read({"data": data, "pipeline": ["decode"]})
    pipeline = build_pipeline(
        "inline", Document("p", {"pipeline": steps}), ("pipeline",), annotations=SPECS
    )
    source = AnnotatedFolder(root=root, most=most, cache_decoded=config.source.cache_decoded)
    return replace(config, source=source, pipeline=pipeline, loader=loader)


def load(root: Path, steps: Sequence[Any] | dict[str, Any], **options: Any) -> gpupipe.Loader:
    """Load an annotated folder; see `configure`."""
    return create_loader(configure(root, steps, **options))


def by_sample(loader: gpupipe.Loader) -> dict[int, dict[str, Any]]:
    """Return what one epoch holds of each sample, by id: tensors of each field."""
    samples: dict[int, dict[str, Any]] = {}
    for batch in loader:
        for n, number in enumerate(batch["id"].tolist()):
            assert number not in samples
            samples[number] = {name: value[n] for name, value in batch.items()}
    return samples


def assert_equal(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> None:
    """Assert that two epochs have the same samples, with the same annotations to the bit."""
    assert one.keys() == other.keys()
    for number, sample in one.items():
        assert sample.keys() == other[number].keys()
        for name, value in sample.items():
            if name != "image":
                assert value.dtype == other[number][name].dtype, name
                assert torch.equal(value, other[number][name]), (number, name)
