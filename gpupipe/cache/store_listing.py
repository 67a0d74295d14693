"""Lists a remote data set: its files, or the rows of its manifest.

It runs in a child process, so that the training process imports no client library of a store.
"""

import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.file_system import describe_error, read_url
from gpupipe.cache.listing import Listing, file_version, find_size, hash_file_version
from gpupipe.cache.settings import DataSet
from gpupipe.cache.store import Store
from gpupipe.cache.stored_formats import list_patterns
from gpupipe.dataset import labels as classes_of
from gpupipe.dataset.braces import expand_braces, leave_out_indexes
from gpupipe.dataset.class_folders import get_suffixes
from gpupipe.dataset.columns import StringArray
from gpupipe.dataset.index import compute_fingerprint
from gpupipe.errors import DataError, shown

if TYPE_CHECKING:
    from gpupipe.formats.manifest_rows import ManifestRows

_UNSAFE_NAME = re.compile(r"[\0\\]|(?:^|/)\.{0,2}(?:/|$)|^[a-zA-Z][a-zA-Z0-9+.-]*:")
"""Matches names that are not plain paths NAME/NAME/...: URLs, and names that have NUL, a backslash,
or a part that is '', '.' or '..'.
"""
_MAX_NAME_LENGTH = 4096
ListAll = Callable[[], dict[str, dict[str, Any]]]
_MAX_ASKED_FILES = 100_000
"""Maximum number of files whose versions are requested one by one, which takes minutes."""


@dataclass
class StoreRows:
    """The columns of a listing, N entries each. Columns that the data set lacks are empty.

    Attributes:
        names: The path of each file below the url.
        labels: The label of each sample.
        infos: fsspec's description of each file, such as its size; {} if the store was not asked
            about the file.
        weights: The weight of each sample.
        metadata: The other columns of each manifest row, as JSON text.
        values: Maps the name of each numeric column to its numbers.
    """

    names: list[str]
    labels: list[str]
    infos: list[dict[str, Any]]
    weights: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    metadata: list[str] = field(default_factory=list)
    values: dict[str, NDArray[Any]] = field(default_factory=dict)


def list_samples(
    dataset: DataSet,
    store: Store,
    connections: int = 16,
    on_rows: Callable[[StoreRows], object] = lambda rows: None,
) -> Listing:
    """List the samples of a data set.

    Asks the store about each file of a manifest, and about each file whose version is not in the
    store's own listing. If there are more than 100,000 such files, their versions stay unknown.

    Args:
        dataset: The data set.
        store: The store that has the files.
        connections: How many files to ask the store about at the same time.
        on_rows: Called before the store is asked about single files.

    Raises:
        DataError: There are no samples, or a name or a value is invalid.
    """
    if dataset.shards is not None:
        rows = list_shards(dataset, store)
        empty = f"{dataset.url}: no file matches {', '.join(list_patterns(dataset))}"
        advice = "set data.url, or data.shards"
    elif dataset.manifest is None:
        rows = _list_files(dataset, store)
        empty = f"{dataset.url}: no files that end in {', '.join(dataset.extensions)}"
        advice = "set data.url, or data.extensions"
    else:
        rows = _read_manifest(dataset, dataset.manifest)
        empty, advice = f"{dataset.manifest_name}: no rows", "list at least one sample"
    if not rows.names:
        raise DataError(f"{empty}: {advice}")
    labels, classes = _number_labels(rows, dataset.manifest_name)
    names = StringArray.from_strings(rows.names)
    on_rows(rows)
    ask_for_versions(rows, store, connections)
    return Listing(
        names,
        labels,
        np.array([find_size(info) for info in rows.infos], np.int64),
        np.array([hash_file_version(info) for info in rows.infos], np.uint64),
        rows.weights,
        StringArray.from_strings(rows.metadata),
        classes,
        compute_fingerprint(names, labels, classes, {}, {}),
        StringArray.from_strings(file_version(info) for info in rows.infos),
        rows.values,
    )


def ask_for_versions(
    rows: StoreRows, store: Store, connections: int, among: Iterable[int] | None = None
) -> None:
    """Ask the store about each file without a known version; add the answers to `rows.infos`.

    Does nothing if there are over 100,000 such files. `among` are the rows to look at, by default
    all.
    """
    among = range(len(rows.infos)) if among is None else among
    lacking = [n for n in among if not hash_file_version(rows.infos[n])]
    names = list(dict.fromkeys(rows.names[n] for n in lacking))
    if len(names) > _MAX_ASKED_FILES:
        return
    infos = dict(zip(names, store.describe_files(names, connections), strict=True))
    for n in lacking:
        rows.infos[n] = rows.infos[n] | infos[rows.names[n]]


def check_name(name: str, where: str) -> str:
    """Return `name` if it is a path that stays under the url.

    Args:
        name: Path of a file under the url.
        where: The line of the manifest, or the url, for the message.

    Raises:
        DataError: The path could lead outside the url.
    """
    if len(name) > _MAX_NAME_LENGTH or _UNSAFE_NAME.search(name):
        raise DataError(
            f"{where}: {shown(name)} is no name of a file below data.url: parts like '..', "
            "absolute paths and other URLs are refused"
        )
    return name


