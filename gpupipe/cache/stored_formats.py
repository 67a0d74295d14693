"""The formats of shards: which source reads the shards of a store, and with which options.

A format is a source that can index a single file: `Source.index_file`. A row of FORMATS adds one.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pydantic
from pydantic_core import InitErrorDetails, PydanticCustomError

from gpupipe.cache.settings import DataSet
from gpupipe.errors import did_you_mean, shown

if TYPE_CHECKING:
    from gpupipe.dataset.source import Source

_COMPRESSED = re.compile(r"[.](?:tgz|gz|zstd?|bz2|xz|lz4)$")


class ShardFormat(NamedTuple):
    """How shards are read.

    Attributes:
        source: The name of the source that indexes them.
        ending: The ending of their files in the cache.
        has_parts: Whether the source writes a file with the ending PARTS, which the samples are in.
        is_cut: Whether files are fetched in parts, each a shard, see `Source.cut_file`.
        longer: The ending of the files in the store, if it is not `ending`; else "".
        is_folder: Whether the store has folders of many objects, some of which are a shard each.
    """

    source: str
    ending: str
    has_parts: bool = False
    is_cut: bool = False
    longer: str = ""
    is_folder: bool = False

    @property
    def is_sized(self) -> bool:
        """Whether `cache.shard_size` says how large the shards are."""
        return self.is_cut or self.is_folder

    @property
    def stored_ending(self) -> str:
        """The ending of the files in the store."""
        return self.longer or self.ending

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of the files of a shard; the samples are in the file with the last one."""
        from gpupipe.dataset.index_cache import PARTS  # it takes long

        return (self.ending, PARTS) if self.has_parts else (self.ending,)


FORMATS = (
    ShardFormat("webdataset", ".tar"),
    ShardFormat("parquet", ".parquet", has_parts=True, is_cut=True),
    ShardFormat("tfrecord", ".tfrecord"),
    ShardFormat("tfrecord", ".tfrecords"),
    ShardFormat("mds", ".mds"),
    ShardFormat("numpy", ".npy"),
    ShardFormat("numpy", ".npz"),
    ShardFormat("hdf5", ".h5"),
    ShardFormat("hdf5", ".hdf5"),
    ShardFormat("zarr", ".zip", longer=".zarr", is_folder=True),
    ShardFormat("zarr", ".zip", longer=".zarr.zip"),
)
"""All formats. The first of a source is the one for files whose endings do not say it."""


def find_format(dataset: DataSet) -> ShardFormat:
    """Return the format of the shards of a data set.

    Raises:
        pydantic.ValidationError: There is no such format, or patterns have several.
    """
    patterns = list_patterns(dataset)
    if dataset.shard_format is not None:
        of_source = [one for one in FORMATS if one.source == dataset.shard_format]
        names = list(dict.fromkeys(one.source for one in FORMATS))
        if not of_source:
            hint = did_you_mean(dataset.shard_format, names)
            raise create_error(
                "shard_format",
                f"{shown(dataset.shard_format)} should be {' or '.join(names)}{hint}",
            )
        matching = [
            one
            for one in of_source
            if patterns[0].lower().endswith(one.longer if one.is_folder else one.ending)
        ]
        return (matching or of_source)[0]
    formats = [_find_by_ending(pattern) for pattern in patterns]
    if len(set(formats)) > 1:
        raise create_error(
            "shards",
            f"{patterns[0]} and {patterns[formats.index(formats[-1])]} are of different "
            "formats: use one source, and one cache, for each",
        )
    return formats[0]


def select_indexed(of: ShardFormat, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a format's source on which the tables of shards depend."""
    model = _find_source(of)
    return {name: value for name, value in options.items() if name not in model.not_indexed}


def list_patterns(dataset: DataSet) -> Sequence[str]:
    """Return the patterns of the shards of a data set."""
    assert dataset.shards is not None
    return [dataset.shards] if isinstance(dataset.shards, str) else dataset.shards


def _find_by_ending(pattern: str) -> ShardFormat:
    lower = pattern.lower()
    if _COMPRESSED.search(lower):
        raise create_error(
            "shards",
            f"{pattern} is compressed as a whole, so no sample can be read in place: "
            "write the shards uncompressed, as images are compressed already",
        )
    for one in FORMATS:
        if lower.endswith(one.stored_ending):
            return one
    if ".zarr" in lower:
        stores = pattern[: lower.rindex(".zarr") + len(".zarr")]
        raise create_error(
            "shards",
            f'{pattern} are the objects of Zarr stores: name the folders, as in shards: "{stores}"',
        )
    endings = ", ".join(dict.fromkeys(one.stored_ending for one in FORMATS))
    raise create_error(
        "shards",
        f"the ending of {pattern} is none of {endings}: set "
        "data.shard_format to the source that reads them",
    )


def _find_source(of: ShardFormat) -> Any:
    """Return the class that reads a format: one of `gpupipe.dataset.source.SOURCES`."""
    from gpupipe.dataset.source import SOURCES  # it takes long

    return SOURCES.find(of.source)


def create_source(dataset: DataSet, path: str | Path = "shards") -> "Source":
    """Return the source that reads the shards of a data set.

    Args:
        dataset: The data set.
        path: The file that the source reads, if it is to read one.

    Raises:
        pydantic.ValidationError: There is no such format, or an option is wrong. Its location is
            that in the data set.
    """
    model = _find_source(find_format(dataset))
    options: dict[str, Any] = {**dataset.options, model.shard_option: str(path)}
    if isinstance(dataset.values, tuple) and dataset.values:
        raise create_error(
            "values", "with shards, a mapping {VALUE: PLACE}, as the source of shards has it"
        )
    for name in ("fields", "label", "values"):
        if name in dataset.model_fields_set:
            if name not in model.model_fields:
                raise create_error(
                    name, f"the source {model.name} has no such option: see data.options"
                )
            options[name] = getattr(dataset, name)
    try:
        source: Source = model.model_validate(options)
    except pydantic.ValidationError as e:
        raise pydantic.ValidationError.from_exception_data(
            e.title, [_relocate(detail, dataset) for detail in e.errors(include_url=False)]
        ) from e
    return source


def _relocate(detail: Any, dataset: DataSet) -> InitErrorDetails:
    """Return an error of a source's option, located at the option of the data set that has it."""
    loc = detail["loc"]
    if loc and loc[0] in dataset.options:
        loc = ("options", *loc)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = "the source of the shards has no such option"
    kind = PydanticCustomError("value_error", "{error}", {"error": f", {message}"})
    return InitErrorDetails(type=kind, loc=loc, input=detail["input"])


def create_error(name: str, message: str) -> pydantic.ValidationError:
    """Return the error of an option of the data set, such as `shards`."""
    kind = PydanticCustomError("value_error", "{error}", {"error": f", {message}"})
    return pydantic.ValidationError.from_exception_data(
        "shards", [InitErrorDetails(type=kind, loc=(name,), input=None)]
    )
