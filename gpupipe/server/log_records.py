"""The records of a write-ahead log on disk.

A record is a line: a checksum, a blank, and plain JSON. The last line may be torn, since the
process was killed while it wrote: it is dropped, for nobody was told of it. Any other line with a
wrong checksum is damage. The lines of earlier versions are JSON without a checksum, and are read
too.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from gpupipe.errors import StateError


def encode(record: Any) -> bytes:
    """Return the line of a record."""
    data = json.dumps(record).encode()
    return b"%08x %s\n" % (zlib.crc32(data), data)


def append(file: int, record: Any) -> None:
    """Append a record to a file that is open to append.

    Raises:
        OSError: There is no room. The file is then as it was before.
    """
    line, size = encode(record), os.fstat(file).st_size
    try:
        while line:
            line = line[os.write(file, line) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def read(path: Path) -> list[Any]:
    """Return the records of a file, without a torn last one; [] if there is no file.

    Raises:
        StateError: A record is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return []
    decode = json.loads if data.startswith(b"{") else _decode
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            records.append(decode(line))
        except ValueError:
            raise StateError(
                f"{path}:{number}: the record of a server's state is damaged: begin again with "
                "--fresh, or name another --state"
            ) from None
    return records


def _decode(line: bytes) -> Any:
    checksum, _, data = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(data):
        raise ValueError("wrong checksum")
    return json.loads(data)
