"""Counter-based random numbers: hashes of (seed, epoch, sample id, repeat, stream, lane).

The stream is the number of a step or of another purpose. The lane counts the draws of one sample
for that purpose. The same six numbers yield the same draw on every engine, device, batch size,
thread count and rank, and after any resume. There is no state. The mixer is the finaliser of
SplitMix64 (Steele, Lea and Flood 2014, with the constants of Stafford's variant 13), a bijection of
64-bit integers.

This module does not use numpy.random: NumPy does not promise the same stream in its next release
(NEP 19), and a run must be able to resume with a later NumPy.

A Distribution turns uniform draws into one value for each of B samples. It draws nothing itself.
Its argument is float64 (B, num_uniforms) in [0, 1). Its result is (B,), or (B, n) if each value has
n numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.runtime.installation import find_extension

_GOLDEN_NUMBER = 0x9E3779B97F4A7C15
_GOLDEN, _MASK = np.uint64(_GOLDEN_NUMBER), 0xFFFFFFFFFFFFFFFF
_REPEAT = np.uint64(0xD1B54A32D192ED03)
"""Multiplier for repeats: odd, and near 2**64 / 1.2207 (the root of x**4 = x + 1).

It is unrelated to the golden ratio, by which sample ids and lanes are multiplied.
"""
ORDER = "order"
_extension = find_extension()


@lru_cache(maxsize=4096)
def stream(name: str) -> int:
    """Hash the name of a step, or of another purpose, to the 64-bit number that `uniform` takes.

    Different numbers give unrelated draws.
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def uniform(
    seed: int,
    epoch: int,
    ids: NDArray[np.int64],
    stream: int,
    num_uniforms: int,
    repeats: NDArray[np.int64] | None = None,
    first: int = 0,
) -> NDArray[np.float64]:
    """Draw uniform numbers in [0, 1), with 53 random bits each.

    Args:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        ids: The samples' rows in the index, int64 (B,).
        stream: The number of the step, which the function `stream` returned.
        num_uniforms: How many draws each sample gets.
        repeats: How often each sample came before in the epoch, int64 (B,); None is the same as all
            zeros.
        first: How many draws of each sample are left out before the first one.

    Returns:
        float64 (B, num_uniforms).
    """
    return _as_fractions(_lane_bits(_key(seed, epoch, stream), ids, num_uniforms, repeats, first))


def uniform_for_streams(
    seed: int,
    epoch: int,
    ids: NDArray[np.int64],
    streams: Sequence[tuple[int, int]],
    repeats: NDArray[np.int64] | None = None,
    joined: Sequence[int] | None = None,
) -> list[NDArray[np.float64]]:
    """Return the results of `uniform` for several streams, computed at once.

    Args:
        seed: The loader's seed.
        epoch: The epoch, from 0.
        ids: The samples' rows in the index, int64 (B,).
        streams: The stream of each result, and how many draws each sample gets from it.
        repeats: As for `uniform`.
        joined: For each result, of how many successive streams it is; each has equally many draws.
            None for one result of each stream.

    Returns:
        float64 (B, n) for each stream, where n is its number of draws. Those of m streams that are
        joined are (m * B, n), one stream after the other.
    """
    sizes = [1] * len(streams) if joined is None else joined
    keys, counts, begins = _find_keys(seed, epoch, tuple(streams))
    if not begins[-1]:
        return [np.empty((size * len(ids), 0)) for size in sizes]
    if _extension is not None:
        rows = len(ids)
        flat = np.empty(rows * begins[-1])
        _extension.draw_uniforms(keys, counts, np.ascontiguousarray(ids), repeats, flat)
        results, first = [], 0
        for size in sizes:
            part = flat[rows * begins[first] : rows * begins[first + size]]
            results.append(part.reshape(size * rows, begins[first + 1] - begins[first]))
            first += size
        return results
    lanes = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts]) * _GOLDEN
    samples = _sample_bits(keys, ids[:, None], None if repeats is None else repeats[:, None])
    keys, samples = np.repeat(keys, counts), np.repeat(samples, counts, axis=1)
    fractions = _as_fractions(_mix(samples + lanes + keys))
    # Packed, so that steps compute from each what they compute from the result of `uniform`.
    each = iter([np.ascontiguousarray(fractions[:, b:e]) for b, e in pairwise(begins)])
    return [np.concatenate([*islice(each, size)]) for size in sizes]


@lru_cache(maxsize=64)
def _find_keys(
    seed: int, epoch: int, streams: tuple[tuple[int, int], ...]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], list[int]]:
    """Return the keys of streams, the numbers of their draws, and where the draws of each begin."""
    keys = _key(seed, epoch, *(stream for stream, _ in streams))
    counts = np.array([count for _, count in streams], np.int64)
    return keys, counts, [0, *np.cumsum(counts).tolist()]


