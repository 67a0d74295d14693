"""The settings of a cache, and of the remote data set that it caches."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, model_validator

from gpupipe.cache.urls import move_credentials, refuse_credentials
from gpupipe.dataset.class_folders import IMAGE_EXTENSIONS
from gpupipe.errors import describe_error, hide_secrets
from gpupipe.schema.field_types import NUMBER, WHOLE, Bytes, expand_home, should_be

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.+", re.DOTALL)
_MIN_SHARDS = 4
OF_SHARDS = ("shards", "shard_format", "fields", "options", "classes")
"""The options of a DataSet that only data sets in shards have."""


def _check_url(value: str) -> str:
    match = _URL.fullmatch(value)
    if match is None or "\0" in value:
        raise should_be("a URL such as s3://bucket/folder, gs://, https:// or file:///folder")
    if match[1] == "memory":
        raise ValueError(
            "memory:// is seen by one process alone, and download workers are processes "
            "of their own: use file:// or a store that has a server"
        )
    refuse_credentials(value)
    return value.rstrip("/")


def _read_classes(value: Any) -> Any:
    """Return the names of classes; those in the lines of a file if `value` is its path."""
    if isinstance(value, str):
        try:
            value = Path(value).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError, RuntimeError) as e:
            reason = describe_error(e)
            raise ValueError(f"{value}: no text file that can be read: {reason}") from e
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise should_be("a list of names, or the path of a text file with one name a line")
    names = [name.strip() for name in value]
    if "" in names or len(set(names)) < len(names):
        raise ValueError("a name is empty, or stands twice: name each class once")
    return tuple(names)


Seconds = Annotated[float, Field(gt=0, le=86_400), NUMBER]


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class CacheOptions(_Frozen):
    """The settings of the local cache.

    Processes called download workers fetch the samples.

    Attributes:
        dir: The folder; ~ stands for the home directory. All ranks of a run use the same folder.
        max_bytes: The most that the folder may take on disk, all its files included, such as 500GB.
            At least 4 times `shard_size`; with `data.shards`, at least the two largest shards (of
            Parquet, row groups with the columns that are needed, and their unpacked images).
        low_water: A full cache evicts shards until it takes this share of max_bytes, 0 to 1. Only
            shards that an epoch has trained on are evicted.
        policy: Which shards are evicted first. fifo: those published first; lru: those that no
            epoch has used for longest, which differs from fifo where several runs share the folder,
            or resume; random. With engine: ray, random works as fifo.
        epoch: Which samples an epoch has. grow: those that are published when it begins. new: only
            those that came since the epoch before it began, and all once the whole data set is in
            the cache, except what the store refuses. So each sample comes once before any comes
            again. full: all, and it begins once the whole data set is in the cache.
        workers: Number of download workers that rank 0 starts, 0 to 256. With 0, run `gpupipe cache
            fill` elsewhere.
        connections: Samples that a download worker fetches at the same time, 1 to 256; with
            `data.shards`, parts or objects of a shard.
        rate_limit: Bytes per second over all download workers of the folder; null: no limit.
        shard_size: Bytes of a shard's tar file. 64 to 256 MB suit all but small data sets. Not with
            `data.shards`, which come as they are, with two exceptions. Of Parquet files, a shard
            has as many row groups as take so many bytes in the cache, at least one. Of folders of
            Zarr stores, it has rows that are about so many bytes of numbers, at least the rows of a
            chunk.
        min_shards: With `data.shards`: how many shards the first epoch waits for; under `epoch:
            new`, how many new ones each epoch waits for.
        retries: Attempts to fetch a sample after the first one, 0 to 100, with growing pauses.
        timeout: Seconds after which an attempt to fetch a sample has failed, at most 86,400.
        wait: Seconds without progress after which an epoch that waits for samples raises DataError,
            at most 86,400.
    """

    dir: Annotated[Path, AfterValidator(expand_home)]
    max_bytes: Bytes
    low_water: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.9
    policy: Literal["fifo", "lru", "random"] = "fifo"
    epoch: Literal["grow", "new", "full"] = "grow"
    workers: Annotated[int, Field(ge=0, le=256), WHOLE] = 2
    connections: Annotated[int, Field(ge=1, le=256), WHOLE] = 16
    rate_limit: Bytes | None = None
    shard_size: Bytes = ByteSize(128_000_000)
    min_shards: Annotated[int, Field(ge=1), WHOLE] = 1
    retries: Annotated[int, Field(ge=0, le=100), WHOLE] = 5
    timeout: Seconds = 60.0
    wait: Seconds = 600.0

    def check_shard_size(self) -> None:
        """Raise ValueError if the folder is too small for shards of `shard_size`."""
        if self.max_bytes < _MIN_SHARDS * self.shard_size:
            raise ValueError(
                f"max_bytes is {self.max_bytes.human_readable(decimal=True)}, but should be at "
                f"least {_MIN_SHARDS} times shard_size "
                f"({self.shard_size.human_readable(decimal=True)}): make it larger, or shard_size "
                "smaller"
            )


class DataSet(_Frozen):
    """The samples of a data set in a remote store.

    Attributes:
        url: The folder that contains all samples, as fsspec takes it: s3://bucket/folder, gs://,
            https:// or file:///folder.
        storage_options: Options of fsspec's file system, such as key, secret, endpoint_url, anon
            and headers. The download workers receive them; no file contains them.
        shards: The shards, if the store has those in place of single files: one pattern or several,
            of paths under `url`, such as "**/*.tar". * and ? stand for names, ** for folders,
            and {000..012} for numbers. The ending says which source reads them: webdataset for
            .tar, and so on. Zarr stores are folders: "**/*.zarr".
        shard_format: With `shards`: the source that reads them, if their ending does not say it.
        fields: With `shards`: the fields of that source, by default its own.
        options: With `shards`: further options of that source, such as {rows: true} of numpy.
        classes: With `shards`: the names of the classes in the order of their numbers, or a text
            file with a name a line. Needed if labels are names.
        manifest: A .csv or .parquet (a path or a URL) with one row per sample, or per shard. null:
            all files under `url` with one of `extensions`, in the order of their names.
        path: The manifest's column of paths under `url`.
        label: The manifest's column of labels; null: no labels. Without a manifest, the label is
            the name of the folder that contains the file. With `shards`: the label of that source,
            by default its own.
        weight: The manifest's column of weights: a row of weight 2 is fetched twice as likely as
            one of weight 1. null: all weigh the same.
        values: Names of the manifest's columns of numbers that batches contain. With `shards`: the
            values of that source, {VALUE: PLACE}.
        extensions: Endings of the files that are samples if there is no manifest.
        seed: Seed of the order in which samples are fetched.
    """

    url: Annotated[str, AfterValidator(_check_url)]
    storage_options: Annotated[dict[str, Any], Field(repr=False)] = {}
    shards: Annotated[str | tuple[str, ...] | None, Field(min_length=1)] = None
    shard_format: str | None = None
    fields: dict[str, Any] = {}
    options: dict[str, Any] = {}
    classes: Annotated[tuple[str, ...], BeforeValidator(_read_classes)] = ()
    manifest: str | None = None
    path: str = "path"
    label: str | None = "label"
    weight: str | None = None
    values: tuple[str, ...] | dict[str, Any] = ()
    extensions: tuple[str, ...] = Field(default=IMAGE_EXTENSIONS, min_length=1)
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = 0

    @model_validator(mode="before")
    @classmethod
    def _move_credentials(cls, data: Any) -> Any:
        options = data.get("storage_options", {}) if isinstance(data, dict) else None
        if not isinstance(options, dict) or not isinstance(data.get("url"), str):
            return data
        url, moved = move_credentials(data["url"], options)
        return data | {"url": url} | ({} if moved == options else {"storage_options": moved})

    @model_validator(mode="after")
    def _check_manifest_columns(self) -> "DataSet":
        name = self.manifest_name
        if name is not None and not name.lower().endswith((".csv", ".parquet")):
            raise ValueError(f"manifest is {name!r}, but should end in .csv or .parquet")
        lost = [name for name in OF_SHARDS if name in self.model_fields_set and not self.shards]
        if lost and lost != ["shards"]:
            raise ValueError(
                f"{' and '.join(lost)}: of shards, and none are given: set data.shards to their "
                'pattern, such as "**/*.tar"'
            )
        if isinstance(self.values, dict) and self.values and self.shards is None:
            raise ValueError(
                "values: a list of columns of the manifest; a mapping {VALUE: PLACE} is for shards"
            )
        reserved = sorted({"image", "label", "id"} & set(self.values))
        if reserved and self.shards is None:
            raise ValueError(
                f"values: {', '.join(reserved)}: what a batch has anyway cannot be a column of "
                "the manifest too: rename the column"
            )
        of_manifest = ("path", "weight") if self.shards else ("path", "weight", "values")
        chosen = [
            name for name in of_manifest if name in self.model_fields_set and getattr(self, name)
        ]
        if self.manifest is None and chosen:
            raise ValueError(
                f"{' and '.join(chosen)}: of a manifest, and none is given: set data.manifest"
            )
        return self

    @property
    def manifest_name(self) -> str | None:
        """The manifest without a password or a query, for messages."""
        if self.manifest is None or self.manifest.partition("://")[0] in (self.manifest, "file"):
            return self.manifest
        return hide_secrets(self.manifest.partition("?")[0])

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that must be equal in all caches of the same data set.

        These are all but `storage_options`, which may hold secrets, and `seed`.
        """
        hidden = {"storage_options", "seed"}
        if self.shards is None:
            hidden |= set(OF_SHARDS)
        return self.model_dump(mode="json", exclude=hidden) | {"manifest": self.manifest_name}
