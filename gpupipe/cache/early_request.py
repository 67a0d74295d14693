"""Asks a web server for the first shards of a data set, before a download worker imports the rest.

It needs the standard library and obstore alone, which are imported in a third of the time. It reads
one page of links, and only of the most common data sets: tars in a folder of a web server. The
listing that counts is that of `early_listing.list_early`.
"""

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpupipe.cache.range_reader import PART, FetchedRange, can_read, create_range_reader

_COUNT = 3
"""How many shards are asked for. Small ones are often here before the worker can fetch others."""
_PAGE_SECONDS, _PART_SECONDS = 2.0, 60.0
_LINK = re.compile(r"""<a\s[^>]*?href=["']([^"'/]+)["']""", re.IGNORECASE)
_TARS = re.compile(r"(?:[*][*]/)?([^/{}[\]]*[.]tar)")
_LEFT_OUT = {"storage_options", "manifest", "shard_format", "workers", "rate_limit", "timeout"}
"""Settings of data sets and caches for which nothing is asked for here."""


def read_data(line: bytes) -> Any:
    """Return the `data` of a config; None if there is none.

    Args:
        line: JSON: the `data`, or the text of a config in YAML. It may be empty.
    """
    try:
        data = json.loads(line)
        if isinstance(data, str):
            import yaml

            data = yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["data"]
    except Exception:  # the task says what is wrong
        return None
    return data


def request_shards(data: Any) -> dict[str, Future[FetchedRange]]:
    """Ask for the first `PART` bytes of the shards that come first into an empty cache.

    Args:
        data: The `data` of a config, or None.

    Returns:
        The parts, by the name of the shard. Empty for other data sets, and if the page cannot be
        read.
    """
    try:
        url, cache = data["url"].rstrip("/"), data["cache"]
        pattern = _TARS.fullmatch(data["shards"])
        is_web = url.startswith(("http://", "https://"))
        is_web &= f"{url.partition(':')[0]}_proxy" not in map(str.lower, os.environ)
        if pattern is None or not is_web or _LEFT_OUT & (data.keys() | cache.keys()):
            return {}
        reader = create_range_reader(url, {}, _PART_SECONDS)
        if reader is None or Path(cache["dir"], "listing.idx").expanduser().exists():
            return {}
        pool = ThreadPoolExecutor(1)
        # In a thread, because each byte that comes begins the timeout of a socket again.
        names = pool.submit(_list_page, url, pattern[1]).result(_PAGE_SECONDS)
        chosen = choose_first(len(names), data.get("seed", 0))
        return {names[n]: pool.submit(reader.read, names[n], 0, PART) for n in chosen}
    except Exception:  # the task says what is wrong
        return {}


def choose_first(count: int, seed: int, weights: Sequence[float] | None = None) -> list[int]:
    """Return which of `count` shards to ask for first: a few, drawn at random, or by weight."""
    import heapq
    import random

    draw = random.Random(seed)
    times = {
        n: draw.expovariate(weight)
        for n, weight in enumerate([1.0] * count if weights is None else weights)
        if weight > 0
    }
    return heapq.nsmallest(_COUNT, times, times.__getitem__)


def _list_page(url: str, pattern: str) -> list[str]:
    """Return the names in a folder's page that match a pattern and need no quotes, sorted."""
    from fnmatch import fnmatchcase
    from http.client import HTTPConnection, HTTPSConnection

    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    connect = HTTPSConnection if scheme == "https" else HTTPConnection
    connection = connect(host, timeout=_PAGE_SECONDS)
    try:
        connection.request("GET", f"/{path}/" if path else "/")
        page = connection.getresponse().read().decode(errors="ignore")
    finally:
        connection.close()
    names = set(_LINK.findall(page))
    return sorted(name for name in names if can_read(name) and fnmatchcase(name, pattern))
