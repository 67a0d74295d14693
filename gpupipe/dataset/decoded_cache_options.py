"""The settings of the decoded cache: `data.cache_decoded` in the YAML."""

from __future__ import annotations

from typing import Literal

import pydantic
from pydantic import model_validator

from gpupipe.schema.field_types import Bytes

_LEAST_BYTES = 1_000_000


class DecodedCacheOptions(pydantic.BaseModel):
    """The settings of the decoded cache.

    Attributes:
        where: memory: a file in /dev/shm, which all processes of the machine share; disk: a file in
            gpupipe's cache folder ($GPUPIPE_CACHE, by default ~/.cache/gpupipe).
        max_bytes: The most that the cache may take, such as 8GB. At least 1 MB. A cache that is
            full keeps an equal share of every epoch, and the rest is decoded.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    where: Literal["memory", "disk"]
    max_bytes: Bytes

    @model_validator(mode="after")
    def _check_max_bytes(self) -> DecodedCacheOptions:
        if self.max_bytes < _LEAST_BYTES:
            raise ValueError(f"max_bytes is {int(self.max_bytes):,}, but should be at least 1MB")
        return self
