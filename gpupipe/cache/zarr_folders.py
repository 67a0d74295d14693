"""Lists the shards of a store of Zarr folders: which objects each of them is made of.

A shard has the samples of some rows of one Zarr store. It is cached as a ZIP file that is a Zarr
store of these rows alone: the objects with their chunks as they are, and metadata that fit them.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.listing import (
    Listing,
    StoredFile,
    file_version,
    find_size,
    hash_file_version,
)
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shard_members import MembersBuilder, ShardMembers
from gpupipe.cache.store import Store, UnfetchableError
from gpupipe.cache.store_listing import StoreRows, ask_for_versions, check_name, list_shards
from gpupipe.cache.stored_formats import create_source, list_patterns
from gpupipe.dataset import labels
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.index import compute_fingerprint
from gpupipe.errors import DataError
from gpupipe.formats.array_store import ITSELF
from gpupipe.formats.stored_arrays import StoreRequest
from gpupipe.runtime.installation import require_extra

_MAX_METADATA = 1000
"""The most objects of metadata that are read of a store beside those of the arrays in use."""
Infos = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class _Folder:
    """A Zarr store in a folder.

    Attributes:
        name: Its path under the url.
        objects: fsspec's description of each object, by its path in the folder.
        store: The store that has it.
        connections: The number of objects that are fetched at the same time.
        copy: A folder of this machine, for the objects that `fetch` copies.
    """

    name: str
    objects: Infos
    store: Store
    connections: int
    copy: Path

    def fetch(self, keys: Iterable[str]) -> None:
        """Copy objects of the folder.

        Raises:
            DataError: One cannot be fetched.
        """
        with ThreadPoolExecutor(self.connections) as pool:
            for _ in pool.map(self._fetch_one, keys):
                pass

    def _fetch_one(self, key: str) -> None:
        info, name = self.objects[key], f"{self.name}/{key}"
        file = StoredFile(name, find_size(info), hash_file_version(info), file_version(info))
        try:
            content = self.store.fetch(file)
        except UnfetchableError as e:
            raise DataError(f"{self.store.url}/{name}: cannot be fetched: {e}") from e
        path = self.copy / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def ask_for_versions(self, keys: list[str]) -> None:
        """Ask the store about objects whose versions are not known; see store_listing."""
        infos = [self.objects[key] for key in keys]
        rows = StoreRows([f"{self.name}/{key}" for key in keys], [], infos)
        ask_for_versions(rows, self.store, self.connections)
        self.objects.update(zip(keys, rows.infos, strict=True))


def list_folders(
    dataset: DataSet, store: Store, cache: CacheFolder
) -> tuple[Listing, ShardMembers]:
    """List the shards of a data set in Zarr folders, and the objects of each of them.

    Copies metadata and small arrays to a folder in the cache, which it removes at the end; or when
    it lists again, if it was killed. The caller must hold the lock for listing.

    Args:
        dataset: The data set.
        store: The store that has the folders.
        cache: The cache, with the settings `connections` and `shard_size`.

    Raises:
        DataError: There are none, one cannot be read, or lacks an array.
    """
    source: Any = create_source(dataset)
    require_extra("zarr", source.modules, f"reading {dataset.url}", DataError)
    request: StoreRequest = source.request
    builder, names, weights = MembersBuilder(), list[str](), list[float]()
    options = cache.options
    for name, objects, weight in _find_folders(dataset, store):
        with _create_folder(cache.dir / "tmp" / "zarr") as copy:
            folder = _Folder(name, objects, store, options.connections, copy)
            cut = _cut_rows if request.groups is None else _cut_groups
            before = len(names)
            try:
                names += cut(folder, request, int(options.shard_size), builder)
            except ValueError as e:
                raise DataError(f"{dataset.url}/{name}: {e}") from e
            weights += [weight] * (len(names) - before)
    if not names:
        raise DataError(
            f"{dataset.url}: no samples in folders that match {', '.join(list_patterns(dataset))}: "
            "set data.url, or data.shards"
        )
    return create_listing(names, weights, dataset, builder)


@contextmanager
def _create_folder(path: Path) -> Iterator[Path]:
    """Create a folder, and remove it at the end; first, what a killed process has left there."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def create_listing(
    names: list[str], weights: list[float], dataset: DataSet, builder: MembersBuilder
) -> tuple[Listing, ShardMembers]:
    """Return the listing of shards and their members.

    Args:
        names: The name of each shard.
        weights: The weight of each shard, which counts if the data set has weights.
        dataset: The data set.
        builder: The members of each shard.
    """
    members, strings = builder.build(), StringArray.from_strings(names)
    numbers, classes = labels.make_unlabelled(len(names))
    # A shard has a version if all of its objects have one.
    lacks_version = (members.tags == 0) & (np.diff(members.objects.offsets) > 0)
    counts = np.diff(np.cumsum([0, *lacks_version])[members.starts])
    listing = Listing(
        strings,
        numbers,
        np.array(builder.sizes, np.int64),
        (counts == 0).astype(np.uint64),
        np.array(weights if dataset.weight is not None else [], np.float64),
        StringArray.from_strings([]),
        classes,
        compute_fingerprint(strings, numbers, classes, {}, {}),
        StringArray.from_strings([""] * len(names)),
    )
    return listing, members


