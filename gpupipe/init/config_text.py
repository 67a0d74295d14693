"""Writes the YAML of a config, with comments, for detected data."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import yaml

from gpupipe.dataset.source import SOURCES
from gpupipe.errors import counted, short
from gpupipe.init.box_columns import FORMATS
from gpupipe.init.detected import TRAIN, Detected
from gpupipe.init.survey import Survey

_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_SIZES = (224, 128, 96, 64, 32)
"""Sides of a crop in pixels; the config gets the largest that half of the images reach."""
_BOX_SIZES = (640, 512, 320, 128, 64, 32)
"""The same for the side of whole images with boxes."""
_SMALL = 64
"""Max side of small images. Small images of one size are padded, and cropped to that size."""
_BATCH_SIZE = 64
_RATIO = 256 / 224
"""Side before the centre crop / side after it, as in ImageNet's usual evaluation."""
_WIDTH = 100
_MANY = 8


def write_text(
    part: str, folder: str, detected: Detected, found: Survey, doubts: Sequence[str], schema: str
) -> str:
    """Return the text of a config.

    Args:
        part: "train" or "val".
        folder: The folder as the user named it.
        detected: The source and its options.
        found: The survey of the data.
        doubts: Sentences about uncertain choices, to write as comments.
        schema: The path of the JSON schema for editors, relative to the config's folder; "" if
            there is none.
    """
    data = {"source": detected.source} | detected.options
    if found.spec is not None and len(found.spec.layout) > 2:
        data["layout"] = found.spec.layout
    comments = [
        *([f"yaml-language-server: $schema={schema}"] if schema else []),
        f"Written by 'gpupipe init {folder}'.",
        *_describe(found),
        *(f"Not certain: {doubt}" for doubt in doubts),
        *([f"Not read: {detected.unused}"] if detected.unused else []),
    ]
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent="# ", subsequent_indent="#   ")
    list_steps = _list_image_steps if found.spec is None else _list_array_steps
    lines = [
        *(line for comment in comments for line in wrapper.wrap(comment)),
        *("data:", *(f"  {key}: {_format_value(value)}" for key, value in data.items())),
        *(_offer_boxes(detected) if detected.boxes else ()),
        *("pipeline:", *list_steps(part, found)),
        *("loader:", *_format_loader(part, found)),
    ]
    return "\n".join(lines) + "\n"


def describe_samples(found: Survey) -> str:
    """Return a phrase that states the number of samples and their classes."""
    count = counted(found.count, "sample")
    if found.masks:
        return f"{count} with masks"
    if found.has_boxes:
        return f"{count} with boxes of {counted(len(found.classes), 'class', 'classes')}"
    if not found.has_labels:
        return f"{count} without labels"
    names = ", ".join(found.classes[:_MANY]) + (", ..." if len(found.classes) > _MANY else "")
    return f"{count} in {counted(len(found.classes), 'class', 'classes')}: {short(names)}"


def _describe(found: Survey) -> Iterator[str]:
    yield describe_samples(found)
    if found.sizes:
        ends = (choose(found.sizes, key=math.prod) for choose in (min, max))
        smallest, largest = ("x".join(map(str, size)) for size in ends)
        sizes = smallest if smallest == largest else f"{smallest} to {largest}"
        kind = "Gray images" if found.is_gray else "Images"
        yield f"{kind} of {sizes} pixels (height x width), by {len(found.sizes)} of them."
    if found.spec is not None:
        shape = ", ".join("?" if n is None else str(n) for n in found.spec.shape)
        yield f"Arrays of {found.spec.dtype}, ({shape}), with the axes {found.spec.layout}."
        if found.spec.layout == "HWC":
            yield "A batch is (B, H, W, C); batch['array'].permute(0, 3, 1, 2) has channels first."


def _offer_boxes(detected: Detected) -> Iterator[str]:
    """Yield comments with the fields of boxes, of which the user chooses a format."""
    assert detected.boxes is not None
    fields = SOURCES.find(detected.source).model_fields["fields"].default
    images = detected.options.get("fields", fields)
    instead = ", in place of those above," if "fields" in detected.options else ""
    yield f"  # Remove '# ' from these fields{instead} to read boxes, and keep the right format:"
    yield "  # fields:"
    yield from (f"  #   {name}: {_format_value(place)}" for name, place in images.items())
    for format, meaning in FORMATS.items():
        column: dict[str, Any] = {"column": detected.boxes.boxes, "kind": "boxes", "format": format}
        column |= {"normalized": True} if detected.boxes.are_fractions else {}
        yield f"  #   boxes: {_format_value(column)}  # {meaning}"
    for name, path in detected.boxes.others.items():
        yield f"  #   {name}: {_format_value({'column': path, 'with': 'boxes'})}"


