"""python: A data set of the user's, any object with `__len__` and `__getitem__`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pydantic
from pydantic import AfterValidator, Field, PlainSerializer, PrivateAttr, WithJsonSchema

from gpupipe.dataset.columns import Column
from gpupipe.dataset.given_dataset import GivenDataset, count_items, fingerprint_dataset
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.source import DecodedCacheOptions, Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.schema.field_types import NUMBER, WHOLE, should_be
from gpupipe.schema.function_name import is_name
from gpupipe.sources.helpers.coco_specs import COCO_SPECS
from gpupipe.sources.helpers.dataset_origin import DatasetOrigin
from gpupipe.sources.helpers.item_parts import AUTO, LABEL, PartChoice
from gpupipe.sources.helpers.item_reader import ItemColumn, ItemReader, explain_object, number_names
from gpupipe.sources.helpers.item_workers import ItemWorkers
from gpupipe.sources.helpers.known_datasets import (
    Labels,
    SampleFiles,
    find_files,
    find_labels,
    list_classes,
)
from gpupipe.sources.helpers.torchvision_sets import (
    build_index_of_coco,
    find_image_folder,
    find_targets,
)


def _check_call(value: Any) -> Any:
    if isinstance(value, GivenDataset) or is_name(value):
        return value
    raise should_be("'module:name' of a class or function that returns a data set")


def _name_call(call: Any) -> str:
    return call.name if isinstance(call, GivenDataset) else str(call)


class PythonDataset(Source):
    """A data set of one's own: a class with `__len__` and `__getitem__`, as torch's Datasets are.

    An item is an image, or a tuple or dict with images, arrays, numbers and a label. Images are the
    bytes of an image file, a path, or a PIL image; the pipeline decodes them. Arrays, tensors and
    numbers have one dtype and shape in all items. What an item has is learned from item 0.

    load() also takes a data set itself. The labels of a list, and of a data set of Hugging Face,
    are known at once; those of others come with their items.

    Attributes:
        call: The class, or a function that returns the data set, as "module:name". The module lies
            beside the YAML file, or Python can import it.
        args: Keyword arguments of the class or function.
        fields: The part of an item that each field of a batch is: {FIELD: KEY}. KEY is a key of a
            dict, or a position in a tuple. The first field is the one that steps work on. null: all
            parts, by their keys; the image of a tuple is called `image`.
        label: The key of the label, a whole number. null: there is none. auto: the key `label`, or
            the first whole number of a tuple.
        workers: The number of processes that read items; each opens the data set. 0: threads of
            this process, one at a time.
        timeout: With workers: seconds after which a read of some items is ended.
    """

    name: ClassVar[str] = "python"
    separate_files: ClassVar[bool] = False
    delivers_labels: ClassVar[bool] = True

    call: Annotated[
        Any,
        AfterValidator(_check_call),
        PlainSerializer(_name_call, return_type=str),
        WithJsonSchema({"type": "string"}),
    ]
    args: dict[str, Any] = Field(default={})
    fields: Annotated[dict[str, str | int], Field(min_length=1)] | None = None
    label: str | int | None = AUTO
    workers: Annotated[int, Field(ge=0, le=1024), WHOLE] = 0
    timeout: Annotated[float, Field(gt=0, le=86_400), NUMBER] = 60.0

    _folder: Path | None = PrivateAttr(None)
    _open: "_OpenDataset | None" = PrivateAttr(None)

    @pydantic.model_validator(mode="after")
    def _keep_folder(self, info: pydantic.ValidationInfo) -> Self:
        self._folder = (info.context or {}).get("folder")
        return self

    @pydantic.model_validator(mode="after")
    def _names_are_free(self) -> Self:
        """Leave the names to `PartChoice.learn`: they are known when the data set is open."""
        return self

    @pydantic.field_validator("cache_decoded")
    @classmethod
    def _keeps_nothing(cls, options: DecodedCacheOptions | None) -> DecodedCacheOptions | None:
        if options is not None:
            raise ValueError("nothing says when an item of a data set changes: leave it out")
        return options

    @property
    def _opened(self) -> "_OpenDataset":
        """The data set, which is opened once. Raises DataError if it cannot be."""
        if self._open is None:
            origin = DatasetOrigin(self.call, self.args, self._folder)
            choice = PartChoice(self.fields, self.label)
            self._open = _OpenDataset.of(origin, choice, self.workers, self.timeout)
        return self._open

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.specs()), ("image_id",) if self._opened.boxes is not None else ()

    def annotation_specs(self) -> dict[str, Spec]:
        return dict(COCO_SPECS) if self._opened.boxes is not None else {}

    def specs(self) -> dict[str, Spec]:
        return self._opened.specs()

    def index(self, progress: Progress = ignore_progress) -> Index:
        return self._opened.index()

    def read_through(self, index: Index) -> Index:
        """Return the index, if other machines can open the data set, too.

        Raises:
            ConfigError: It is an object, whose items only this process has.
        """
        if isinstance(self.call, GivenDataset) and self._opened.reader is not None:
            raise ConfigError.at("loader.engine", explain_object(self.call.name))
        return index

    def release(self) -> None:
        if self._open is not None and self._open.workers is not None:
            self._open.workers.close()


@dataclass(frozen=True)
class _OpenDataset:
    """An open data set: the files of its samples, or the reader of its items.

    Attributes:
        name: Its name in messages.
        dataset: The data set.
        files: The samples, if the data set is a list of files, or an ImageFolder.
        boxes: The samples of a CocoDetection.
        reader: Reads the items of any other data set.
        labels: The labels, if they are known without reading the items.
        workers: The processes that read the items, if there are any.
    """

    name: str
    dataset: Any
    files: SampleFiles | None = None
    boxes: Index | None = None
    reader: ItemReader | None = None
    labels: Labels | None = None
    workers: ItemWorkers | None = None

    @classmethod
    def of(
        cls, origin: DatasetOrigin, choice: PartChoice, count: int, timeout: float
    ) -> "_OpenDataset":
        dataset = origin.open()
        count_items(dataset, origin.name)
        if choice == PartChoice():
            files = find_files(dataset, origin.name) or find_image_folder(dataset)
            boxes = build_index_of_coco(dataset)
            if files is not None or boxes is not None:
                return cls(origin.name, dataset, files, boxes)
        reader = ItemReader(origin, choice, dataset)
        label = next((part for part in reader.parts if part.name == LABEL), None)
        labels = None
        if label is not None:
            labels = find_labels(dataset, label, origin.name) or find_targets(dataset)
        if labels is not None:  # no column reads them, so they would wait forever
            choice = choice.without_label(reader.parts)
        workers = ItemWorkers(origin, choice, count, timeout) if count else None
        if labels is not None or workers is not None:
            reader = ItemReader(origin, choice, dataset, workers)
        return cls(origin.name, dataset, reader=reader, labels=labels, workers=workers)

    def specs(self) -> dict[str, Spec]:
        if self.reader is None:
            return {"image": Spec()}
        return {part.name: part.spec for part in self.reader.parts}

    def index(self) -> Index:
        if self.files is not None:
            return self.files.build_index()
        if self.boxes is not None:
            return self.boxes
        assert self.reader is not None
        count = self.reader.count
        text = fingerprint_dataset(self.dataset, self.name, count)
        columns: dict[str, Column] = {
            part.name: ItemColumn(self.reader, part.name, text, part.layout)
            for part in self.reader.parts
        }
        labels, classes = self.labels or (None, list_classes(self.dataset))
        return build("", number_names(count), labels, classes, columns=columns)
