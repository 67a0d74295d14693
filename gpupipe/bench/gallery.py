"""Runs steps on a photograph: the original, and eight draws of each step.

Each step runs in an engine, as in a loader: eight samples of one file, whose draws differ.
`gallery_page` draws the pages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe import config as configs
from gpupipe.bench.gallery_page import DRAWS, StepPictures
from gpupipe.bench.grid import join, to_levels, to_picture
from gpupipe.config import Config
from gpupipe.dataset.index import Index, build
from gpupipe.engines import registry
from gpupipe.errors import ConfigError, GpupipeError, shown
from gpupipe.loader import create_loader
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.sources.fetch import synthetic_faces

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

LONGEST = 250
"""The longest side of the photograph in pixels; a larger one is reduced before the steps."""
DEFAULT_SEED = 1
"""With it each step of chance changes one of the eight samples or more."""
_FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
_CROP = {"center_crop": {"size": 200}}
_BEFORE: tuple[list[Any], ...] = ([], [_FLOATS], [_CROP], [_CROP, _FLOATS])
"""What may stand between decode and a step, for steps that take floats, or images of one size."""


@dataclass(frozen=True)
class Gallery:
    """A photograph on which steps can run.

    Attributes:
        index: Eight samples of the photograph's file.
        engine: The engine that runs the steps; None for the one that runs `Step.torch`, or DALI on
            the CPU for steps that have no torch lowering.
        seed: The seed of the draws.
    """

    index: Index
    engine: str | None = None
    seed: int = DEFAULT_SEED

    def draw_step(self, name: str, parameters: Mapping[str, Any] | None = None) -> StepPictures:
        """Run one step after decode; on floats or on a crop, if the step does not take the rest.

        Args:
            name: The step's name.
            parameters: Its parameters; by default `Step.example`.

        Raises:
            ConfigError: If a parameter is wrong, or the step takes no such images.
            EngineError: If the engine cannot run the step.
            GpupipeError: If the step needs parameters, and has no example.
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
        checked = self._read_first(
            [{"steps": ["decode"], "views": view}]
            if model.num_views > 1
            else [[item]]
            if name == "decode"
            else [["decode", *before, item] for before in _BEFORE]
        )
        return self._draw(name, _write_yaml(name, chosen), checked)

    def draw_pipeline(self, name: str) -> list[StepPictures]:
        """Run a pipeline up to each of its steps, with the numbers of epoch 0.

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
            title = _write_yaml(entry.key, entry.step.model_dump(exclude_defaults=True))
            rows.append(self._draw(f"{n + 1:02d}_{entry.key}".replace("/", "_"), title, part))
        return rows

    def _read_first(self, pipelines: Sequence[Any]) -> Config:
        """Return the first pipeline without mistakes, or raise the ConfigError of the first."""
        refusals = []
        for pipeline in pipelines:
            try:
                return self._read(pipeline)
            except ConfigError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def _read(self, pipeline: str | list[Any]) -> Config:
        return configs.read(
            {
                "data": {"source": "folder", "root": self.index.root},
                "pipeline": pipeline,
                "loader": {"batch_size": 1, "shuffle": False, "seed": self.seed, "ids": True},
            }
        ).at_epoch(0)

    def _draw(self, name: str, title: str, checked: Config) -> StepPictures:
        has_draws = any(entry.step.num_uniforms for entry in checked.pipeline.entries)
        original = replace(checked, pipeline=checked.pipeline.first_steps(1))
        images = self._run(original, 1) + self._run(checked, DRAWS if has_draws else 1)[:DRAWS]
        return StepPictures(name, title, images)

    def _run(self, checked: Config, count: int) -> list[Image]:
        settings = self._choose_engine(checked.pipeline.entries)
        part = replace(checked, loader=checked.loader.model_copy(update=settings))
        with create_loader(part, self.index) as batches:
            return [
                _to_picture(batch[name][0])
                for batch, _ in zip(batches, range(count), strict=False)
                for name in part.pipeline.main_outputs
            ]

    def _choose_engine(self, entries: Sequence[Entry]) -> dict[str, Any]:
        if self.engine is not None:
            return {"engine": self.engine}
        if all(entry.step.has_torch for entry in entries):
            reference = registry.reference()
            return {"engine": reference.name, **(reference.traits.reference_settings or {})}
        return {"device": "cpu"}


@contextmanager
def open_gallery(
    image: Path | None = None, engine: str | None = None, seed: int = DEFAULT_SEED
) -> Iterator[Gallery]:
    """Prepare a photograph.

    Args:
        image: An image file; by default a drawn face.
        engine: The engine that runs the steps.
        seed: The seed of the draws.

    Raises:
        GpupipeError: If the file cannot be read.
    """
    picture = synthetic_faces.draw_face(0, 6) if image is None else _open_photograph(image)
    with tempfile.TemporaryDirectory(prefix="gpupipe-gallery-") as folder:
        picture.save(Path(folder) / "photograph.png")
        samples = ["photograph.png"] * DRAWS
        yield Gallery(
            build(folder, samples, np.zeros(DRAWS, np.int64), ["photograph"]), engine, seed
        )


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


def _to_picture(image: Tensor) -> Image:
    """Convert an image (C, H, W), or several (N, C, H, W), side by side, to a picture."""
    if image.ndim not in (3, 4) or image.shape[-3] not in (1, 3):
        raise GpupipeError(f"an array of {tuple(image.shape)} is no image, and cannot be drawn")
    return join([to_picture(each) for each in to_levels(image.reshape(-1, *image.shape[-3:]))])


def _write_yaml(name: str, parameters: Mapping[str, Any]) -> str:
    if not parameters:
        return name
    written = ", ".join(f"{key}: {_write_value(value)}" for key, value in parameters.items())
    return f"{name}: {{{written}}}"


def _write_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_write_value(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write_value, value))}]"
    return (
        value
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else shown(value)
    )
