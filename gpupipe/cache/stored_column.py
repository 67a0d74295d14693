"""The column of a field in stored shards, and which samples of them this process has checked."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.sample_ids import split_ids
from gpupipe.cache.shard_column import NO_SHARD, ShardColumn
from gpupipe.dataset.columns import Rows

_checked: dict[str, dict[int, NDArray[np.bool_]]] = {}
"""For each folder of shards and each shard's row in the listing: which samples were checked."""


@dataclass(frozen=True, kw_only=True)
class StoredColumn(ShardColumn):
    """The bytes of a field in stored shards. `rows` has the ids, `files` the shards' names.

    Attributes:
        first_ids: The id of the first sample of each shard of the data set, int64 (S,).
        ending: The ending of the cached files.
    """

    first_ids: NDArray[np.int64]
    ending: str = ".tar"

    def path(self, number: int) -> str:
        return f"{self.root}/{number:08}{self.ending}"

    def location(self, row: int, name: str) -> str:
        shard = f"{self.url}/{self.files[self._listed_row(row)]}"
        return shard if self.file[row] == NO_SHARD else f"{shard}:{name}"

    def take(self, rows: Rows) -> Self:
        array = None if self.array is None else self.array.take(rows)
        return replace(super().take(rows), array=array)

    def _listed_row(self, row: int) -> int:
        return int(self._split(np.array([row]))[0][0])

    def _split(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the row in the listing of each row's shard, and the sample's number in it."""
        return split_ids(self._rows_in_data_set(rows), self.first_ids)

    def _is_checked(self, rows: Rows) -> NDArray[np.bool_]:
        checked = _checked.get(self.root, {})
        shards, numbers = self._split(rows)
        is_checked = np.zeros(len(rows), bool)
        for shard in np.unique(shards).tolist():
            if (of_shard := checked.get(shard)) is not None:
                own = np.flatnonzero((shards == shard) & (numbers < len(of_shard)))
                is_checked[own] = of_shard[numbers[own]]
        return is_checked

    def _note_checked(self, rows: Rows) -> None:
        checked = _checked.setdefault(self.root, {})
        shards, numbers = self._split(rows)
        for shard in np.unique(shards).tolist():
            own = numbers[shards == shard]
            before = checked.get(shard, np.empty(0, bool))
            if int(own.max()) >= len(before):  # others may note in the old one
                before = np.pad(before, (0, int(own.max()) + 1))
                checked[shard] = before
            before[own] = True


def forget_checked(root: str, shards: Iterable[int]) -> None:
    """Forget which samples of some shards in a folder were checked: their files may be replaced."""
    checked = _checked.get(root, {})
    for shard in shards:
        checked.pop(shard, None)
