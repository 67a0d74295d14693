"""What patterns of shards stand for: numbers in braces, and files that are no shards."""

import re
from collections.abc import Iterable

from gpupipe.errors import DataError

MAX_SHARDS = 1_000_000
_ENDING = re.compile(r"\.[^./]*$")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


def expand_braces(pattern: str) -> list[str]:
    """Return one pattern for each number in braces: a{0..2} becomes a0, a1 and a2."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < MAX_SHARDS:
        raise DataError(
            f"{pattern}: {match[0]} should count upwards, to at most {MAX_SHARDS:,} shards"
        )
    width = len(match[1]) if match[1].startswith("0") else 0
    return [
        one
        for n in range(first, last + 1)
        for one in expand_braces(f"{pattern[: match.start()]}{n:0{width}}{pattern[match.end() :]}")
    ]


def leave_out_indexes(names: Iterable[str]) -> list[str]:
    """Return the names of files without those of indexes beside a shard: x.idx of x or x.tar.

    DALI's tools wds2idx and tfrecord2idx write such indexes. They are not read: where samples are,
    the headers of a tar and the lengths of a TFRecord say, which have to be checked anyway.
    """
    every = list(names)
    shards = [name for name in every if not name.endswith(".idx")]
    indexes = {f"{stem}.idx" for name in shards for stem in (name, _ENDING.sub("", name))}
    return [name for name in every if name not in indexes]
