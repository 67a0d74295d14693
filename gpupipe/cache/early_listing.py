"""Lists a data set before the task to do so comes, and begins to fetch its first shard.

`load` takes as long to read a config as a download worker to start. So the worker begins with what
the text of the config says, and keeps the answers of the store in memory. It changes no file, and
nothing is used unless the task comes to be of the same data set and cache.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.early_request import choose_first
from gpupipe.cache.listing import Listing
from gpupipe.cache.range_reader import FetchedRange
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.store import Store
from gpupipe.cache.store_listing import StoreRows, ask_for_versions, list_samples
from gpupipe.cache.stored_formats import find_format
from gpupipe.errors import DataError


@dataclass
class EarlyListing:
    """What the store answered.

    Attributes:
        dataset: The data set.
        cache: The settings of the cache.
        store: The store, with parts of the first shards on their way.
        outcome: The listing, or why there is none; None once it was taken.
    """

    dataset: DataSet
    cache: CacheOptions
    store: Store
    outcome: Listing | DataError | None

    def fits(self, dataset: DataSet, cache: CacheOptions) -> bool:
        """Return whether a task has the same settings."""
        return (dataset, cache) == (self.dataset, self.cache)

    def take_rows(self) -> Listing:
        """Return the listing, and keep none: it can take gigabytes.

        Raises:
            DataError: The store could not be listed.
        """
        outcome, self.outcome = self.outcome, None
        if isinstance(outcome, DataError):
            raise outcome
        assert outcome is not None
        return outcome


def list_early(data: Any, parts: Mapping[str, Future[FetchedRange]] = {}) -> EarlyListing | None:
    """List a data set, unless the cache has a listing, or the settings are not whole.

    Args:
        data: The `data` of a config, or None.
        parts: What `early_request.request_shards` asked for.
    """
    try:
        options = CacheOptions(**data["cache"])
        dataset = DataSet(**{name: data[name] for name in DataSet.model_fields.keys() & data})
        cache = options.model_copy(update={"dir": options.dir.absolute()})
        is_folder = dataset.shards is not None and find_format(dataset).is_folder
        if is_folder or CacheFolder(cache).listing_path.exists():
            return None
        store = Store(dataset, cache.retries, cache.timeout, parts=parts)
        return EarlyListing(dataset, cache, store, _list(dataset, cache, store))
    except Exception:  # the task says what is wrong
        return None


def _list(dataset: DataSet, cache: CacheOptions, store: Store) -> Listing | DataError:
    has_shards = dataset.shards is not None and not find_format(dataset).is_sized

    def begin_to_fetch(rows: StoreRows) -> None:
        """Begin to fetch the shards that come first into an empty cache.

        Bytes whose version comes neither before nor with them could be of an older one.
        """
        if has_shards and cache.workers and cache.rate_limit is None and not store.ranges.parts:
            weights = rows.weights.tolist() if dataset.weight is not None else None
            chosen = choose_first(len(rows.names), dataset.seed, weights)
            unknown = [row for row in chosen if not store.ranges.tells_version(rows.names[row])]
            ask_for_versions(rows, store, cache.connections, unknown)
            store.ranges.prefetch([rows.names[row] for row in chosen])

    try:
        return list_samples(dataset, store, cache.connections, begin_to_fetch)
    except DataError as e:
        return e
