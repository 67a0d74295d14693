"""webdataset: samples in tar shards, as WebDataset writes them: members of one stem are one
sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset.shard_index import Pieces, ShardFile
from gpupipe.dataset.shards import Dtype, Shape, Sharded, array_spec, blamed, mapped, paths
from gpupipe.errors import DataError, counted, shown
from gpupipe.formats import npy, tar
from gpupipe.formats.tar import Member
from gpupipe.pipeline.step import Spec
from gpupipe.schema.field_types import is_number

_NPY = "npy"
_MOST_TEXT = 1 << 20
"""Bytes of a member with a label or values."""
_MOST_VALUES = 1024


class ArrayMember(pydantic.BaseModel):
    """A member that is an array: its ending, and what every sample's must be.

    Without `shape` they may differ.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    member: str
    dtype: Dtype
    shape: Shape | None = None


Endings = str | tuple[str, ...]
_Parts = dict[str, Member]


class Webdataset(Sharded):
    """Samples in tar shards. The members a/0.jpg and a/0.cls are the sample a/0, and its label.

    shards: one pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands for the
    home directory. fields: what is in a batch, and the ending of the member that each is; of
    several, the first that a sample has. Members that end in npy are
      arrays; {member: npy, dtype: float32, shape: [3, 480, 640]} says of which kind all must be.
    label: the ending of the member with the label: a number or a name as text; cls. With
    "json:KEY", a key of a JSON member; null: none, all are 0. values: numbers to deliver with each
    sample, and where they are, as for label: {weight: "json:weight"}; a key may hold a list of
    them.
    """

    name: ClassVar[str] = "webdataset"
    format: ClassVar[int] = 2

    fields: dict[str, Endings | ArrayMember] = Field(
        default={"image": ("jpg", "jpeg", "png", "webp")}, min_length=1
    )
    label: str | None = "cls"
    values: dict[str, str] = Field(default={})

    @pydantic.field_validator("fields")
    @classmethod
    def _endings_are_of_one_kind(
        cls, fields: dict[str, Endings | ArrayMember]
    ) -> dict[str, Endings | ArrayMember]:
        for name, told in fields.items():
            endings = _endings(told)
            if not endings or len({_is_array(e) for e in endings}) > 1:
                raise ValueError(
                    f"{name}: {shown(endings)} should be one ending or several, of image "
                    "files or of .npy files"
                )
            if isinstance(told, ArrayMember) and not _is_array(told.member):
                raise ValueError(
                    f"{name}: an array is a member that ends in npy, and not in {told.member}"
                )
        return fields

    def delivered(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), list(self.values)

    def specs(self) -> dict[str, Spec]:
        return {name: self._spec(told) for name, told in self.fields.items()}

    def _spec(self, told: Endings | ArrayMember) -> Spec:
        if isinstance(told, ArrayMember):
            return array_spec(
                told.dtype, told.shape or self._first(told).shape, same=told.shape is not None
            )
        if not _is_array(_endings(told)[0]):
            return Spec()
        first = self._first(told)
        return array_spec(first.dtype, first.shape, same=False)

    def _first(self, told: Endings | ArrayMember) -> npy.Header:
        """Of the first array of a field, whose dtype and number of axes all have.

        Raises DataError.
        """
        files = paths(self.shards)
        for path in files:
            with blamed(path):
                data = mapped(path)
                for member in tar.members(data):
                    if _parted(member.name)[1] in _endings(told):
                        return _header(data, member)
        raise DataError(
            f"{files[0]}: no member in {counted(len(files), 'shard')} ends in "
            f"{', '.join(_endings(told))}: set data.fields"
        )

    def read(self, path: Path) -> list[ShardFile]:
        with blamed(path):
            data = mapped(path)
            samples: dict[str, _Parts] = {}
            for member in tar.members(data):
                stem, ending = _parted(member.name)
                if samples.setdefault(stem, {}).setdefault(ending, member) is not member:
                    raise ValueError(
                        f"{member.name}: the sample {stem} has two members that end in "
                        f"{ending}: its samples must have different names"
                    )
            chosen = {
                stem: found
                for stem, parts in samples.items()
                if (found := self._chosen(stem, parts))
            }
            texts = {stem: _Texts(data, stem, samples[stem]) for stem in chosen}
            labels = None if self.label is None else [_label(t, self.label) for t in texts.values()]
            values = {
                name: _values(name, [t.numbers(where) for t in texts.values()])
                for name, where in self.values.items()
            }
            fields = {
                name: self._pieces(data, name, [found[name] for found in chosen.values()])
                for name in self.fields
            }
            return [ShardFile(list(chosen), fields, labels, values)]

    def _chosen(self, stem: str, parts: _Parts) -> _Parts:
        """The member of each field; none where there is not one of them, so that this is no sample.

        Raises ValueError where some are missing.
        """
        found = {
            name: next((parts[e] for e in _endings(told) if e in parts), None)
            for name, told in self.fields.items()
        }
        missing = [name for name, member in found.items() if member is None]
        if missing and len(missing) < len(found):
            wanted = ", ".join(_endings(self.fields[missing[0]]))
            raise ValueError(
                f"{stem}: no member for the field '{missing[0]}' ({wanted}; it has "
                f"{', '.join(sorted(parts))}): set data.fields"
            )
        return {name: member for name, member in found.items() if member is not None}

    def _pieces(self, data: NDArray[np.uint8], name: str, members: list[Member]) -> Pieces:
        """Where a field is. Raises ValueError."""
        told = self.fields[name]
        offset, length = (
            np.array([getattr(m, what) for m in members], np.int64) for what in ("offset", "size")
        )
        if not _is_array(_endings(told)[0]):
            return Pieces(offset, length)
        headers = [_header(data, member) for member in members]
        _check_alike(members, headers, told)
        return Pieces(
            offset + np.array([h.offset for h in headers], np.int64),
            np.array([h.length for h in headers], np.int64),
            headers[0].dtype if headers else "",
            np.array([h.shape for h in headers], np.int64).reshape(len(headers), -1),
        )

    def nothing(self) -> str:
        return (
            "none has a member that ends in "
            f"{', '.join(e for told in self.fields.values() for e in _endings(told))}: set "
            "data.fields"
        )