def _find_folders(dataset: DataSet, store: Store) -> Iterator[tuple[str, Infos, float]]:
    """Yield path, objects and weight of each Zarr store, sorted by path."""
    every: Infos = {}

    def list_all() -> Infos:
        every.update(store.list_files())
        folders: Infos = {}
        for name in every:
            folders.update((above, {}) for above in _iter_above(name) if above not in folders)
        return folders

    rows = list_shards(dataset, store, list_all)
    weights = rows.weights.tolist() or [1.0] * len(rows.names)
    objects: dict[str, Infos] = {name: {} for name in rows.names}
    for name, info in every.items():
        folder = next((above for above in _iter_above(name) if above in objects), None)
        if folder is not None:
            objects[folder][name[len(folder) + 1 :]] = info
    for folder, weight in zip(rows.names, weights, strict=True):
        own = objects[folder]
        if not every:
            own = {name[len(folder) + 1 :]: info for name, info in store.list_files(folder).items()}
        if not own and not every:
            raise DataError(f"{dataset.url}/{folder}: no such folder: set data.shards")
        for name in own:
            check_name(f"{folder}/{name}", dataset.url)
        if own:
            yield folder, own, weight


def _iter_above(name: str) -> Iterator[str]:
    """Yield the folders that a file is in, the outermost one first."""
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)


def _fetch_metadata(folder: _Folder, paths: Iterable[str]) -> None:
    """Copy the metadata of some arrays or groups, and of those around them; and some others.

    The others are only for messages: of an array that is not there, they tell others.
    """
    from gpupipe.formats.zarr_rows import METADATA, list_above

    needed = {above for path in paths for above in [*list_above(path), path]}
    every = [key for key in folder.objects if key.rpartition("/")[2] in METADATA]
    used = [key for key in every if key.rpartition("/")[0] in needed]
    others = sorted(set(every).difference(used))
    folder.fetch([*used, *others[:_MAX_METADATA]])


def _cut_rows(
    folder: _Folder, request: StoreRequest, shard_bytes: int, builder: MembersBuilder
) -> list[str]:
    """Add the shards of a store whose samples are rows; return their names."""
    from gpupipe.formats.zarr_rows import ZarrRows

    _fetch_metadata(folder, [path.strip("/") for path in request.list_paths()])
    rows = ZarrRows(folder.copy, request, shard_bytes)
    folder.fetch(
        key
        for key in folder.objects
        if key.startswith(tuple(f"{path}/" for path in rows.arrays_to_read))
        and not (folder.copy / key).exists()
    )
    rows.read_arrays()
    parts = [
        (begin, min(begin + rows.rows, rows.count)) for begin in range(0, rows.count, rows.rows)
    ]
    chunks = [
        [chunk for chunk in rows.iter_chunks(*part) if chunk.key in folder.objects]
        for part in parts
    ]
    folder.ask_for_versions([chunk.key for of_part in chunks for chunk in of_part])
    for part, of_part in zip(parts, chunks, strict=True):
        for name, content in rows.iter_members(*part):
            builder.add_content(name, content)
        for chunk in of_part:
            info = folder.objects[chunk.key]
            builder.add_object(chunk.name, f"{folder.name}/{chunk.key}", info, chunk.max_bytes)
        builder.end_shard()
    return [f"{folder.name}[{begin}:{end}]" for begin, end in parts]


def _cut_groups(
    folder: _Folder, request: StoreRequest, shard_bytes: int, builder: MembersBuilder
) -> list[str]:
    """Add the shards of a store whose samples are the members of a group; return their names."""
    from gpupipe.formats.zarr_rows import METADATA, iter_group, list_above

    assert request.groups is not None
    base = request.groups.strip("/")
    prefix = f"{base}/" if base else ""
    _fetch_metadata(folder, [base])
    is_wanted = _select_arrays(request)
    members: dict[str, list[str]] = {}
    for key in sorted(folder.objects):
        name, _, inner = key.removeprefix(prefix).partition("/")
        if key.startswith(prefix) and inner and is_wanted(inner):
            members.setdefault(name, []).append(key)
    members = {  # a folder without metadata is no group, and no array
        name: keys
        for name, keys in members.items()
        if any(f"{prefix}{name}/{one}" in keys for one in METADATA)
    }
    folder.ask_for_versions([key for keys in members.values() for key in keys])
    names, begin, size = list[str](), 0, 0
    for n, keys in enumerate(members.values(), 1):
        if not size:
            for path in [*list_above(base), base]:
                for name, content in iter_group(folder.copy, path):
                    builder.add_content(name, content)
        for key in keys:
            info = folder.objects[key]
            builder.add_object(key, f"{folder.name}/{key}", info)
            size += max(1, find_size(info))
        if size >= shard_bytes or n == len(members):
            builder.end_shard()
            names.append(f"{folder.name}[{begin}:{n}]")
            begin, size = n, 0
    return names


def _select_arrays(request: StoreRequest) -> Callable[[str], bool]:
    """Return a function: whether an object is used, by its path in the group of a sample."""
    from gpupipe.formats.zarr_rows import METADATA, list_above

    paths = [path.strip("/") for path in request.list_paths()]
    starts = tuple(f"{path}/" for path in paths)
    above = {folder for path in paths for folder in list_above(path)}

    def is_wanted(inner: str) -> bool:
        folder, _, name = inner.rpartition("/")
        is_above = name in METADATA and folder in above
        return ITSELF in paths or is_above or inner.startswith(starts)

    return is_wanted
