"""webdataset: samples in tar shards, as WebDataset writes them: members of one stem are one sample."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from gpupipe import index_file
from gpupipe.cachedir import cache_dir
from gpupipe.devices import cores
from gpupipe.errors import DataError
from gpupipe.index import Index, Spans, Texts, build
from gpupipe.parameters import expanded
from gpupipe.source import Progress, Source, quiet

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_LABEL_BYTES = 1 << 20
_MOST_SHARDS = 1_000_000
_MOST_CLASSES = 10_000_000
"""Every number up to the largest label is a class with a name."""
_FORMAT = 1
"""Part of the cache's key: to be raised when the same shards give another index than before."""


@dataclass
class _Sample:
    """What a shard says of one: its stem, where its image is, and its label as it is written."""

    name: str
    offset: int
    length: int
    label: str | int


class Webdataset(Source):
    """Images in tar shards. The members a/0.jpg and a/0.cls are the sample a/0, and its label.

    shards: one pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands for the home directory.
    image: the endings that an image may have, the first that a sample has counts.
    label: the ending of the member with the label: a number or a name as text; cls. With "json:KEY", a key of a JSON member; null: none, all are 0.
    """

    name: ClassVar[str] = "webdataset"

    shards: str | tuple[str, ...] = Field(min_length=1)
    image: tuple[str, ...] = Field(default=("jpg", "jpeg", "png", "webp"), min_length=1)
    label: str | None = "cls"

    def index(self, progress: Progress = quiet) -> Index:
        paths = self._paths()
        saved = cache_dir() / "index" / f"{self._key(paths)}.idx"
        index = index_file.open_saved(saved)
        state, started = [index_file.file_state(p) for p in paths], time.time()
        if index is None or index.extra.get("shards") != state:
            index = self._scan(paths, state, progress)
            index_file.keep(index, saved, max(max(s[:2]) for s in state), started)
        return index

    def absent(self) -> str:
        self._paths()
        return ""

    def _paths(self) -> list[Path]:
        """Of all shards. Raises DataError where there is none, or one of a numbered pattern is missing."""
        patterns = [self.shards] if isinstance(self.shards, str) else self.shards
        found = [path for pattern in patterns for one in _unbraced(pattern) for path in _matches(one)]
        if len(found) > _MOST_SHARDS:
            raise DataError(f"{patterns[0]}: {len(found):,} shards are more than gpupipe takes ({_MOST_SHARDS:,})")
        return found

    def _key(self, paths: list[Path]) -> str:
        text = json.dumps([self.name, _FORMAT, [str(p) for p in paths], self.image, self.label])
        return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()

    def _scan(self, paths: list[Path], state: list[Any], progress: Progress) -> Index:
        found: list[list[_Sample]] = []
        with ThreadPoolExecutor(cores()) as pool:
            for number, samples in enumerate(pool.map(self._read, paths)):
                found.append(samples)
                progress("indexing shards", number + 1, len(paths))
        every = [sample for samples in found for sample in samples]
        if not every:
            raise DataError(f"{paths[0]}: no sample in {len(paths)} shards has a member that ends in {', '.join(self.image)}: set data.image")
        labels, classes = _numbered(every, paths[0])
        file = np.repeat(np.arange(len(found), dtype=np.int32), [len(samples) for samples in found])
        offset, length = (np.array([getattr(s, what) for s in every], np.int64) for what in ("offset", "length"))
        column = Spans("", Texts.of(map(str, paths)), file, offset, length)
        return build("", [s.name for s in every], labels, classes, {"shards": state}, {"image": column})

    def _read(self, path: Path) -> list[_Sample]:
        """The samples of one shard, in its order. Raises DataError where it is no whole tar, or has a member that must not be."""
        try:
            with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
                return list(self._samples(path, tar, os.fstat(file.fileno()).st_size))
        except (tarfile.TarError, OSError, ValueError, EOFError) as e:
            raise DataError(f"{path}: not a whole, uncompressed tar file: {e}; write it again, or leave it out of data.shards") from e

    def _samples(self, path: Path, tar: tarfile.TarFile, size: int) -> Iterator[_Sample]:
        members: dict[str, dict[str, tarfile.TarInfo]] = {}
        for member in tar:
            if member.isdir():
                continue
            _check(path, member)
            stem, ending = _parted(member.name)
            members.setdefault(stem, {}).setdefault(ending, member)
        _check_end(path, size, [m for parts in members.values() for m in parts.values()])
        for stem, parts in members.items():
            image = next((parts[e] for e in self.image if e in parts), None)
            if image is not None:
                yield _Sample(stem, image.offset_data, image.size, self._label(path, tar, stem, parts))

    def _label(self, path: Path, tar: tarfile.TarFile, stem: str, parts: dict[str, tarfile.TarInfo]) -> str | int:
        if self.label is None:
            return 0
        ending, _, key = self.label.partition(":")
        if ending not in parts:
            raise DataError(f"{path}:{stem}: no member {stem}.{ending} with its label (it has {', '.join(sorted(parts))}): set data.label, or data.label: null")
        member = parts[ending]
        if member.size > _MOST_LABEL_BYTES:
            raise DataError(f"{path}:{member.name}: {member.size:,} bytes are no label")
        stream = tar.extractfile(member)
        assert stream is not None
        return _parsed(f"{path}:{member.name}", stream.read(), key)


