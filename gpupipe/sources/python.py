"""python: a data set of the user's, any object with `__len__` and `__getitem__`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import AfterValidator, Field, PlainSerializer, PrivateAttr, WithJsonSchema
from typing_extensions import Self

from gpupipe.dataset.columns import Column
from gpupipe.dataset.given_dataset import GivenDataset, count_items, fingerprint_dataset
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.source import DecodedCacheOptions, Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.schema.field_types import should_be
from gpupipe.sources.helpers.item_parts import AUTO, LABEL, Part, PartChoice
from gpupipe.sources.helpers.item_reader import (
    DatasetOrigin,
    ItemColumn,
    ItemReader,
    explain_object,
    number_names,
)
from gpupipe.sources.helpers.known_datasets import (
    Labels,
    SampleFiles,
    find_files,
    find_labels,
    leave_encoded,
    list_classes,
)


def _check_call(value: Any) -> Any:
    if isinstance(value, GivenDataset):
        return value
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module or not name or module.startswith("."):
        raise should_be("'module:name' of a class or function that returns a data set")
    return value


def _name_call(call: Any) -> str:
    return call.name if isinstance(call, GivenDataset) else str(call)


class Python(Source):
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

    _folder: Path | None = PrivateAttr(None)
    _open: _OpenDataset | None = PrivateAttr(None)

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
    def _opened(self) -> _OpenDataset:
        """The data set, which is opened once. Raises DataError if it cannot be."""
        if self._open is None:
            origin = DatasetOrigin(self.call, self.args, self._folder)
            choice = PartChoice(self.fields, self.label)
            self._open = _OpenDataset.of(origin, choice)
        return self._open

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.specs()), ()

    def specs(self) -> dict[str, Spec]:
        return self._opened.specs()

    def index(self, progress: Progress = ignore_progress) -> Index:
        return self._opened.index()

    def read_through(self, index: Index) -> Index:
        """Return the index, if other machines can open the data set, too.

        Raises:
            ConfigError: It is an object, whose items only this process has.
        """
        if isinstance(self.call, GivenDataset) and self._opened.files is None:
            raise ConfigError.at("loader.engine", explain_object(self.call.name))
        return index


@dataclass(frozen=True)
class _OpenDataset:
    """An open data set: the files of its samples, or the reader of its items.

    Attributes:
        name: Its name in messages.
        dataset: The data set.
        files: The samples, if the data set is a list of files.
        reader: Reads the items of any other data set.
        labels: The labels, if they are known without reading the items.
    """

    name: str
    dataset: Any
    files: SampleFiles | None = None
    reader: ItemReader | None = None
    labels: Labels | None = None

    @classmethod
    def of(cls, origin: DatasetOrigin, choice: PartChoice) -> _OpenDataset:
        dataset = leave_encoded(origin.open())
        count_items(dataset, origin.name)
        if choice == PartChoice() and (files := find_files(dataset, origin.name)):
            return cls(origin.name, dataset, files)
        reader = ItemReader(origin, choice, dataset)
        label = next((part for part in reader.parts if part.name == LABEL), None)
        labels = None if label is None else find_labels(dataset, label, origin.name)
        return cls(origin.name, dataset, reader=reader, labels=labels)

    @property
    def parts(self) -> list[Part]:
        """The parts of an item that columns read."""
        assert self.reader is not None
        return [p for p in self.reader.parts if p.name != LABEL or self.labels is None]

    def specs(self) -> dict[str, Spec]:
        if self.files is not None:
            return {"image": Spec()}
        return {part.name: part.spec for part in self.parts}

    def index(self) -> Index:
        if self.files is not None:
            return self.files.build_index()
        assert self.reader is not None
        count = self.reader.count
        text = fingerprint_dataset(self.dataset, self.name, count)
        columns: dict[str, Column] = {
            part.name: ItemColumn(self.reader, part.name, text, part.layout) for part in self.parts
        }
        labels, classes = self.labels or (None, list_classes(self.dataset))
        return build("", number_names(count), labels, classes, columns=columns)
