"""Runs steps on a photograph, for pictures of what they do.

Each step runs in an engine, as in a loader: eight samples of one file, whose draws differ.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from gpupipe import config as configs
from gpupipe.bench.annotation_drawing import draw_annotations
from gpupipe.bench.gallery_boxes import CLASSES, SPECS, build_columns
from gpupipe.bench.gallery_page import DRAWS, StepPictures
from gpupipe.bench.grid import join, to_picture, to_values
from gpupipe.bench.parity import reference_settings
from gpupipe.config import Config
from gpupipe.dataset.index import Index, build
from gpupipe.errors import ConfigError, GpupipeError, SampleError
from gpupipe.loader import create_loader
from gpupipe.pipeline.build import build_pipeline, find_pipeline
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.schema.document import Document
from gpupipe.sources.helpers.dataset_catalog import draw_face

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

LONGEST = 250
"""The longest side of the photograph in pixels; a larger one is reduced before the steps."""
DEFAULT_SEED = 1
"""With this seed, each random step changes at least one of the eight samples."""
_FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
_CROP = {"center_crop": {"size": 200}}
_BEFORE: tuple[list[Any], ...] = ([], [_FLOATS], [_CROP], [_CROP, _FLOATS])
"""Steps to try between decode and the drawn step, in this order. Some steps accept only floats, or
only images of one size.
"""


@dataclass(frozen=True)
class Gallery:
    """A photograph on which steps can run.

    Attributes:
        index: An index of eight samples that all are the photograph's file.
        engine: The engine that runs the steps. None chooses the engine that runs `Step.torch` or,
            if a step has no torch lowering, the one that `auto` chooses on the CPU.
        seed: The seed of the draws.
    """

    index: Index
    engine: str | None = None
    seed: int = DEFAULT_SEED

    def draw_step(self, name: str, parameters: Mapping[str, Any] | None = None) -> StepPictures:
        """Run one step after decode, and return the pictures of its effect.

        If the step refuses the decoded images, run it on float images, on a crop, or on a crop in
        floats: the first of these that the step accepts.

        Args:
            name: The step's name.
            parameters: Its parameters; by default `Step.example`.

        Raises:
            ConfigError: If a parameter is wrong, or the step refuses all these images.
            EngineError: If the engine cannot run the step.
            GpupipeError: If the step needs parameters, and has no example; or if it fails on the
                photograph.
        """
        model = STEPS.find(name)
        chosen = dict(model.example if parameters is None else parameters)
        required = [key for key, info in model.model_fields.items() if info.is_required()]
        if parameters is None and not chosen and required:
            raise GpupipeError(
                f"{name} has no example for its parameters: write '{name}: {{{required[0]}: ...}}'"
            )
        item = {name: chosen} if chosen else name
        view = {name: {"count": model.num_views, "steps": [item]}}
        pipelines: list[Any] = [["decode", *before, item] for before in _BEFORE]
        if name == "decode":
            pipelines = [[item]]
        elif model.num_views > 1:
            pipelines = [{"steps": ["decode"], "views": view}]
        return self._draw(name, name, chosen, self._read_first(pipelines))

    def draw_pipeline(self, name: str) -> list[StepPictures]:
        """Draw the effect of a pipeline up to each of its steps, with schedules at epoch 0.

        Args:
            name: The name or path of a pipeline file.

        Raises:
            ConfigError: If there is no such pipeline, or it has mistakes.
            EngineError: If the engine cannot run a step.
        """
        checked = self._read(name)
        rows = []
        for n, entry in enumerate(checked.pipeline.entries):
            part = replace(checked, pipeline=checked.pipeline.first_steps(n + 1))
            page = f"{n + 1:02d}_{entry.key}".replace("/", "_")
            parameters = entry.step.model_dump(mode="json", exclude_defaults=True)
            rows.append(self._draw(page, entry.key, parameters, part))
        return rows

    def _read_first(self, pipelines: Sequence[Any]) -> Config:
        """Read the first valid pipeline; if none is valid, raise the first ConfigError."""
        refusals = []
        for pipeline in pipelines:
            try:
                return self._read(pipeline)
            except ConfigError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def _read(self, pipeline: str | list[Any]) -> Config:
        """Read a pipeline. If it is invalid on images alone, try it on images with boxes."""
        data = {"source": "folder", "root": self.index.root}
        loader = {"batch_size": 1, "shuffle": False, "seed": self.seed, "ids": True}
        written = {"data": data, "pipeline": pipeline, "loader": loader}
        try:
            return configs.read(written).at_epoch(0)
        except ConfigError as refusal:
            plain = configs.read(written | {"pipeline": ["decode"]})
            try:
                document = Document("gallery", pipeline)
                if isinstance(pipeline, str):
                    document = find_pipeline(pipeline, None)
                annotated = build_pipeline(plain.pipeline.name, document, annotations=SPECS)
            except ConfigError:
                raise refusal from None
            return replace(plain, pipeline=annotated).at_epoch(0)

    def _draw(
        self, page: str, step: str, parameters: Mapping[str, Any], checked: Config
    ) -> StepPictures:
        title = write_title(step, parameters)
        has_draws = any(entry.step.num_uniforms for entry in checked.pipeline.entries)
        original = replace(checked, pipeline=checked.pipeline.first_steps(1))
        images = self._run(original, 1)
        try:
            images += self._run(checked, DRAWS if has_draws else 1)[:DRAWS]
        except SampleError as e:
            width, height = images[0].size
            raise GpupipeError(
                f"{title} cannot be drawn on this photograph of {width}x{height} pixels (a larger "
                f"one is reduced to {LONGEST}): {e.reason}"
            ) from e
        return StepPictures(page, title, images)

    def _run(self, checked: Config, count: int) -> list[Image]:
        settings = self._choose_engine(checked.pipeline.entries)
        part = replace(checked, loader=checked.loader.model_copy(update=settings))
        with create_loader(part, self.index) as batches:
            return [
                _to_picture(batch[name][0], _first_rows(batch))
                for batch, _ in zip(batches, range(count), strict=False)
                for name in part.pipeline.main_outputs
            ]

    def _choose_engine(self, entries: Sequence[Entry]) -> dict[str, Any]:
        if self.engine is not None:
            return {"engine": self.engine}
        has_torch = all(entry.step.has_torch for entry in entries)
        return reference_settings() if has_torch else {"device": "cpu"}


@contextmanager
def open_gallery(
    image: Path | None = None, engine: str | None = None, seed: int = DEFAULT_SEED
) -> Iterator[Gallery]:
    """Yield a Gallery of a photograph, and remove its temporary files afterwards.

    Args:
        image: An image file; by default a drawn face.
        engine: The engine that runs the steps, as `Gallery.engine`.
        seed: The seed of the draws.

    Raises:
        GpupipeError: If the file cannot be read.
    """
    picture = draw_face(0, 6) if image is None else _open_photograph(image)
    with tempfile.TemporaryDirectory(prefix="gpupipe-gallery-") as folder:
        picture.save(Path(folder) / "photograph.png")
        samples = ["photograph.png"] * DRAWS
        columns = build_columns(picture.size, DRAWS)
        labels = np.zeros(DRAWS, np.int64)
        index = build(folder, samples, labels, ["photograph"], annotations=columns)
        yield Gallery(index, engine, seed)


def _open_photograph(path: Path) -> Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            picture = ImageOps.exif_transpose(file).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as e:
        why = getattr(e, "strerror", None) or "it is no image that Pillow reads"
        raise GpupipeError(f"{path} cannot be drawn: {why}") from e
    picture.thumbnail((LONGEST, LONGEST))
    return picture


def _first_rows(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: batch[name][0] for name in SPECS if name in batch}


def _to_picture(image: Tensor, rows: Mapping[str, Tensor]) -> Image:
    """Convert an image (C, H, W) to a picture; draw several images, (N, C, H, W), side by side.

    The boxes and points in `rows` are drawn over a single image.
    """
    if image.ndim not in (3, 4) or image.shape[-3] not in (1, 3):
        raise GpupipeError(f"an array of {tuple(image.shape)} is no image, and cannot be drawn")
    pictures = [to_picture(each) for each in to_values(image.reshape(-1, *image.shape[-3:]))]
    draw_annotations(pictures[0], rows, SPECS, CLASSES)
    return join(pictures)


def write_title(step: str, parameters: Mapping[str, Any]) -> str:
    """Write a step as YAML, on one line; 1 - 0.8 is written 0.2."""
    data = configs.to_plain_types({step: parameters})
    text = yaml.safe_dump(data, default_flow_style=True, sort_keys=False, width=math.inf)
    text = re.sub(r"\d+\.\d{10,}\b", lambda number: f"{float(number[0]):.10g}", text)
    return text.strip()[1:-1] if parameters else step