def _list_files(dataset: DataSet, store: Store) -> StoreRows:
    """Return the files under the url with one of the data set's extensions, sorted by name."""
    suffixes, files = get_suffixes(dataset.extensions), store.list_files()
    names = sorted(name for name in files if name.lower().endswith(suffixes))
    for name in names:
        check_name(name, dataset.url)
    labels = [] if dataset.label is None else [_get_class(name, dataset.url) for name in names]
    return StoreRows(names, labels, [files[name] for name in names])


def list_shards(dataset: DataSet, store: Store, list_all: ListAll | None = None) -> StoreRows:
    """Return the shards that match the patterns of a data set, sorted by name, each once.

    Those of a manifest are its rows that match. Numbers in braces need no listing of the store.

    Args:
        dataset: The data set.
        store: The store that has them.
        list_all: Lists what patterns may match; by default the files of the store.

    Raises:
        DataError: The store cannot be listed, or a name is invalid.
    """
    from fsspec.utils import glob_translate

    patterns = [one for pattern in list_patterns(dataset) for one in expand_braces(pattern)]
    if dataset.manifest is not None:
        rows = _read_manifest(dataset, dataset.manifest)
        weight_of = dict(zip(rows.names, rows.weights, strict=True)) if len(rows.weights) else {}
        files: dict[str, dict[str, Any]] = {name: {} for name in rows.names}
    else:
        weight_of, is_listed = {}, any(set(pattern) & set("*?[") for pattern in patterns)
        list_all = list_all or store.list_files
        files = list_all() if is_listed else {pattern: {} for pattern in patterns}
    matches = re.compile("|".join(map(glob_translate, patterns))).match
    names = sorted(leave_out_indexes(name for name in files if matches(name)))
    for name in names:
        check_name(name, dataset.url)
    weights = np.array([weight_of[name] for name in names]) if weight_of else np.empty(0)
    return StoreRows(names, [], [files[name] for name in names], weights)


def _get_class(name: str, url: str) -> str:
    folder = name.rpartition("/")[0].rpartition("/")[2]
    if not folder:
        raise DataError(
            f"{url}: {shown(name)} lies in no folder that names its class: move it into "
            "one, or set data.label: null where there are no labels"
        )
    return folder


def _read_manifest(dataset: DataSet, manifest: str) -> StoreRows:
    """Return the rows of the manifest, in its order."""
    from gpupipe.formats.manifest import read_stream
    from gpupipe.formats.manifest_rows import ManifestColumns

    has_shards = dataset.shards is not None
    wanted = ManifestColumns(
        {"image": dataset.path},
        None if has_shards else dataset.label,
        values={} if has_shards else {name: name for name in dataset.values},
        weight=dataset.weight,
        keeps_rest=True,
    )
    name = str(dataset.manifest_name)
    try:
        content = io.BytesIO(read_url(manifest, dataset))
        rows = read_stream(name, content, wanted, lambda count: None)
    except DataError:
        raise
    except Exception as e:  # whatever the clients of the stores raise
        raise DataError(
            f"{name}: cannot be read: {describe_error(e)}: set data.manifest to the list "
            "of the samples"
        ) from e
    prefix = f"{dataset.url}/"
    return StoreRows(
        names=[
            check_name(path.removeprefix(prefix), rows.where(i))
            for i, path in enumerate(rows.paths["image"])
        ],
        labels=[_check_label(label, rows.where(i)) for i, label in enumerate(rows.labels)],
        infos=[{} for _ in rows.paths["image"]],
        weights=_check_weights(rows),
        metadata=[json.dumps(record, default=str) for record in rows.rest],
        values=rows.values,
    )


def _check_label(label: str, where: str) -> str:
    text = label.strip()
    if not text or "\0" in text:
        raise DataError(f"{where}: {shown(text)} is no label: a name, or a whole number from 0 on")
    return text


def _check_weights(rows: "ManifestRows") -> NDArray[np.float64]:
    if rows.weights is None:
        return np.empty(0)
    weights = rows.weights.astype(np.float64)
    for row in np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))[:1].tolist():
        raise DataError(f"{rows.where(row)}: {weights[row]:g} is no weight: a number from 0 on")
    if len(weights) and not weights.any():
        raise DataError(
            f"{rows.name}: every weight is 0, so that nothing would be fetched: see data.weight"
        )
    return weights


def _number_labels(rows: StoreRows, manifest: str | None) -> tuple[NDArray[np.int64], list[str]]:
    """Return the class number of each row, int64 (N,), and the names of the classes.

    Labels of a manifest are numbered by `labels.from_texts`, folder names in sorted order.
    """
    if not rows.labels:
        return classes_of.make_unlabelled(len(rows.names))
    if manifest is not None:
        return classes_of.from_texts(rows.labels, lambda i: f"{manifest}: {rows.names[i]}")
    distinct = sorted(set(rows.labels))
    number_of = {label: n for n, label in enumerate(distinct)}
    return np.array([number_of[label] for label in rows.labels], np.int64), distinct