def _format_value(value: Any) -> str:
    """Return a value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    # YAML 1.1 takes a bare 'on' for a boolean; gpupipe reads YAML 1.2.
    return text.strip().removesuffix("\n...").strip().replace("'on': ", "on: ")


def _format_step(name: str, comment: str = "", **parameters: Any) -> str:
    text = f"  - {name}: {_format_value(parameters)}" if parameters else f"  - {name}"
    return f"{text}  # {comment}" if comment else text


def _list_image_steps(part: str, found: Survey) -> list[str]:
    mode = {"mode": "gray"} if found.is_gray else {}
    steps = [_format_step("decode", **mode)]
    if found.masks:
        steps.append(_format_step("decode", mode="gray", on=found.masks.field))
    steps += [_format_step(name, **options) for name, options in _list_geometry(part, found)]
    steps.append(_format_step("to_dtype", dtype="float32", scale=True))
    if found.masks and found.masks.is_binary:
        steps.append(
            _format_step("to_dtype", "0 and 1", dtype="float32", scale=True, on=found.masks.field)
        )
    elif found.masks:
        steps.append(_format_step("to_dtype", "the classes", dtype="int64", on=found.masks.field))
    if found.is_gray:
        return [*steps, _format_step("normalize", "to -1..1", mean=0.5, std=0.5)]
    return [*steps, _format_step("normalize", "the colours of ImageNet", **_IMAGENET)]


def _list_geometry(part: str, found: Survey) -> list[tuple[str, dict[str, Any]]]:
    """Return the steps, with options, that resize or crop all images and masks to one size."""
    on = {"on": ["image", found.masks.field]} if found.masks else {}
    flip = ("random_horizontal_flip", on)
    if found.has_boxes:
        # As SSD does: boxes follow, and all images of a batch have one size.
        side = median(min(size) for size in found.sizes) if found.sizes else _BOX_SIZES[0]
        length = next((size for size in _BOX_SIZES if size <= side), _BOX_SIZES[-1])
        return [*([flip] if part == TRAIN else []), ("resize", {"size": [length, length]})]
    sizes = set(found.sizes)
    is_uniform = len(sizes) == 1 and not (found.masks and found.masks.have_other_sizes)
    if is_uniform and max(next(iter(sizes))) <= _SMALL:
        size = list(sizes.pop())
        crop = {"size": size, "padding": max(1, size[0] // 8)} | on
        return [("random_crop", crop), flip] if part == TRAIN else []
    side = median(min(size) for size in found.sizes) if found.sizes else _SIZES[0]
    length = next((size for size in _SIZES if size <= side), _SIZES[-1])
    if part == TRAIN:
        # Half of the image at least, so that masks keep what they show.
        scale = {"scale": [0.5, 1.0]} if found.masks else {}
        return [("random_resized_crop", {"size": length} | scale | on), flip]
    resize = {"size": round(length * _RATIO)} | on
    return [("resize", resize), ("center_crop", {"size": length} | on)]


def _list_array_steps(part: str, found: Survey) -> list[str]:
    assert found.spec is not None
    steps = []
    if found.smallest:
        size = list(found.smallest)
        name = "random_crop" if part == TRAIN else "center_crop"
        steps.append(
            _format_step(name, "the smallest array", size=size if len(size) > 1 else size[0])
        )
    if not found.spec.dtype.startswith("float"):
        scale = found.spec.dtype != "bool"
        steps.append(_format_step("to_dtype", dtype="float32", scale=scale))
    return steps or ["  []"]


def _format_loader(part: str, found: Survey) -> Iterator[str]:
    size = min(_BATCH_SIZE, found.count)
    yield f"  batch_size: {size}"
    if part == TRAIN:
        yield "  last_batch: drop  # a last batch that is smaller is left out"
    else:
        yield "  shuffle: false"
    yield "  seed: 0  # of the order and of all random steps"
    yield "  device: auto  # the GPU, if there is one"
    if found.num_unreadable:
        few = counted(found.num_unreadable, "image")
        yield f"  on_error: skip  # {few} of those looked at cannot be read"
        yield "  max_bad: 0.1"
