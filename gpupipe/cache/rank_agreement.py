"""Agreement between the ranks of a run: the first that begins an epoch chooses its generation, the
others take the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from typing import Any

from gpupipe.cache.disk import replaced
from gpupipe.cache.folder import CacheFolder

_ENVIRONMENT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
_KEPT = 64


class TrainingRun:
    """One rank's part in a run.

    What was chosen holds as long as a loader of any of its ranks is open, so a later run never
    meets it.
    """

    def __init__(self, folder: CacheFolder, rank: int, what: list[Any]) -> None:
        """what: tells the loaders of a run from one another: data, seed..."""
        key = _hash([*(os.environ.get(name) for name in _ENVIRONMENT), *what])
        self._path = folder.dir / "runs" / f"{key}.json"
        with folder.lock():
            folder.tidy()
            self._forget_the_dead()
            self._member = folder.claim("runs", f"{key}-{rank}-{uuid.uuid4().hex[:8]}", {})

    def _forget_the_dead(self) -> None:
        names = os.listdir(self._path.parent)
        living = {name.partition("-")[0] for name in names if "-" in name}
        for name in names:
            if "-" not in name and name.partition(".")[0] not in living:
                (self._path.parent / name).unlink()

    def chosen(self, epoch: int) -> int | None:
        """The generation of an epoch, or None where no rank has begun it. Needs the lock."""
        return self._choices().get(str(epoch))

    def choose(self, epoch: int, generation: int) -> None:
        """Needs the lock."""
        choices = self._choices()
        choices.pop(str(epoch), None)
        text = json.dumps(dict([*choices.items(), (str(epoch), generation)][-_KEPT:]))
        replaced(self._path, lambda path: path.write_text(text))

    def _choices(self) -> dict[str, int]:
        try:
            found: dict[str, int] = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def leave(self) -> None:
        """May be called twice."""
        self._member.release()


def _hash(parts: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
