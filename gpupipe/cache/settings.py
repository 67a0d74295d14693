"""What can be set of a cache, and of the data set that it is a cache of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, ByteSize, Field, model_validator

from gpupipe.schema.field_types import NUMBER, WHOLE, Bytes, expanded, form

IMAGES = ("jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "pnm", "jp2")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.+", re.DOTALL)
_SHARDS_AT_LEAST = 4


def _url(value: str) -> str:
    match = _URL.fullmatch(value)
    if match is None or "\0" in value:
        raise form("a URL such as s3://bucket/folder, gs://, https:// or file:///folder")
    if match[1] == "memory":
        raise ValueError(
            "memory:// is seen by one process alone, and samplers are processes of their "
            "own: use file:// or a store that has a server"
        )
    return value.rstrip("/")


Seconds = Annotated[float, Field(gt=0, le=86_400), NUMBER]


class _Frozen(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class CacheOptions(_Frozen):
    """How the local cache grows, and how large.

    dir: the folder; ~ stands for the home directory. All ranks of a run use the same one.
    max_bytes: what the folder may take on disk, all that is in it included, such as 500GB.
    low_water: when it is full, shards that an epoch has trained on are evicted down to this share
    of max_bytes. policy: which shards go first: fifo, those that were published first; lru, those
    that no epoch has used for longest; random. epoch: grow: an epoch is what is published when it
    begins; full: it begins when the whole data set is in the cache. samplers: processes that fetch,
    started by rank 0; 0: none, because `gpupipe cache fill` runs elsewhere. connections: samples
    that a sampler fetches at a time. rate_limit: bytes a second over all samplers of the folder;
    none by default. shard_size: of the tar files, 64 to 256 MB where samples are not few. retries,
    timeout: attempts after the first for a sample, with growing pauses; the seconds after which one
    has stalled. wait: seconds without progress after which an epoch that waits for samples is an
    error.
    """

    dir: Annotated[Path, AfterValidator(expanded)]
    max_bytes: Bytes
    low_water: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.9
    policy: Literal["fifo", "lru", "random"] = "fifo"
    epoch: Literal["grow", "full"] = "grow"
    samplers: Annotated[int, Field(ge=0, le=256), WHOLE] = 2
    connections: Annotated[int, Field(ge=1, le=256), WHOLE] = 16
    rate_limit: Bytes | None = None
    shard_size: Bytes = ByteSize(128_000_000)
    retries: Annotated[int, Field(ge=0, le=100), WHOLE] = 5
    timeout: Seconds = 60.0
    wait: Seconds = 600.0

    @model_validator(mode="after")
    def _holds_some_shards(self) -> CacheOptions:
        if self.max_bytes < _SHARDS_AT_LEAST * self.shard_size:
            least = (
                f"at least {_SHARDS_AT_LEAST} times shard_size "
                f"({self.shard_size.human_readable(decimal=True)})"
            )
            raise ValueError(
                f"max_bytes is {self.max_bytes.human_readable(decimal=True)}, but should be "
                f"{least}: make it larger, or shard_size smaller"
            )
        return self


class DataSet(_Frozen):
    """Which samples there are in a remote store.

    url: the folder that all lie in, as fsspec takes it: s3://bucket/folder, gs://, https://,
    file:///folder... storage_options: what fsspec's file system takes: key, secret, endpoint_url,
    anon, headers... They are handed to the samplers and written nowhere. manifest: a .csv or
    .parquet (a path or a URL) with a row a sample; none: all files under `url` with one of
    `extensions`, in the order of their names. path, label, weight: the manifest's columns of paths
    under `url`, of labels (null: none; without a manifest: the name of the folder that a
      file lies in) and of how much likelier a row is fetched than others (null: all the same).
    values: the manifest's columns of numbers that are delivered with each batch, by their names.
    seed: of the order in which samples are fetched.
    """

    url: Annotated[str, AfterValidator(_url)]
    storage_options: dict[str, Any] = {}
    manifest: str | None = None
    path: str = "path"
    label: str | None = "label"
    weight: str | None = None
    values: tuple[str, ...] = ()
    extensions: tuple[str, ...] = Field(default=IMAGES, min_length=1)
    seed: Annotated[int, Field(ge=0, lt=2**63), WHOLE] = 0

    @model_validator(mode="after")
    def _columns_are_of_a_manifest(self) -> DataSet:
        if self.manifest is not None and not self.manifest.lower().endswith((".csv", ".parquet")):
            raise ValueError(f"manifest is {self.manifest!r}, but should end in .csv or .parquet")
        given = [
            name
            for name in ("path", "weight", "values")
            if self.manifest is None and name in self.model_fields_set and getattr(self, name)
        ]
        taken = sorted({"image", "label", "id"} & set(self.values))
        if taken:
            raise ValueError(
                f"values: {', '.join(taken)}: what a batch has anyway cannot be a column of "
                "the manifest too: rename the column"
            )
        if given:
            raise ValueError(
                f"{' and '.join(given)}: of a manifest, and none is given: set data.manifest"
            )
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """What two caches must have in common to be of the same data: no secrets, and nothing that
        only says how it is reached.
        """
        return self.model_dump(mode="json", exclude={"storage_options", "seed"})