def _as_fractions(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    fraction = (bits >> np.uint64(11)).astype(np.float64)
    fraction *= 2.0**-53
    return fraction


def hash_ids(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hash the ids of a batch, in their order, to one id for `uniform`.

    A step that draws once for a whole batch uses this id. So the step's draws depend on the samples
    of the batch and on their order.

    Args:
        ids: The samples' rows in the index, int64 (B,).

    Returns:
        int64 (1,).
    """
    digest = hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=8).digest()
    return np.frombuffer(digest, "<i8").astype(np.int64)


def permutation(seed: int, epoch: int, count: int, purpose: str = ORDER) -> NDArray[np.int64]:
    """Return the numbers 0 .. count - 1 in a random order, int64 (count,): sorted by their hashes.

    Orders for different purposes are unrelated. No two numbers have equal hashes, so the order does
    not depend on the sorting algorithm.
    """
    keys = _lane_bits(_key(seed, epoch, stream(purpose)), np.arange(count, dtype=np.int64), 1)[:, 0]
    return np.argsort(keys)


@lru_cache(maxsize=4096)
def _key(seed: int, epoch: int, *streams: int) -> NDArray[np.uint64]:
    """Return the key of each stream, (streams,)."""
    mixed = _mix_number(_mix_number(int(seed)) + int(epoch))  # those of NumPy overflow
    key = np.array([_mix_number(mixed + stream) for stream in streams], np.uint64)
    key.flags.writeable = False  # all callers get the same array
    return key


def _lane_bits(
    key: NDArray[np.uint64],
    ids: NDArray[np.int64],
    num_uniforms: int,
    repeats: NDArray[np.int64] | None = None,
    first: int = 0,
) -> NDArray[np.uint64]:
    sample = _sample_bits(key, ids, repeats)
    lane = np.arange(first, first + num_uniforms, dtype=np.uint64) * _GOLDEN
    return _mix(np.add.outer(sample, lane) + key)


def _sample_bits(
    key: NDArray[np.uint64], ids: NDArray[np.int64], repeats: NDArray[np.int64] | None
) -> NDArray[np.uint64]:
    sample = _mix(ids.astype(np.uint64) * _GOLDEN + key)
    if repeats is None:
        return sample
    again = _mix(sample + repeats.astype(np.uint64) * _REPEAT)
    return np.where(repeats == 0, sample, again)


def _mix_number(number: int) -> int:
    """Return what `_mix` makes of `_GOLDEN + number`. An array takes longer."""
    x = (_GOLDEN_NUMBER + number) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


@dataclass(frozen=True)
class Uniform:
    """The distribution of numbers from `min` to `max`, all equally probable.

    Attributes:
        min: The smallest number.
        max: The upper limit. It is drawn only if `whole` is true: uniform draws are below 1.
        whole: Whether the values are whole numbers, int64; otherwise they are float64.
    """

    min: float
    max: float
    whole: bool = False
    num_uniforms: int = 1

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        if self.whole:
            return (self.min + np.floor(u[:, 0] * (self.max - self.min + 1))).astype(np.int64)
        return self.min + u[:, 0] * (self.max - self.min)


@dataclass(frozen=True)
class Normal:
    """The normal distribution, drawn by the method of Box and Muller (1958).

    Attributes:
        mean: The mean.
        std: The standard deviation, 0 or more.
        whole: Whether the values are rounded to whole numbers, int64; otherwise they are float64.
    """

    mean: float
    std: float
    whole: bool = False
    num_uniforms: int = 2

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        radius = np.sqrt(-2.0 * np.log1p(-u[:, 0]))  # 1 - u is above 0
        values = self.mean + self.std * radius * np.cos(2.0 * np.pi * u[:, 1])
        return np.floor(values + 0.5).astype(np.int64) if self.whole else values


@dataclass(frozen=True)
class Choice:
    """The distribution that draws one of several values, all equally probable.

    Attributes:
        values: Numbers, or tuples of equally many numbers.
    """

    values: tuple[Any, ...]
    num_uniforms: int = 1

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        number = np.floor(u[:, 0] * len(self.values)).astype(np.int64)
        return np.asarray(self.values)[number]


@dataclass(frozen=True)
class Flip:
    """The distribution that draws 1 with probability `p`, and otherwise 0, int64."""

    p: float
    num_uniforms: int = 1

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        return (u[:, 0] < self.p).astype(np.int64)


@dataclass(frozen=True)
class Vector:
    """The distribution that draws n values for each of B samples, (B, n), one from each of `parts`.

    Attributes:
        parts: For each of the n values its distribution, or a number that all samples get.
    """

    parts: tuple[Distribution | float, ...]

    @property
    def num_uniforms(self) -> int:
        return sum(0 if isinstance(part, int | float) else part.num_uniforms for part in self.parts)

    def __call__(self, u: NDArray[np.float64]) -> NDArray[Any]:
        columns: list[NDArray[Any]] = []
        first = 0
        for part in self.parts:
            if isinstance(part, int | float):
                columns.append(np.full(len(u), part))
                continue
            columns.append(part(u[:, first : first + part.num_uniforms]))
            first += part.num_uniforms
        return np.stack(columns, -1)


Distribution = Uniform | Normal | Choice | Flip | Vector
