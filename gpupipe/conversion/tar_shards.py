"""Writes tar shards as WebDataset has them, with an index that DALI reads, and reads them back."""

import hashlib
import io
import json
import os
import tarfile
from contextlib import suppress
from pathlib import Path

from gpupipe.conversion.plan import StoragePlan
from gpupipe.conversion.samples import ConvertedSample
from gpupipe.conversion.shard_contents import ShardContents, StoredShard
from gpupipe.dataset.reading import map_file
from gpupipe.errors import GpupipeError
from gpupipe.sources.webdataset import Webdataset

SUFFIX = ".tar"
INDEX_SUFFIX = ".idx"
_INDEX_VERSION = "v1.2"
"""The version of DALI's index of a tar (wds2idx, fn.readers.webdataset)."""
_BLOCK = 512
_MAX_JSON = 1 << 20
"""The most bytes of a member with numbers that the source webdataset reads."""


class TarWriter:
    """Writes one shard: for each sample a member of each field, and members `cls` and `json`.

    Members have no times and no owners, so equal samples make equal shards.

    Args:
        plan: How samples are stored.
        path: The file to write.
    """

    def __init__(self, plan: StoragePlan, path: Path) -> None:
        self._plan = plan
        self._file = path.open("wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115  # see `close`
        self._lines: list[str] = []

    def add(self, sample: ConvertedSample) -> None:
        key, parts = f"{sample.row:09d}", []
        for field in self._plan.fields:
            content = sample.contents[field.name]
            parts.append(
                self._write(key, self._plan.find_ending(field, content.kind), content.data)
            )
        if sample.label is not None:
            parts.append(self._write(key, "cls", str(sample.label).encode()))
        if numbers := sample.values | sample.lists:
            text = json.dumps(numbers).encode()
            if len(text) > _MAX_JSON:
                raise GpupipeError(
                    f"sample {sample.row}: its numbers take {len(text):,} bytes as JSON, and "
                    f"members of more than {_MAX_JSON:,} are not read: use --format parquet"
                )
            parts.append(self._write(key, "json", text))
        self._lines.append(" ".join(parts))

    def _write(self, key: str, ending: str, data: bytes | memoryview) -> str:
        """Write a member; return its part of a line of the index."""
        member = tarfile.TarInfo(f"{key}.{ending}")
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))
        offset = self._tar.offset - (member.size + -member.size % _BLOCK)
        return f"{ending} {offset} {member.size} {member.name}"

    def close(self) -> None:
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abort(self) -> None:
        with suppress(OSError):
            self._file.close()

    @property
    def index_text(self) -> str:
        """The index: the format, offset, size and name of each member, a sample a line."""
        lines = [f"{_INDEX_VERSION} {len(self._lines)}", *self._lines]
        return "\n".join(lines) + "\n"


def read_back(plan: StoragePlan, path: Path, expected: ShardContents) -> StoredShard:
    """Read a shard with the source that will read it."""
    endings = find_endings(plan, expected.endings)
    source = Webdataset.model_validate(plan.options_of_source(str(path), endings))
    (shard,) = source.read(path)
    data = map_file(path).data
    digests = {
        name: [
            hashlib.sha256(data[offset : offset + length]).digest()
            for offset, length in zip(part.offset.tolist(), part.length.tolist(), strict=True)
        ]
        for name, part in shard.fields.items()
    }
    labels = None if shard.labels is None else [int(label) for label in shard.labels]
    return StoredShard(digests, labels, shard.values, shard.lists)


def find_endings(plan: StoragePlan, kinds: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the endings of the members of each field of image files.

    Args:
        plan: How samples are stored.
        kinds: The kinds of files of each field.
    """
    return {
        field.name: [plan.find_ending(field, kind) for kind in sorted(kinds.get(field.name, ()))]
        for field in plan.fields
        if not field.is_array
    }
