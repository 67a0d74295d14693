"""A process that trains over a growing cache, a step at a time."""

import contextlib
import json
import subprocess
from typing import Any

from helpers.forked_python import executable

TRAIN = """
import json, sys, zlib, gpupipe
hash = zlib.crc32
options = dict(device="cpu", ids=True, batch_size=4, engine="dataloader", workers=0)
with gpupipe.load(json.loads(sys.stdin.readline()), **options) as loader:
    if state := json.loads(sys.stdin.readline()):
        loader.load_state_dict(state)
    while True:
        for batch in loader:
            digests = [hash(image.numpy().tobytes()) for image in batch["image"]]
            found = [batch["id"].tolist(), loader.state_dict(), digests]
            print(json.dumps(found), flush=True)
            sys.stdin.readline()
"""


class Trainer:
    """Another process that trains, a step at a time, from a state on if it gets one."""

    def __init__(self, settings: dict[str, Any], state: dict[str, Any] | None = None) -> None:
        self.process = subprocess.Popen(
            [executable(), "-c", TRAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say(json.dumps(settings))
        self._say(json.dumps(state))

    def _say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def steps(self, count: int) -> list[tuple[list[int], dict[str, Any], list[int]]]:
        """The ids of the next batches, the state after each, and a digest of each image."""
        assert self.process.stdout
        found = []
        for _ in range(count):
            found.append(tuple(json.loads(self.process.stdout.readline())))
            self._say("on")
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
