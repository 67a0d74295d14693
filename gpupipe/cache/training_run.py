"""Lets the ranks of a training run agree on the shards of each epoch."""

import hashlib
import json
import os
import uuid
from typing import Any

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.runtime.files import write_atomically

_ENVIRONMENT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_MAX_CHOICES = 64


class TrainingRun:
    """Lets the ranks of a run agree on the shards of each epoch, through a file of choices.

    A new TrainingRun deletes the files of runs of which no loader is open, so that no later run
    reads them. Loaders belong to the same run if `identity` and the launcher's environment
    variables are equal.

    Args:
        folder: The cache.
        rank: This process's rank.
        identity: JSON values that identify the loaders of a run, such as data, seed and world size.
    """

    def __init__(self, folder: CacheFolder, rank: int, identity: list[Any]) -> None:
        parts = [*(os.environ.get(name) for name in _ENVIRONMENT), *identity]
        key = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
        self._path = folder.dir / "runs" / f"{key}.json"
        with folder.lock():
            folder.remove_leftovers()
            self._remove_dead_runs()
            self._member = folder.create_claim("runs", f"{key}-{rank}-{uuid.uuid4().hex[:8]}", {})

    def _remove_dead_runs(self) -> None:
        names = os.listdir(self._path.parent)
        living = {name.partition("-")[0] for name in names if "-" in name}
        for name in names:
            if "-" not in name and name.partition(".")[0] not in living:
                (self._path.parent / name).unlink()

    def read_choice(self, epoch: int) -> int | None:
        """Return the number of the shards that a rank chose for an epoch; None before that.

        The caller must hold the cache's lock.
        """
        return self._choices().get(str(epoch))

    def record_choice(self, epoch: int, number: int) -> None:
        """Record the number of an epoch's shards for the other ranks.

        The caller must hold the cache's lock. The file keeps the last 64 choices.
        """
        choices = self._choices()
        choices.pop(str(epoch), None)
        text = json.dumps(dict([*choices.items(), (str(epoch), number)][-_MAX_CHOICES:]))
        with write_atomically(self._path) as temporary:
            temporary.write_text(text)

    def _choices(self) -> dict[str, int]:
        try:
            choices: dict[str, int] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return choices

    def leave(self) -> None:
        """Record that this rank's loader no longer takes part in the run. Idempotent.

        The file of choices may be deleted once all ranks have left.
        """
        self._member.release()
