"""Numbers in the braces of a pattern, as in shards-{000..127}.tar."""

import re

from gpupipe.errors import DataError

MAX_SHARDS = 1_000_000
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
