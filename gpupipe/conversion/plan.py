"""How each field of a data set is stored in shards; refuses what the format cannot hold."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np

from gpupipe.config import Config
from gpupipe.dataset.columns import ArrayLayout
from gpupipe.dataset.index import Index
from gpupipe.dataset.list_columns import (
    LABELS,
    VISIBILITY,
    ListColumn,
    find_default_dtype,
    list_annotation_specs,
)
from gpupipe.dataset.shards import array_spec
from gpupipe.dataset.spec import Spec
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.errors import ConfigError
from gpupipe.loading.sample_selection import select_samples

Format = Literal["tar", "parquet"]
LABEL = "label"
"""The field of labels that a source reads with its samples."""
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MAX_VALUES = 1024


@dataclass(frozen=True)
class Options:
    """What the user asks for.

    Attributes:
        format: "tar" or "parquet".
        max_side: The longest side of an image in pixels; larger images are encoded again. None:
            images keep their bytes.
        quality: The quality of JPEGs that are encoded again, 1 to 100.
        raw: Whether images are decoded, and stored as arrays.
        shard_bytes: About how many bytes a shard has.
    """

    format: Format = "tar"
    max_side: int | None = None
    quality: int = 90
    raw: bool = False
    shard_bytes: int = 256_000_000


@dataclass(frozen=True)
class StoredField:
    """A field of image files or arrays in the shards.

    Attributes:
        name: The name of the field.
        layout: The dtype and the shapes of arrays; None for image files.
        axes: The letter of each axis of an array.
        decode: How the image files are decoded, with `Options.raw`; else None.
        is_mask: Whether its numbers are classes.
    """

    name: str
    layout: ArrayLayout | None
    axes: str = ""
    decode: DecodeOptions | None = None
    is_mask: bool = False

    @property
    def is_array(self) -> bool:
        """Whether the shards hold arrays."""
        return self.layout is not None or self.decode is not None

    @property
    def spec(self) -> Spec:
        """The spec of the field when the shards are read."""
        if self.decode is not None:
            channels = 3 if self.decode.mode == "rgb" else 1
            return Spec.of_array(self.decode.dtype, (channels, None, None), "CHW")
        if self.layout is None:
            return Spec()
        shape = self.layout.shape_of(0)
        return array_spec(self.layout.dtype, shape, self.layout.shape is not None, self.axes)


@dataclass(frozen=True)
class StoragePlan:
    """How the samples of a data set are stored.

    Attributes:
        options: What the user asks for.
        fields: The fields of image files or arrays, the main one first.
        has_label: Whether each sample has a label.
        values: The names of further numbers.
        lists: The fields of lists, by name, as the source of the shards reads them.
        classes: The names of the classes; () if the labels name them.
    """

    options: Options
    fields: tuple[StoredField, ...]
    has_label: bool
    values: tuple[str, ...]
    lists: Mapping[str, ListColumn]
    classes: tuple[str, ...]

    @property
    def masks(self) -> list[str]:
        """The fields whose numbers are classes."""
        return [field.name for field in self.fields if field.is_mask]

    def options_of_source(
        self, shards: str, endings: Mapping[str, Sequence[str]], classes: str = ""
    ) -> dict[str, Any]:
        """Return the options of the source that reads the shards, as in YAML.

        Args:
            shards: The pattern of the shards.
            endings: The endings of the members of each field in a tar.
            classes: The file with the names of the classes, if there is one.
        """
        is_tar = self.options.format == "tar"
        fields: dict[str, Any] = {}
        for field in self.fields:
            if field.is_array:
                fields[field.name] = self._describe_array(field, is_tar)
            elif not is_tar:
                fields[field.name] = field.name
            else:
                several = list(endings.get(field.name) or ["jpg"])
                fields[field.name] = several if len(several) > 1 else several[0]
        for name, column in self.lists.items():
            fields[name] = column.model_dump(by_alias=True, exclude_defaults=True, mode="json")
        label = "cls" if is_tar else LABEL
        prefix = "json:" if is_tar else ""
        options: dict[str, Any] = {
            "shards": shards,
            "fields": fields,
            "label": label if self.has_label else None,
        }
        if self.values:
            options["values"] = {name: prefix + name for name in self.values}
        if self.classes and classes:
            options["classes"] = classes
        if self.masks:
            options["masks"] = self.masks
        return options

    def _describe_array(self, field: StoredField, is_tar: bool) -> dict[str, Any]:
        spec = field.spec
        place = {"member": self.find_ending(field, "npy")} if is_tar else {"column": field.name}
        described: dict[str, Any] = {**place, "dtype": spec.dtype}
        if not is_tar or any(n is not None for n in spec.shape):
            described["shape"] = list(spec.shape)
        if array_spec(spec.dtype, [1] * len(spec.shape)).layout != spec.layout:
            described["layout"] = spec.layout
        return described

    def find_ending(self, field: StoredField, kind: str) -> str:
        """Return the ending of the members of a field in a tar, whose format has the ending `kind`.

        Members of the main field end in jpg or npy, members of another in mask.png.
        """
        return kind if field is self.fields[0] else f"{field.name}.{kind}".lower()


def plan_storage(config: Config, index: Index, options: Options) -> StoragePlan:
    """Return how the samples of a config are stored.

    Raises:
        ConfigError: The format cannot hold a field, or the options do not fit the data.
    """
    if select_samples(config, index).mixture is not None:
        _refuse("data.parts have weights, which shards do not: convert each part alone")
    fields = tuple(
        _plan_field(config, index, name, spec, options)
        for name, spec in config.source.field_specs().items()
        if name != LABEL
    )
    plan = StoragePlan(
        options,
        fields,
        LABEL in index.columns or (index.has_labels and len(index) > 0),
        tuple(index.values),
        _plan_lists(config, index, options.format, fields[0].name),
        _find_classes(index),
    )
    _check_names(plan)
    _check_values(plan, index)
    if options.raw and not any(field.decode for field in fields):
        _refuse("--raw is for image files, and the fields are arrays: leave it out")
    if plan.classes and not plan.has_label and LABELS not in plan.lists:
        _refuse(f"the names of {len(plan.classes)} classes belong to no label: nothing holds them")
    return plan


def _plan_field(
    config: Config, index: Index, name: str, spec: Spec, options: Options
) -> StoredField:
    layout = index.columns[name].array
    decode = None
    if options.raw and layout is None:
        step: Any = next((entry.step for entry in config.pipeline.entries_on(name)), None)
        decode = getattr(step, "options", DecodeOptions())
    field = StoredField(name, layout, spec.layout, decode, spec.kind == "mask")
    if layout is not None and not spec.shape:
        _refuse(f"the field '{name}' is one number a sample, which is no array of shards")
    stored = replace(field.spec, kind=spec.kind)
    if decode is None and stored != spec:
        _refuse(f"the field '{name}' is {spec}, and would be {stored} in {options.format}")
    return field


def _plan_lists(
    config: Config, index: Index, format: Format, image: str
) -> Mapping[str, ListColumn]:
    specs = config.source.annotation_specs()
    prefix = "json:" if format == "tar" else ""
    lists = {}
    for name, spec in specs.items():
        assert spec.annotation is not None
        if spec.annotation.visibility_of:
            continue  # it is stored with its points
        column = index.annotations[name]
        settings: dict[str, Any] = {"column": prefix + name, "normalized": column.is_normalized}
        if spec.kind == "boxes":
            settings |= {"kind": "boxes", "format": "xyxy"}
        else:
            settings["with"] = spec.annotation.rows_with
        if spec.kind == "array" and len(spec.shape) == 1 and spec.dtype != find_default_dtype(name):
            settings["dtype"] = spec.dtype
        if spec.kind == "points":
            notes = [other.annotation for other in specs.values()]
            seen = [note.visibility_of for note in notes if note is not None]
            settings |= {
                "kind": "points",
                "format": "xyv" if name in seen else "xy",
                "count": column.values.shape[1],
                "flip_pairs": spec.annotation.flip_pairs,
            }
        try:
            lists[name] = ListColumn.model_validate(settings)
        except ValueError as e:
            reason = str(e).splitlines()[2].strip().partition(", ")[2].partition(" [")[0]
            _refuse(f"the field '{name}' is {spec}, which {format} cannot hold: {reason}")
    stored = list_annotation_specs(lists, image) if lists else {}
    for name, spec in specs.items():
        other = stored.get(name)
        if other is not None and spec.kind == "points":
            other = replace(other, shape=spec.shape)
        if other is not None and name == VISIBILITY:
            other = replace(other, shape=spec.shape)
        if other != spec:
            _refuse(f"the field '{name}' is {spec}, and {format} cannot hold it as such: {other}")
    return lists


def _find_classes(index: Index) -> tuple[str, ...]:
    """Return the names of the classes; () if they are the numbers of the labels."""
    labels = index.labels if index.has_labels else index.annotations.get(LABELS)
    values = labels if isinstance(labels, np.ndarray) else getattr(labels, "values", np.empty(0))
    count = int(np.max(values, initial=-1)) + 1
    numbers = [str(number) for number in range(count)]
    return () if index.classes == numbers else tuple(index.classes)


def _check_names(plan: StoragePlan) -> None:
    names = [field.name for field in plan.fields] + [*plan.values, *plan.lists]
    for name in names:
        if not _NAME.fullmatch(name):
            _refuse(f"the field '{name}' should have a name of letters, digits, - and _")
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None:
        _refuse(f"there is more than one field '{twice}', in upper or lower case")
    broken = next((name for name in plan.classes if "\n" in name or "\r" in name), None)
    if broken is not None:
        _refuse(f"the class {broken!r} has a line break in its name")


def _check_values(plan: StoragePlan, index: Index) -> None:
    for name in plan.values:
        array = index.values[name]
        widest = _MAX_VALUES if plan.options.format == "tar" else 0
        if array.dtype not in (np.dtype(np.int64), np.dtype(np.float64)):
            _refuse(f"the value '{name}' is of {array.dtype}, and is read as int64 or float64")
        if array.ndim > 2 or (array.ndim == 2 and array.shape[1] > widest):
            what = f"has {array.shape[1:]} numbers a sample"
            _refuse(f"the value '{name}' {what}, more than {plan.options.format} holds")


def _refuse(why: str) -> NoReturn:
    raise ConfigError.at("data", why)
