"""Reads the settings repeats, weights, epoch_size, subset and split of `loader:` into a Selection.

A share of the samples is drawn from each class separately.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import Growing
from gpupipe.errors import ConfigError, DataError, counted, did_you_mean
from gpupipe.formats.manifest import read_ids
from gpupipe.sampling import draws
from gpupipe.sampling.chunk_order import ChunkOrder, ChunkOrdered
from gpupipe.sampling.epochs import count_earlier
from gpupipe.sampling.selection import CHUNK_ORDER, DEFAULTS, MIXTURE, Mixing, Mixture, Selection

_CLASS_BALANCED = "class_balanced"


def select_samples(config: Config, index: Index) -> Selection:
    """Return the Selection of a config: which samples an epoch has, and how often.

    Args:
        config: The config.
        index: The samples.

    Raises:
        ConfigError: If weights names no column of the index, or the source cannot have a subset.
        DataError: If a weight is negative or not finite, or the file of ids is missing or wrong.
    """
    options = config.loader
    if options.subset is not None and isinstance(config.source, Growing):
        raise _mistake(
            "subset",
            f"data.source {config.source_name} has other samples in every epoch, and fetches all "
            "of them, so no part of them can be drawn once: leave loader.subset out, and give the "
            "source a list of only those samples (data.manifest)",
        )
    rows = _choose_rows(options, index)
    settings = {name: getattr(options, name) for name in DEFAULTS}
    settings = {name: value for name, value in settings.items() if value != DEFAULTS[name]}
    if rows is not None and isinstance(options.subset, Path):
        digest = hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()
        part = f"{options.subset}, " if options.split is not None else ""
        settings["subset"] = f"{part}{len(rows)} ids, {digest}"
    mixture = _read_mixture(config, index, rows)
    if mixture is not None:
        settings[MIXTURE] = str(mixture)
    weights = _read_weights(options, index, rows)
    chunks = _read_chunk_order(config, index)
    if chunks is not None:
        settings[CHUNK_ORDER] = str(chunks)
    return Selection(options.repeats, options.epoch_size, rows, weights, settings, mixture, chunks)


def _read_chunk_order(config: Config, index: Index) -> ChunkOrder | None:
    """Return the order that a source of chunks asks for; None for a full permutation."""
    for source in config.source.list_parts():
        if not isinstance(source, ChunkOrdered) or not source.is_ordered_by_chunks:
            continue
        if source is not config.source:
            raise ConfigError.at(
                "data", "order: chunks: each part of a mix is permuted as a whole: leave it out"
            )
        if config.loader.weights is not None:
            raise _mistake(
                "weights",
                "they draw samples out of all chunks, and data.order: chunks keeps those of a "
                "chunk together: leave one of the two out",
            )
        return source.chunk_order(index) if len(index) or index.is_growing else None
    return None


def _read_mixture(config: Config, index: Index, rows: NDArray[np.int64] | None) -> Mixture | None:
    if not isinstance(config.source, Mixing) or not len(index):
        return None
    mixture = config.source.mixture(index)
    if mixture is None:
        return None
    options = config.loader
    is_set = {
        "weights": options.weights is not None,
        "repeats": options.repeats > 1,
        "epoch_size": options.epoch_size == "all",
    }
    wrong = [setting for setting, value in is_set.items() if value]
    if wrong:
        raise _mistake(
            wrong[0],
            "the proportions of a mixed data set are the weights of data.parts, and data.stop "
            "says when an epoch ends: leave it out",
        )
    if mixture.stop == "never" and options.epoch_size is None:
        raise _mistake("epoch_size", "data.stop is never: say how many samples an epoch has")
    return mixture if rows is None else mixture.restrict(rows)


def _choose_rows(options: LoaderConfig, index: Index) -> NDArray[np.int64] | None:
    subset, split = options.subset, options.split
    if subset is None or not len(index):
        return None
    if split is None:
        if isinstance(subset, Path):
            return read_ids(subset, len(index))
        return choose_share(subset, index.labels, options.seed)
    name = str(subset)
    rows = choose_part(name, split, index.labels)
    if not len(rows):
        size = int(np.unique(index.labels, return_counts=True)[1].max())
        raise _mistake(
            "split",
            f"no sample is in '{name}': of each class it takes {split[name]:g}, and no class has "
            f"more than {counted(size, 'sample')}: make its share larger"
            + f", such as {math.ceil(100 / size) / 100:g}"
            * (size > 1),
        )
    return rows


def _read_weights(
    options: LoaderConfig, index: Index, rows: NDArray[np.int64] | None
) -> NDArray[np.float64] | None:
    if options.weights is None or not (len(index) or index.is_growing):
        return None
    if index.is_growing:
        raise _mistake(
            "weights",
            "the samples come with their shards, and weights need those of all of them: leave it "
            "out, or give shards a weight (data.manifest and data.weight)",
        )
    if options.weights == _CLASS_BALANCED and not index.has_labels:
        raise _mistake(
            "weights",
            "class_balanced draws all classes equally often, and the samples have no label: name "
            "a column of weights, or leave loader.weights out",
        )
    if options.weights == _CLASS_BALANCED:
        if len(np.unique(index.labels if rows is None else index.labels[rows])) < 2:
            raise _mistake(
                "weights",
                "class_balanced needs at least 2 classes, and all samples are of one: name their "
                "labels under data, or leave loader.weights out",
            )
        return balance_classes(index.labels, rows)
    column = index.values.get(options.weights)
    if column is None:
        names = [_CLASS_BALANCED, *index.values]
        raise _mistake(
            "weights",
            f"the samples have no numbers called '{options.weights}'"
            f"{did_you_mean(options.weights, names)}{_explain_values(options.weights, index)}",
        )
    return _check_weights(options.weights, column, index)


def _explain_values(name: str, index: Index) -> str:
    """Return the end of a message about missing numbers, for a data set without any."""
    if index.values:
        return ""
    return f"; to read the column '{name}' of a list, write values: [{name}] under 'data:'"


def _check_weights(name: str, column: NDArray[Any], index: Index) -> NDArray[np.float64]:
    if column.ndim != 1:
        raise _mistake(
            "weights",
            f"'{name}' has {column.shape[1:]} numbers a sample, and a weight is one: take another "
            "column",
        )
    weights = column.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{index.location(row)}: its '{name}' is {weights[row]:g}, and loader.weights needs "
            "finite numbers from 0 on: correct it in the data"
        )
    if not 0 < weights.sum() < np.inf:
        raise DataError(
            f"loader.weights: the sum of '{name}' over all samples is {weights.sum():g}, but must "
            "be finite and above 0"
        )
    return weights


def _mistake(setting: str, text: str) -> ConfigError:
    return ConfigError.at(f"loader.{setting}", text)


def choose_share(share: float, labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Choose a share of the samples of each class, at random.

    The share of each class is rounded to whole samples, and is at least one sample. With the same
    seed, a larger share contains a smaller one.

    Args:
        share: The share, above 0 and at most 1.
        labels: The class of each sample, int64 (N,).
        seed: The loader's seed.

    Returns:
        The chosen rows, ascending, int64 (n,).
    """
    order, positions, sizes = _shuffle_classes(labels, seed, "subset")
    return np.sort(order[positions < np.maximum(np.rint(share * sizes), 1)])


