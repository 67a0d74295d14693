"""Finds equal and nearly equal images by their hashes, in a time that grows less than by n * n.

Two 64-bit hashes that differ in at most 4 bits agree in at least 2 of 6 parts of 10 or 11 bits. So
for each of the 15 pairs of parts, the hashes are sorted by the 21 bits of both parts, and only
neighbours that agree in all of these are compared.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from gpupipe.inspection.faults import Sample, find_uniform
from gpupipe.inspection.scan import Scan

MAX_DISTANCE = 4
"""Images are nearly equal if at most this many bits of their perceptual hashes differ."""
_BITS, _PARTS = 64, MAX_DISTANCE + 2
_MAX_PAIRS = 1_000_000
"""How many pairs are kept before their groups are joined."""
Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]


def find_duplicates(scans: Sequence[Scan]) -> Iterator[tuple[str, list[Sample]]]:
    """Yield groups of equal and nearly equal images: the kind of the finding, and the samples.

    A group of nearly equal images holds all that are connected by pairs of them. Images of almost
    one colour are in no such group, since their hashes say nothing.

    Args:
        scans: The data sets, with pixels.
    """
    owners = np.repeat(np.arange(len(scans)), [len(scan.pixels) for scan in scans])
    rows = np.concatenate([scan.pixels for scan in scans])
    digests, hashes = (
        np.concatenate([scan.facts[name][scan.pixels] for scan in scans])
        for name in ("digest", "hash")
    )
    is_plain = [~np.isin(scan.pixels, find_uniform(scan)) for scan in scans]
    of_file: Numbers = np.unique(digests, axis=0, return_inverse=True)[1].reshape(-1)
    for members in _split(_group_all(of_file, hashes, np.flatnonzero(np.concatenate(is_plain)))):
        group = [Sample(scans[owners[n]], int(rows[n])) for n in members]
        files = of_file[members]
        for equal in _split(files):
            if len(np.unique(owners[members[equal]])) < len(equal):
                yield "duplicates", [group[n] for n in equal]
        if len(np.unique(files)) > 1:
            yield "near", group
        if len({sample.label for sample in group}) > 1:
            yield "labels", group
        if len(np.unique(owners[members])) > 1:
            yield "leaks", group


def _split(of_group: Numbers) -> list[Numbers]:
    """Return the positions in each group of two and more."""
    shared = np.flatnonzero(np.bincount(of_group)[of_group] > 1)
    shared = shared[np.argsort(of_group[shared], kind="stable")]
    groups = np.split(shared, np.flatnonzero(np.diff(of_group[shared])) + 1)
    return [group for group in groups if len(group)]


def _group_all(of_file: Numbers, hashes: Hashes, plain: Numbers) -> Numbers:
    """Return the number of each image's group of equal and nearly equal images, (n,).

    Args:
        of_file: A number for each image, the same for equal files, (n,).
        hashes: The perceptual hash of each image, (n,).
        plain: The positions of the images whose hashes are compared.
    """
    every, of_hash = np.unique(hashes[plain], return_inverse=True)
    of_near = group_near(every)[of_hash.reshape(-1)]
    pairs = [(np.arange(len(of_file)), _first_of(of_file)), (plain, plain[_first_of(of_near)])]
    return _connect(len(of_file), pairs)


def _first_of(of_group: Numbers) -> Numbers:
    """Return the position of the first member of each one's group, (n,)."""
    _, first, inverse = np.unique(of_group, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)]


def group_near(hashes: Hashes) -> Numbers:
    """Return a number for each hash; hashes at a distance of at most 4 bits have the same.

    Args:
        hashes: Different hashes, uint64 (n,).
    """
    groups: Numbers = np.arange(len(hashes))
    bounds = [_BITS * n // _PARTS for n in range(_PARTS + 1)]
    masks = [np.uint64((1 << high) - (1 << low)) for low, high in pairwise(bounds)]
    for one, other in combinations(masks, 2):
        keys = hashes & (one | other)
        order = np.argsort(keys)
        pairs: list[tuple[Numbers, Numbers]] = []
        waiting = 0
        for left, right in _iterate_neighbours(keys[order]):
            a, b = order[left], order[right]
            is_near = (groups[a] != groups[b]) & (_distance(hashes[a], hashes[b]) <= MAX_DISTANCE)
            pairs.append((groups[a[is_near]], groups[b[is_near]]))
            waiting += len(pairs[-1][0])
            if waiting > _MAX_PAIRS:
                groups, pairs, waiting = _connect(len(hashes), pairs)[groups], [], 0
        groups = _connect(len(hashes), pairs)[groups]
    return groups


def _iterate_neighbours(keys: Hashes) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the positions of all pairs of equal keys; `keys` is sorted."""
    left, step = np.arange(len(keys)), 1
    while len(left):
        left = left[: np.searchsorted(left, len(keys) - step)]
        left = left[keys[left] == keys[left + step]]
        yield left, left + step
        step += 1


def _distance(a: Hashes, b: Hashes) -> NDArray[np.uint8]:
    """Return in how many bits two hashes differ."""
    table = _POPCOUNT[(a ^ b).view(np.uint16).reshape(-1, 4)]
    return table.sum(1, dtype=np.uint8)  # type: ignore[no-any-return]


_POPCOUNT = np.unpackbits(np.arange(1 << 16).astype(np.uint16).view(np.uint8)).reshape(-1, 16)
_POPCOUNT = _POPCOUNT.sum(1, dtype=np.uint8)


def _connect(count: int, pairs: Sequence[tuple[Numbers, Numbers]]) -> Numbers:
    """Return the number of each node's connected component, (count,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    none = np.empty(0, np.int64)
    ends = tuple(np.concatenate([none, *(pair[n] for pair in pairs)]) for n in (0, 1))
    graph = coo_array((np.ones(len(ends[0]), bool), ends), shape=(count, count))
    groups: Numbers = connected_components(graph, directed=False)[1]
    return groups
