"""Describes the fields of a batch without reading a pixel: names, dtypes and shapes."""

import re
from collections.abc import Iterator

from gpupipe.annotations.batch_annotations import list_ragged
from gpupipe.annotations.checks import describe_values
from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.dataset.labels import is_zero_free

_RULES = {
    "equal": "so all images must have the same",
    "list": "so images are delivered as a list",
    "padded": "so images are padded, with a mask and their sizes",
}
_FRACTIONS = "boxes are [center x, center y, width, height] in fractions of the image"


def describe_batch(config: Config, index: Index) -> str:
    """Return the names, dtypes and shapes of a batch in the format of `loader:`."""
    pipeline = config.pipeline
    main, *_ = pipeline.main_outputs
    image = describe_field(config, main)
    fields = [describe_field(config, name) for name in pipeline.outputs if name != main]
    fields += _list_sizes(config)
    # Absent data have an index without samples. Boxes seldom come with a class of the sample.
    if index.has_labels and (len(index) or not pipeline.annotations):
        fields += [f"label {'float32 (B, classes)' if config.batch.uses_labels else 'int64 (B,)'}"]
    for name, values in index.values.items():
        shape = ", ".join(["B", *map(str, values.shape[1:])])
        fields += [f"{name} {values.dtype} ({shape}{',' if values.ndim == 1 else ''})"]
    fields += _list_annotations(config)
    if pipeline.annotations:
        fields += describe_values(pipeline)
    unequal = [name for name in pipeline.outputs if None in pipeline.output_spec_of(name).shape]
    of = "" if unequal == list(pipeline.main_outputs) else f" of {' and '.join(unequal)}"
    rule = f"; no step fixes the size{of}, {_RULES[_find_shapes(config)]}" if unequal else ""
    return _arrange(config, index, image, fields) + rule


def describe_field(config: Config, name: str) -> str:
    """Return name, dtype, shape and memory format of a field of a batch."""
    spec = config.pipeline.output_spec_of(name)
    dtype, memory = spec.dtype, ""
    if name in config.pipeline.main_outputs:
        dtype = config.loader.dtype or dtype
        if config.pipeline.is_image_file(name):
            memory = f" {config.loader.memory_format}"
    sizes = zip(spec.layout, spec.shape, strict=True)
    shape = ", ".join(["B", *(axis if size is None else str(size) for axis, size in sizes)])
    return f"{name} {dtype} ({shape}){memory}"


def _arrange(config: Config, index: Index, image: str, fields: list[str]) -> str:
    """Return the description of a batch, whose fields but the first are perhaps in targets."""
    if not _has_targets(config):
        return ", ".join([image, *fields])
    name, _, rest = image.partition(" ")
    target = ", ".join(map(_take_one, fields))
    if config.loader.format == "torchvision":
        background = "torchvision's detectors count the background as 0"
        labels = f"labels + 1, since {background}"
        if is_zero_free(index.classes):
            labels = f"labels as they are: {background}, and no class has that number"
        return f"list of {_take_one(rest)}, list of dicts of {target}; {labels}"
    target += ", size int64 (2)"
    if config.loader.format == "detr":
        whole = f"{name} {rest}, mask bool (B, H, W), targets list of dicts of {target}"
        return f"{whole}; the mask is true on padding, and {_FRACTIONS}"
    target = re.sub(r"\blabels ", "class_labels ", target)
    mask = "pixel_mask int64 (B, H, W)"
    return f"pixel_values {rest}, {mask}, labels list of dicts of {target}; {_FRACTIONS}"


def _has_targets(config: Config) -> bool:
    """Return whether a batch has a dict of boxes and all else for each image."""
    has_boxes = any(spec.kind == "boxes" for spec in config.pipeline.annotations.values())
    format = config.loader.format
    return format in ("torchvision", "detr") or (format == "huggingface" and has_boxes)


def _take_one(field: str) -> str:
    """Return the description of one sample's share of a field, whose first axis is B."""
    return field.replace(" (B,)", "").replace("(B, ", "(").replace(" (B)", "")


def _find_shapes(config: Config) -> str:
    """Return how images of several sizes are delivered: formats for detectors know one way."""
    loader = config.loader
    if loader.shapes == "equal" or not _has_targets(config):
        return loader.shapes
    return "list" if loader.format == "torchvision" else "padded"


def _list_sizes(config: Config) -> Iterator[str]:
    """Yield the mask and the sizes of each field of padded images."""
    pipeline = config.pipeline
    if _find_shapes(config) != "padded":
        return
    for name in filter(pipeline.is_image_file, pipeline.outputs):
        if name != pipeline.main_outputs[0] or not _has_targets(config):
            yield f"{name}_mask bool (B, H, W)"
            yield f"{name}_sizes int64 (B, 2)"


def _list_annotations(config: Config) -> Iterator[str]:
    """Yield name, dtype and shape of each field of annotations of a batch."""
    loader = config.loader
    with_visibility = set()
    ragged = list_ragged(config.pipeline)
    if loader.format == "torchvision":
        with_visibility = {s.annotation.visibility_of for s in ragged.values() if s.annotation}
    for name, spec in ragged.items():
        assert spec.annotation is not None
        sizes = zip(spec.layout[1:], spec.shape[1:], strict=True)
        row = [axis if size is None else str(size) for axis, size in sizes]
        if _has_targets(config):
            if loader.format == "torchvision" and spec.annotation.visibility_of:
                continue
            kind = "BoundingBoxes " * (loader.format == "torchvision" and spec.kind == "boxes")
            row[-1:] = ["3 with visibility"] if name in with_visibility else row[-1:]
            yield f"{name} {kind}{spec.dtype} ({', '.join(['N', *row])})"
        elif loader.format != "dict" or loader.targets == "list":
            yield f"{name} list of {spec.dtype} ({', '.join(['N', *row])})"
        elif loader.targets == "padded":
            yield f"{name} {spec.dtype} ({', '.join(['B', 'N', *row])})"
            if not spec.annotation.rows_with:
                yield f"num_{name} int64 (B,)"
        else:
            yield f"{name} Ragged {spec.dtype} ({', '.join(['sum of N', *row])})"
