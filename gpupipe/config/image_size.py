"""The override image_size: scales all sizes of a pipeline."""

from collections.abc import Iterator
from typing import Any

from gpupipe.errors import ConfigError, shown
from gpupipe.pipeline.build import list_step_lists
from gpupipe.pipeline.parsing import split_item
from gpupipe.pipeline.schedule_parsing import is_schedule
from gpupipe.schema.document import Document, Loc
from gpupipe.schema.field_types import is_number, is_whole

IMAGE_SIZE = "image_size"
"""The override that scales all sizes of a pipeline."""
_PIPELINE = ("pipeline",)
_SIZES = ("size", "target_size", "min_size", "max_size")
"""The parameters of steps that are sides of an image in pixels."""
_MAX_SIDE = 65535


def scale_sizes(document: Document, image_size: Any, location: str) -> None:
    """Scale all sizes of the pipeline, so that its largest image has the side `image_size`.

    The largest image is that of the largest `size` among the last steps with a size: one such step
    ends the pipeline, or each of its views. A pipeline `resize: {size: 256}`,
    `center_crop: {size: 224}` becomes 128 and 112 for an `image_size` of 112.

    Args:
        document: The config, with the steps of its pipeline.
        image_size: The new side, in pixels: 1 to 65535.
        location: The location of the override.

    Raises:
        ConfigError: `image_size` is no such number, or no step has a size.
    """
    if not is_whole(image_size) or not 1 <= image_size <= _MAX_SIDE:
        rule = f"should be the side of an image in pixels, 1 to {_MAX_SIDE}"
        raise ConfigError.at(location, f"{IMAGE_SIZE} is {shown(image_size)}, but {rule}")
    lists = [list(_find_sizes(document, loc)) for loc in list_step_lists(document, _PIPELINE)]
    if not any(lists):
        raise ConfigError.at(location, f"{IMAGE_SIZE}: no step of the pipeline has a size to scale")
    largest = max(number for sizes in lists if sizes for number in _last_sizes(sizes))
    for loc, number in (size for sizes in lists for size in sizes):
        # At least 1: a small crop beside a large one must stay an image.
        document.replace(loc, max(1, round(number * image_size / largest)), location)


def _last_sizes(sizes: list[tuple[Loc, float]]) -> list[float]:
    """Return the sizes of the last step of a list: those whose path begins like the last one's."""
    end = len(_PIPELINE) + next(i for i, key in enumerate(sizes[-1][0][1:]) if isinstance(key, int))
    return [number for loc, number in sizes if loc[: end + 1] == sizes[-1][0][: end + 1]]


def _find_sizes(document: Document, steps: Loc) -> Iterator[tuple[Loc, float]]:
    """Yield the path and the value of each number that is a size in a list of steps."""
    items = document.at(steps)
    for number, item in enumerate(items if isinstance(items, list) else []):
        name, parameters = split_item(item)
        if isinstance(parameters, dict):
            loc = (*steps, number, name)
            yield from _find_sizes(document, (*loc, "transforms"))
            for key in _SIZES:
                yield from _find_numbers(parameters.get(key), (*loc, key))


def _find_numbers(value: Any, loc: Loc) -> Iterator[tuple[Loc, float]]:
    if is_number(value):
        yield loc, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _find_numbers(item, (*loc, number))
    elif is_schedule(value):
        for key in ("value", "then", "from", "to"):
            yield from _find_numbers(value.get(key), (*loc, key))
