"""`gpupipe serve` in a process of its own."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from helpers.forked_python import Process
from helpers.ports import free_port


class Commands:
    """`gpupipe serve` on one config and one port, again and again."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.address = f"tcp://127.0.0.1:{free_port()}"
        (folder / "little.yaml").write_text(yaml.safe_dump(config))
        self._words = [
            str(folder / "little.yaml"),
            "--port",
            self.address.rpartition(":")[2],
            "--hwm",
            "2",
        ]
        self._environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}

    @contextmanager
    def serve(self, *words: str) -> Iterator[Process]:
        with Process(
            ["-m", "gpupipe", "serve", *self._words, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().strip() == self.address
                yield process
            finally:
                process.kill()


def stop(process: Process, number: int) -> str:
    """What it said on the standard error stream."""
    assert process.stderr is not None
    process.send_signal(number)
    said = process.stderr.read()
    assert process.wait(60) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    return said
