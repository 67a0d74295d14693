"""Random fields in NumPy: numbers for each pixel of an image, from the seed of its sample.

Number n of a field is a function of the seed and of n alone: a hash, as in sampling/draws.py. The
extension `gpupipe._kernels` computes the same numbers faster, and equal to the bit. So each
operation here is one of integers, or a single IEEE operation in float32. native/fields.cpp has the
same operations in the same order.

A normal number takes two hashes (Box and Muller 1958). Its logarithm, sine and cosine are the
polynomials of Cephes (Moshier), not those of a mathematical library, whose last bit differs between
machines.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 512
"""Normal numbers n and n + 256 of a block share their two hashes."""
_HALF = _BLOCK // 2
_PART = 200 * _HALF
"""How many values an array has at most while numbers are drawn: several arrays fit the cache of a
core.
"""
_ONE = np.uint32(0x3F800000)
"""The bits of 1.0."""
_ROOT_HALF = np.int32(0x3F3504F3)
"""The bits of sqrt(0.5)."""
_EIGHTH_TURN = np.float32(np.pi / 4) * np.float32(2.0**-23)
_LOG = np.array(
    "7.0376836292e-2 -1.1514610310e-1 1.1676998740e-1 -1.2420140846e-1 1.4249322787e-1 "
    "-1.6668057665e-1 2.0000714765e-1 -2.4999993993e-1 3.3333331174e-1".split(),
    np.float32,
)
_LOG_2 = np.float32(0.69314718)
_SINE = np.array([-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1], np.float32)
_COSINE = np.array([2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2], np.float32)


def draw_normal(seed: int, count: int) -> NDArray[np.float32]:
    """Draw numbers from the standard normal distribution.

    Args:
        seed: The seed, an integer of 64 bits.
        count: How many numbers to draw.

    Returns:
        float32 (count,), each between -5.8 and 5.8.
    """
    key, blocks = _make_key(seed), -(-count // _BLOCK)
    drawn = np.empty((blocks, 2, _HALF), np.float32)
    for part in _iter_parts(blocks, _PART // _HALF):
        first = np.arange(part.start * _BLOCK, part.stop * _BLOCK, _BLOCK, dtype=np.uint32)
        numbers = np.add.outer(first, np.arange(_HALF, dtype=np.uint32))
        second = _hash(numbers + np.uint32(_HALF), key)
        drawn[part, 0], drawn[part, 1] = _transform(_hash(numbers, key), second)
    return drawn.reshape(-1)[:count]


def draw_uniform(seed: int, count: int) -> NDArray[np.float32]:
    """Draw uniform numbers in [0, 1), float32 (count,), with 24 random bits each."""
    key, drawn = _make_key(seed), np.empty(count, np.float32)
    for part in _iter_parts(count, _PART):
        hashes = _hash(np.arange(part.start, part.stop, dtype=np.uint32), key)
        drawn[part] = hashes >> np.uint32(8)
        drawn[part] *= np.float32(2.0**-24)
    return drawn


def blur(
    field: NDArray[np.float32], across: NDArray[np.float32], down: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Blur a field (H, W) with symmetric kernels along x and y.

    The border is mirrored without repeating the last pixel, so each side must be longer than the
    kernel.

    Args:
        field: The field, (H, W).
        across: The kernel along x, from its middle on: float32 (half + 1,).
        down: The kernel along y, likewise.
    """
    width = field.shape[1]
    padded = np.pad(field, ((0, 0), (len(across) - 1,) * 2), "reflect")
    columns = [padded[:, n : n + width] for n in range(2 * len(across) - 1)]
    padded = np.pad(_weigh(columns, across), ((len(down) - 1,) * 2, (0, 0)), "reflect")
    rows = [padded[n : n + len(field)] for n in range(2 * len(down) - 1)]
    return _weigh(rows, down)


def _weigh(fields: list[NDArray[np.float32]], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    half = len(weights) - 1
    total: NDArray[np.float32] = fields[half] * weights[0]
    for k in range(1, half + 1):
        pair = fields[half - k] + fields[half + k]
        pair *= weights[k]
        total += pair
    return total


def _iter_parts(count: int, max_size: int) -> Iterator[slice]:
    """Yield slices that together are `count` long, of about equal length."""
    parts = -(-count // max_size)
    for n in range(parts):
        yield slice(count * n // parts, count * (n + 1) // parts)


def _hash(numbers: NDArray[np.uint32], key: tuple[np.uint32, np.uint32]) -> NDArray[np.uint32]:
    """Hash the numbers of a field in place: triple32 of the Hash Prospector (Wellons 2018)."""
    numbers += key[0]
    numbers ^= numbers >> np.uint32(17)
    numbers *= np.uint32(0xED5AD4BB)
    numbers ^= numbers >> np.uint32(11)
    numbers *= np.uint32(0xAC4C1B51)
    numbers ^= key[1]
    numbers ^= numbers >> np.uint32(15)
    numbers *= np.uint32(0x31848BAB)
    numbers ^= numbers >> np.uint32(14)
    return numbers


def _make_key(seed: int) -> tuple[np.uint32, np.uint32]:
    """Return the key of a seed: the finaliser of SplitMix64, as in sampling/draws.py."""
    mask = (1 << 64) - 1
    x = int(seed) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x ^= x >> 31
    return np.uint32(x & 0xFFFFFFFF), np.uint32(x >> 32)


def _transform(
    a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Turn pairs of hashes into pairs of normal numbers; overwrite both."""
    a >>= np.uint32(9)
    a |= _ONE
    fraction = a.view(np.float32)  # from 1 to 2; the difference below is exact
    fraction -= np.float32(1 - 2.0**-24)
    radius = _log(fraction)
    radius *= np.float32(-2.0)
    np.sqrt(radius, radius)
    # The 24 low bits are an angle in an eighth of the circle on both sides of an axis.
    bits = b.view(np.int32)
    angle = (bits & np.int32(0xFFFFFF)).astype(np.float32)
    angle -= np.float32(8388607.5)
    angle *= _EIGHTH_TURN
    square = angle * angle
    sine = _polynomial(_SINE, square)
    sine *= square
    sine *= angle
    sine += angle
    cosine = _polynomial(_COSINE, square)
    cosine *= square
    cosine *= square
    cosine -= square * np.float32(0.5)
    cosine += np.float32(1.0)
    first, second = cosine.view(np.int32), sine.view(np.int32)
    first ^= bits & np.int32(-(2**31))
    bits <<= np.int32(1)
    bits >>= np.int32(31)  # all bits set where the two are swapped
    bits &= first ^ second
    first ^= bits
    second ^= bits
    cosine *= radius
    sine *= radius
    return cosine, sine


def _log(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the natural logarithm of positive numbers."""
    bits = value.view(np.int32) - _ROOT_HALF
    exponent = (bits >> np.int32(23)).astype(np.float32)
    bits &= np.int32(0x7FFFFF)
    bits += _ROOT_HALF
    x = bits.view(np.float32)
    x -= np.float32(1.0)
    y = _polynomial(_LOG, x)
    square = x * x
    y *= x
    y *= square
    square *= np.float32(0.5)
    y -= square
    y += x
    exponent *= _LOG_2
    exponent += y
    return exponent


def _polynomial(coefficients: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
    total: NDArray[np.float32] = x * coefficients[0]
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= x
        total += coefficient
    return total
