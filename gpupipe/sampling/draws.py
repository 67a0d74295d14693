"""Counter-based random numbers: hashes of (seed, epoch, sample id, repeat, stream, lane).

The same six numbers yield the same draw on every engine, device, batch size, thread count and
rank, and after any resume. There is no state. The mixer is the finaliser of SplitMix64 (Steele, Lea
and Flood 2014, with the constants of Stafford's variant 13), a bijection of 64-bit integers.

This module does not use numpy.random: NumPy does not promise the same stream in its next release
(NEP 19), and a run must be able to resume under one.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_REPEAT = np.uint64(0xD1B54A32D192ED03)
"""Odd, and near 2**64 / 1.2207 (the root of x**4 = x + 1): unrelated to the golden ratio."""
ORDER = "order"


def stream(name: str) -> int:
    """Hash a name to a 64-bit number, which separates the draws of one step from another's."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def uniform(
    seed: int,
    epoch: int,
    ids: NDArray[np.int64],
    stream: int,
    num_uniforms: int,
    repeats: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Draw uniform numbers in [0, 1), with 53 random bits each.

    Args:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        ids: The samples' rows in the index, int64 (B,).
        stream: The step's number, from `stream`.
        num_uniforms: How many draws each sample gets.
        repeats: How often each sample came before in the epoch, int64 (B,); None: never. Repeat 0
            has the draws that a sample gets without repeats.

    Returns:
        float64 (B, num_uniforms).
    """
    bits = _lane_bits(_key(seed, epoch, stream), ids, num_uniforms, repeats)
    fraction = (bits >> np.uint64(11)).astype(np.float64)
    fraction *= 2.0**-53
    return fraction


def hash_ids(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hash the ids of a batch, in their order, to one id for `uniform`.

    Draws that belong to a whole batch take it. They depend on which samples share the batch.

    Args:
        ids: The samples' rows in the index, int64 (B,).

    Returns:
        int64 (1,).
    """
    digest = hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=8).digest()
    return np.frombuffer(digest, "<i8").astype(np.int64)


def permutation(seed: int, epoch: int, count: int, purpose: str = ORDER) -> NDArray[np.int64]:
    """Return a permutation of 0 .. count - 1, int64: the ids sorted by their hashes.

    Permutations for different purposes are unrelated.

    The hash is a bijection of the id, so no two hashes are equal, and the order does not depend on
    the sorting algorithm.
    """
    keys = _lane_bits(_key(seed, epoch, stream(purpose)), np.arange(count, dtype=np.int64), 1)[:, 0]
    return np.argsort(keys)


def _key(seed: int, epoch: int, stream: int) -> NDArray[np.uint64]:
    key: NDArray[np.uint64] = np.zeros(1, np.uint64)
    for part in (seed, epoch, stream):
        key = _mix(key + _GOLDEN + np.uint64(int(part) & 0xFFFFFFFFFFFFFFFF))
    return key


def _lane_bits(
    key: NDArray[np.uint64],
    ids: NDArray[np.int64],
    num_uniforms: int,
    repeats: NDArray[np.int64] | None = None,
) -> NDArray[np.uint64]:
    sample = _mix(ids.astype(np.uint64) * _GOLDEN + key)
    if repeats is not None:
        again = _mix(sample + repeats.astype(np.uint64) * _REPEAT)
        sample = np.where(repeats == 0, sample, again)
    lane = np.arange(num_uniforms, dtype=np.uint64) * _GOLDEN
    return _mix(np.add.outer(sample, lane) + key)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
