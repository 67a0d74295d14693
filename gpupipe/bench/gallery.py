"""Draws what steps do to a photograph: the original, and eight draws of each step.

Each step runs in an engine, as in a loader: eight samples of one file, whose draws differ.
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
from gpupipe.bench.measure import image_of
from gpupipe.config import Config
from gpupipe.dataset.index import Index, build
from gpupipe.engines import registry
from gpupipe.errors import ConfigError, GpupipeError, shown
from gpupipe.fetch import synthetic_faces
from gpupipe.loader import create_loader
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.entry import Entry

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

DRAWS = 8
"""How many draws of a step are shown."""
LONGEST = 250
"""The longest side of the photograph in pixels; a larger one is reduced before the steps."""
_GAP = 6
_TITLE_HEIGHT = 18
_LETTER_WIDTH = 6
_FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


@dataclass(frozen=True)
class StepPictures:
    """What one step does to the photograph.

    Attributes:
        name: The name of the page, without a suffix.
        title: The step as YAML.
        images: The original, then the draws: eight, or one if the step draws nothing.
    """

    name: str
    title: str
    images: list[Image]


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
    seed: int = 0

    def draw_step(self, name: str, parameters: Mapping[str, Any] | None = None) -> StepPictures:
        """Run one step after decode; on floats, if the step does not take levels.

        Args:
            name: The step's name.
            parameters: Its parameters; by default `Step.example`.

        Raises:
            ConfigError: If a parameter is wrong, or the step takes no such images.
            EngineError: If the engine cannot run the step.
            GpupipeError: If the step needs parameters, and has no example.
        """
        model = step_registry.find(name)
        chosen = dict(model.example if parameters is None else parameters)
        required = [key for key, info in model.model_fields.items() if info.is_required()]
        if parameters is None and not chosen and required:
            raise GpupipeError(
                f"{name} has no example for its parameters: write '{name}: {{{required[0]}: ...}}'"
            )
        item = {name: chosen} if chosen else name
        try:
            checked = self._read([item] if name == "decode" else ["decode", item])
        except ConfigError as refusal:
            try:
                checked = self._read(["decode", _FLOATS, item])
            except ConfigError:
                raise refusal from None
        return self._draw(name, _write_yaml(name, chosen), checked)

    def draw_pipeline(self, name: str) -> list[StepPictures]:
        """Run a pipeline up to each of its steps.

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

    def _read(self, pipeline: str | list[Any]) -> Config:
        return configs.read(
            {
                "data": {"source": "folder", "root": self.index.root},
                "pipeline": pipeline,
                "loader": {"batch_size": 1, "shuffle": False, "seed": self.seed, "ids": True},
            }
        )

    def _draw(self, name: str, title: str, checked: Config) -> StepPictures:
        has_draws = any(entry.step.num_uniforms for entry in checked.pipeline.entries)
        original = replace(checked, pipeline=checked.pipeline.first_steps(1))
        images = self._run(original, 1) + self._run(checked, DRAWS if has_draws else 1)
        return StepPictures(name, title, images)

    def _run(self, checked: Config, count: int) -> list[Image]:
        settings = self._choose_engine(checked.pipeline.entries)
        part = replace(checked, loader=checked.loader.model_copy(update=settings))
        with create_loader(part, self.index) as batches:
            return [
                _to_picture(image_of(batch)[0].cpu())
                for batch, _ in zip(batches, range(count), strict=False)
            ]

    def _choose_engine(self, entries: Sequence[Entry]) -> dict[str, Any]:
        if self.engine is not None:
            return {"engine": self.engine}
        if all(entry.step.has_torch for entry in entries):
            reference = registry.reference()
            return {"engine": reference.name, **(reference.reference_settings or {})}
        return {"engine": registry.preferred(), "device": "cpu"}


@contextmanager
def open_gallery(
    image: Path | None = None, engine: str | None = None, seed: int = 0
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


def draw_page(rows: Sequence[StepPictures], side: int) -> Image:
    """Draw rows below each other, with their titles; `side` is that of a picture in pixels."""
    from PIL import Image, ImageDraw

    page = Image.new("RGB", page_size(len(rows), side), "white")
    draw = ImageDraw.Draw(page)
    for n, row in enumerate(rows):
        top = _GAP + n * (_TITLE_HEIGHT + side + _GAP)
        letters = (page.width - 2 * _GAP) // _LETTER_WIDTH
        title = row.title if len(row.title) <= letters else f"{row.title[: letters - 3]}..."
        draw.text((_GAP, top), title.encode("ascii", "replace").decode(), fill="black")
        scale = side / max(row.images[0].size)
        for column, image in enumerate(row.images):
            tile = _fit(image, scale, side)
            left = _GAP + column * (side + _GAP)
            page.paste(tile, (left, top + _TITLE_HEIGHT))
    return page


def page_size(rows: int, side: int) -> tuple[int, int]:
    """Return the width and height of a page of so many rows."""
    width = _GAP + (DRAWS + 1) * (side + _GAP)
    return width, _GAP + rows * (_TITLE_HEIGHT + side + _GAP)


def _fit(image: Image, scale: float, side: int) -> Image:
    """Reduce an image as the original is reduced; more, if it would be larger than `side`."""
    from PIL import Image

    scale = min(scale, side / max(image.size))
    size = tuple(max(1, round(n * scale)) for n in image.size)
    return image.resize((size[0], size[1]), Image.Resampling.BILINEAR)


def _to_picture(image: Tensor) -> Image:
    """Convert an image (C, H, W), or several (N, C, H, W), side by side, to a picture.

    Floats from 0 to 1 are shown as 0 to 255. Other floats are stretched to black and white.
    """
    import torch
    from PIL import Image

    if image.ndim == 4:
        image = torch.cat(list(image), -1)
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise GpupipeError(f"an array of {tuple(image.shape)} is no image, and cannot be drawn")
    pixels = image.double()
    if image.dtype.is_floating_point:
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or high > 1:
            pixels = (pixels - low) / max(high - low, 1e-9)
        pixels = pixels * 255
    levels = pixels.round().clamp(0, 255).byte().permute(1, 2, 0)
    return Image.fromarray(levels.expand(-1, -1, 3).contiguous().numpy())


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