def _parsed(where: str, content: bytes, key: str) -> str | int:
    """A label as it is written: a number, or a name. Raises DataError."""
    try:
        found: Any = json.loads(content)[key] if key else content.decode().strip()
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as e:
        raise DataError(f"{where}: no label in it ({type(e).__name__}: {str(e)[:100]})") from e
    if isinstance(found, str) and re.fullmatch(r"-?\d{1,18}", found):
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, (int, str)) or found == "" or (isinstance(found, int) and not 0 <= found < 2**63):
        raise DataError(f"{where}: {str(found)[:100]!r} is no label: a number from 0 on, or a name")
    return found


def _numbered(samples: list[_Sample], where: Path) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[str]]:
    """Numbers as they are, with as many classes; else the numbers of the names, sorted. Raises DataError where a number is no class."""
    labels = [s.label for s in samples]
    if all(isinstance(label, int) for label in labels):
        numbers = np.array(labels, np.int64)
        most = int(numbers.max())
        if most >= _MOST_CLASSES:
            name = samples[int(numbers.argmax())].name
            raise DataError(f"{where}: the label {most} of {name} is no class: they count from 0, to less than {_MOST_CLASSES:,}; see data.label")
        return numbers, [str(n) for n in range(most + 1)]
    names = sorted({str(label) for label in labels})
    place = {name: n for n, name in enumerate(names)}
    return np.array([place[str(label)] for label in labels], np.int64), names


def _check(path: Path, member: tarfile.TarInfo) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts or "\0" in member.name:
        raise DataError(f"{path}:{member.name[:200]}: a member must not lead out of its shard")
    if not member.isreg() or member.issparse():
        raise DataError(f"{path}:{member.name[:200]}: a member must be a plain file, and not a link, a device or sparse")


def _check_end(path: Path, size: int, members: list[tarfile.TarInfo]) -> None:
    """tarfile takes a file that ends in the middle of the last member for whole."""
    last = max(members, key=lambda m: m.offset_data + m.size, default=None)
    if last is not None and last.offset_data + last.size > size:
        raise DataError(f"{path}: cut off: the member {last.name[:200]} ends {last.offset_data + last.size - size:,} bytes behind the file's end")


def _parted(name: str) -> tuple[str, str]:
    """The stem and the ending, which begins at the first dot of the last part, as WebDataset has it."""
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return folder + slash + stem, ending.lower()


def _unbraced(pattern: str) -> list[str]:
    """The patterns that {000..012} stands for."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MOST_SHARDS:
        raise DataError(f"{pattern}: {match[0]} should count upwards, to at most {_MOST_SHARDS:,} shards")
    width = len(match[1]) if match[1].startswith("0") else 0
    return [one for n in range(first, last + 1) for one in _unbraced(f"{pattern[: match.start()]}{n:0{width}}{pattern[match.end() :]}")]


def _matches(pattern: str) -> list[Path]:
    """The files of a pattern without braces. Raises DataError where there is none."""
    try:
        path = expanded(Path(pattern)).absolute()
    except ValueError as e:
        raise DataError(f"data.shards: {e}") from e
    if not any(c in pattern for c in "*?["):
        found = [path] if path.is_file() else []
    else:
        found = sorted(p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if p.is_file())
    if not found:
        raise DataError(f"{path}: no such shard: put it there, or set data.shards")
    return found
