"""webdataset: samples in tar shards as WebDataset writes them.

Members with the same stem are one sample.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset.labels import SampleTexts, read_label, stack_values
from gpupipe.dataset.list_annotations import AnnotatedShards
from gpupipe.dataset.list_columns import ListColumn, check_fields, find_label, split_fields
from gpupipe.dataset.npy_fields import ArrayFormat, locate_arrays, read_header
from gpupipe.dataset.reading import map_file
from gpupipe.dataset.shards import ByteRanges, ShardFile, array_spec, name_shard
from gpupipe.errors import DataError, counted, shown
from gpupipe.formats import npy, tar
from gpupipe.formats.list_values import ListPlace, read_json_lists
from gpupipe.formats.tar import Member
from gpupipe.pipeline.step import Spec

_NPY = "npy"
_JSON = "json:"


class ArrayMember(ArrayFormat):
    """Describes a field whose samples are arrays, and fixes their dtype.

    Attributes:
        member: The ending of the member that holds the array, such as npy.
        dtype: Dtype that the array of every sample must have.
        shape: Shape that the array of every sample must have, with null for an axis along which
            samples may differ. By default all axes may.
        layout: A letter for each axis, such as HWC. By default L, HW, CHW or CDHW.
    """

    member: str


Endings = str | tuple[str, ...]
_Parts = dict[str, Member]


class Webdataset(AnnotatedShards):
    """Samples in tar shards: the members a/0.jpg and a/0.cls are the sample a/0 and its label.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
        fields: The member that holds each field: {FIELD: ENDING}, where FIELD is the name in a
            batch. ENDING is the ending of the member's name, such as jpg, or a list of endings. Of
            a list, each sample uses the first ending that it has. Members that end in npy are
            arrays. To fix their dtype and shape, write as ENDING
            {member: npy, dtype: float32, shape: [3, 480, 640]}. Lists of the member that ends in
            json are boxes, {column: "json:objects.bbox", kind: boxes, format: xywh}, or go with
            boxes, {column: "json:objects.category", with: boxes}, or are points,
            {column: "json:objects.p", kind: points, format: xyv, count: 17, with: boxes}.
        label: The ending of the member that holds the label, a number or a name as text. "json:KEY"
            takes the label from KEY in the member that ends in json. null means that no member
            holds a label.
        values: Further numbers: {VALUE: PLACE}, where VALUE is the name in a batch, such as
            {weight: "json:weight"}. PLACE is written as in `label`. KEY may hold one number or a
            list of numbers.
        classes: The names of the classes, if labels are numbers: a list, or the path of a file with
            a name on each line. Label 0 is the first. Labels that are names get their numbers from
            it, too. null, the default: names are numbered in sorted order.
        bad_boxes: error: an image with a box that has no area, or with numbers out of range, is a
            broken sample. drop: such boxes are left out.
    """

    name: ClassVar[str] = "webdataset"
    format: ClassVar[int] = 2

    fields: dict[str, Endings | ArrayMember | ListColumn] = Field(
        default={"image": ("jpg", "jpeg", "png", "webp")}, min_length=1
    )
    label: str | None = "cls"
    values: dict[str, str] = Field(default={})

    @pydantic.field_validator("fields")
    @classmethod
    def _endings_are_of_one_kind(
        cls, fields: dict[str, Endings | ArrayMember | ListColumn]
    ) -> dict[str, Endings | ArrayMember | ListColumn]:
        others, lists = split_fields(check_fields(fields))
        for name, column in lists.items():
            if not column.column.startswith(_JSON):
                raise ValueError(f"{name}: {column.column} should be json: and the path of a list")
        for name, field in others.items():
            endings = _list_endings(field)
            if not endings or len({_is_array(e) for e in endings}) > 1:
                raise ValueError(
                    f"{name}: {shown(endings)} should be one ending or several, of image "
                    "files or of .npy files"
                )
            if isinstance(field, ArrayMember) and not _is_array(field.member):
                raise ValueError(
                    f"{name}: an array is a member that ends in npy, and not in {field.member}"
                )
        return fields

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self._members), list(self.values)

    @property
    def _members(self) -> dict[str, Endings | ArrayMember]:
        """The fields that are members."""
        return {
            name: field for name, field in self.fields.items() if not isinstance(field, ListColumn)
        }

    def specs(self) -> dict[str, Spec]:
        return {name: self._make_spec(field) for name, field in self._members.items()}

    def _make_spec(self, field: Endings | ArrayMember) -> Spec:
        if isinstance(field, ArrayMember):
            shape = field.shape or self._read_first(field).shape
            return array_spec(field.dtype, shape, field.shape is not None, field.layout)
        if not _is_array(_list_endings(field)[0]):
            return Spec()
        first = self._read_first(field)
        return array_spec(first.dtype, first.shape, same=False)

    def _read_first(self, field: Endings | ArrayMember) -> npy.NpyHeader:
        """Return the header of a field's first array. Raises DataError if no shard has one.

        All arrays of the field must have the dtype and the number of axes in this header.
        """
        files = self.list_files()
        for path in files:
            with name_shard(path):
                data = map_file(path)
                for member in tar.iter_members(data):
                    if _split_name(member.name)[1] in _list_endings(field):
                        return _read_header(data, member)
        raise DataError(
            f"{files[0]}: no member in {counted(len(files), 'shard')} ends in "
            f"{', '.join(_list_endings(field))}: set data.fields"
        )

    def read(self, path: Path) -> list[ShardFile]:
        with name_shard(path):
            data = map_file(path)
            samples: dict[str, _Parts] = {}
            for member in tar.iter_members(data):
                stem, ending = _split_name(member.name)
                if samples.setdefault(stem, {}).setdefault(ending, member) is not member:
                    raise ValueError(
                        f"{member.name}: the sample {stem} has two members that end in "
                        f"{ending}: its samples must have different names"
                    )
            if not samples and len(data) <= tar.EMPTY_BYTES:  # more zeros are a damaged file
                return []
            chosen = {
                stem: members
                for stem, parts in samples.items()
                if (members := self._choose_members(stem, parts))
            }
            texts = {stem: SampleTexts(data, stem, samples[stem]) for stem in chosen}
            label = find_label(self)
            labels = None if label is None else [read_label(t, label) for t in texts.values()]
            objects = [t.read_object("json") for t in texts.values()] if self._lists else []
            lists = {name: read_json_lists(objects, *place) for name, place in self._lists.items()}
            values = {
                name: stack_values(name, [t.read_numbers(where) for t in texts.values()])
                for name, where in self.values.items()
            }
            fields = {
                name: self._locate(data, name, [members[name] for members in chosen.values()])
                for name in self._members
            }
            return [ShardFile(list(chosen), fields, labels, values, lists=lists)]

    @property
    def _lists(self) -> dict[str, ListPlace]:
        places = {name: column.place for name, column in split_fields(self.fields)[1].items()}
        return {
            name: place._replace(path=place.path.removeprefix(_JSON))
            for name, place in places.items()
        }

    def _choose_members(self, stem: str, parts: _Parts) -> _Parts:
        """Return a dict from the name of each field to the member that holds it in one sample.

        Return {} if no field has a member: then the stem is no sample. Raises ValueError if only
        some fields have a member.

        Args:
            stem: The name that the members share.
            parts: The members with this stem, by ending.
        """
        members = {
            name: next((parts[e] for e in _list_endings(field) if e in parts), None)
            for name, field in self._members.items()
        }
        missing = [name for name, member in members.items() if member is None]
        if missing and len(missing) < len(members):
            wanted = ", ".join(_list_endings(self._members[missing[0]]))
            raise ValueError(
                f"{stem}: no member for the field '{missing[0]}' ({wanted}; it has "
                f"{', '.join(sorted(parts))}): set data.fields"
            )
        return {name: member for name, member in members.items() if member is not None}

    def _locate(self, data: NDArray[np.uint8], name: str, members: list[Member]) -> ByteRanges:
        """Return the byte ranges of a field, one for each of its members.

        Raises ValueError if they are arrays that differ in dtype or number of axes.
        """
        field = self._members[name]
        if not _is_array(_list_endings(field)[0]):
            parts = np.array([(m.offset, m.size) for m in members], np.int64).reshape(-1, 2)
            return ByteRanges(*parts.T)
        expected = field if isinstance(field, ArrayMember) else None
        headers = [_read_header(data, member) for member in members]
        names = [member.name for member in members]
        return locate_arrays(names, [member.offset for member in members], headers, expected)

    def explain_empty(self) -> str:
        return (
            "none has a member that ends in "
            f"{', '.join(e for field in self._members.values() for e in _list_endings(field))}: "
            "set data.fields"
        )


def _read_header(data: NDArray[np.uint8], member: Member) -> npy.NpyHeader:
    return read_header(member.name, data[member.offset : member.offset + member.size])


def _list_endings(field: Endings | ArrayMember) -> tuple[str, ...]:
    field = field.member if isinstance(field, ArrayMember) else field
    return (field,) if isinstance(field, str) else field


def _is_array(ending: str) -> bool:
    return ending == _NPY or ending.endswith(f".{_NPY}")


def _split_name(name: str) -> tuple[str, str]:
    """Split a name into stem and ending at the first dot of its file name, as WebDataset does."""
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return folder + slash + stem, ending.lower()