def choose_part(
    name: str, shares: Mapping[str, float], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Choose the samples of one part of a split, at random from each class.

    Each class is shuffled, and cut at the cumulative sums of the shares, rounded to whole samples.
    So a part may have no sample of a small class. The result depends only on the shares and the
    labels.

    Args:
        name: The name of the part.
        shares: The share of each part, above 0, by name; at most 1 in all.
        labels: The class of each sample, int64 (N,).

    Returns:
        The rows of the part, ascending, int64 (n,). No row is in two parts.
    """
    order, positions, sizes = _shuffle_classes(labels, 0, "split")
    cuts, number = np.cumsum([0.0, *shares.values()]), list(shares).index(name)
    first, end = (np.rint(np.round(share * sizes, 6)) for share in cuts[number : number + 2])
    return np.sort(order[(positions >= first) & (positions < end)])


def _shuffle_classes(
    labels: NDArray[np.int64], seed: int, purpose: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Shuffle all samples, and count them within each class.

    Args:
        labels: The class of each sample, int64 (N,).
        seed: The seed of the permutation.
        purpose: A name for the permutation. Permutations with different names are unrelated.

    Returns:
        Three arrays, int64 (N,): the rows in their new order; the position of each of these rows
        among the rows of its class; the size of that class.
    """
    order = draws.permutation(seed, 0, len(labels), purpose)
    _, members, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    return order, count_earlier(members), sizes[members]


def balance_classes(
    labels: NDArray[np.int64], rows: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Return weights with which all classes are drawn equally often.

    Args:
        labels: The class of each sample, int64 (N,).
        rows: The samples to choose from; None: all. Only these count for the size of a class.

    Returns:
        The weight of each sample, float64 (N,): 1 / the number of samples in `rows` of its class.
    """
    _, members = np.unique(labels, return_inverse=True)
    chosen = members if rows is None else members[rows]
    sizes = np.bincount(chosen, minlength=len(labels))
    return 1.0 / np.maximum(sizes, 1)[members]