@dataclass(frozen=True)
class _Texts:
    """What is written in the small members of a sample."""

    data: NDArray[np.uint8]
    stem: str
    parts: _Parts

    def at(self, where: str) -> Any:
        """What stands at "ENDING", or at "ENDING:KEY" in its JSON. Raises ValueError."""
        ending, _, key = where.partition(":")
        member = self.parts.get(ending)
        if member is None:
            raise ValueError(
                f"{self.stem}: no member {self.stem}.{ending} (it has "
                f"{', '.join(sorted(self.parts))}): set data.label or data.values"
            )
        if member.size > _MOST_TEXT:
            raise ValueError(
                f"{member.name}: {member.size:,} bytes, too many for a label or values"
            )
        content = self.data[member.offset : member.offset + member.size].tobytes()
        try:
            return json.loads(content)[key] if key else content.decode().strip()
        except KeyError as e:
            raise ValueError(f"{member.name}: no '{key}' in it") from e
        except (ValueError, TypeError, IndexError, RecursionError) as e:
            raise ValueError(
                f"{member.name}: cannot be read as "
                f"{'JSON with keys' if key else 'UTF-8 text'}: {str(e)[:100]}"
            ) from e

    def numbers(self, where: str) -> list[int | float]:
        """The numbers that stand there. Raises ValueError."""
        found = self.at(where)
        if isinstance(found, str):
            found = _number(found)
        numbers = found if isinstance(found, list) else [found]
        if not 0 < len(numbers) <= _MOST_VALUES or not all(
            is_number(n) and (isinstance(n, float) or -(2**63) <= n < 2**63) for n in numbers
        ):
            raise ValueError(
                f"{self.stem}: {shown(found)} at {where} is no number, and no list of 1 to "
                f"{_MOST_VALUES:,} numbers: set data.values"
            )
        return numbers


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _label(texts: _Texts, where: str) -> str:
    """A label as it is written: a number, or a name. Raises ValueError."""
    found = texts.at(where)
    if isinstance(found, bool) or not isinstance(found, (int, str)) or found == "":
        raise ValueError(
            f"{texts.stem}: {shown(found)} at {where} is no label: a label is a number from "
            "0 on, or a name"
        )
    return str(found)


def _values(name: str, found: Sequence[list[int | float]]) -> NDArray[Any]:
    """int64 or float64, (N,) where each sample has one, else (N, n). Raises ValueError."""
    counts = {len(numbers) for numbers in found}
    if len(counts) > 1:
        raise ValueError(
            f"the value '{name}' has from {min(counts)} to {max(counts)} numbers: it must "
            "have as many in each sample"
        )
    array = np.array(
        found,
        np.int64 if all(isinstance(n, int) for numbers in found for n in numbers) else np.float64,
    )
    return array[:, 0] if counts == {1} else array


def _header(data: NDArray[np.uint8], member: Member) -> npy.Header:
    """Raises ValueError where the member is no array that can be taken."""
    content = data[member.offset : member.offset + min(member.size, npy.MOST_HEADER)].tobytes()
    try:
        found = npy.header(content)
    except ValueError as e:
        raise ValueError(f"{member.name}: {e}") from e
    if found.offset + found.length != member.size:
        raise ValueError(
            f"{member.name}: {member.size:,} bytes, but its header tells of "
            f"{found.offset + found.length:,}: the array is not whole"
        )
    if not found.length:
        raise ValueError(f"{member.name}: an array without numbers, of shape {shown(found.shape)}")
    return found


def _check_alike(
    members: list[Member], headers: list[npy.Header], told: Endings | ArrayMember
) -> None:
    """Raises ValueError where an array is not like the first, or not as it was told."""
    for member, header in zip(members, headers, strict=True):
        dtype = told.dtype if isinstance(told, ArrayMember) else headers[0].dtype
        if header.dtype != dtype:
            raise ValueError(
                f"{member.name}: an array of {header.dtype}, where {dtype} was expected: "
                "all must have one dtype"
            )
        if isinstance(told, ArrayMember) and told.shape not in (None, header.shape):
            raise ValueError(
                f"{member.name}: an array of shape {shown(header.shape)}, where "
                f"{shown(told.shape)} was expected: see data.fields"
            )
        if len(header.shape) != len(headers[0].shape):
            raise ValueError(
                f"{member.name}: an array of shape {shown(header.shape)}, but "
                f"{members[0].name} has {shown(headers[0].shape)}"
            )


def _endings(told: Endings | ArrayMember) -> tuple[str, ...]:
    told = told.member if isinstance(told, ArrayMember) else told
    return (told,) if isinstance(told, str) else told


def _is_array(ending: str) -> bool:
    return ending == _NPY or ending.endswith(f".{_NPY}")


def _parted(name: str) -> tuple[str, str]:
    """The stem and the ending, which begins at the first dot of the last part, as WebDataset has
    it.
    """
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return folder + slash + stem, ending.lower()
