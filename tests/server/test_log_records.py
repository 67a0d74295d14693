"""A state file on a disk that is full, torn, or damaged."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpupipe.errors import ServerError, StateError
from gpupipe.server import log_records
from gpupipe.server.leases import Leases
from gpupipe.server.log_records import Head, NextPass, PassStarted, Record, StepDone, StepLeased
from gpupipe.server.options import ServerOptions
from gpupipe.server.write_ahead_log import WriteAheadLog

STEPS = 5000
LIMIT = 32 << 10


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 32 KiB in a folder."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={LIMIT}", "gpupipe-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may be larger than 32 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def fill(state: Path) -> list[Record]:
    """Log records until there is no room, and return those that were logged."""
    log = WriteAheadLog(state, {})
    leases = Leases(ServerOptions(), lambda *place: STEPS, (0, 0), log.log)
    log.resume(leases.state, "a" * 32, 0.0)
    log.log(PassStarted("0", 0, 0, 0, STEPS))
    logged: list[Record] = []
    with pytest.raises(ServerError, match=r"cannot be kept .*make room"):
        for step in range(STEPS):
            log.log(StepDone(0, step))
            logged.append(StepDone(0, step))
    log.close()
    return logged


def read(state: Path) -> list[Record]:
    log = log_records.read(state)
    assert log is not None
    return log[1]


def test_a_full_disk_loses_no_event_that_was_logged(tmp_path: Path) -> None:
    """Also not the one before the error, of which only a part has room."""
    with small_disk(tmp_path):
        logged = fill(tmp_path / "state")
        assert read(tmp_path / "state") == [NextPass(0), *logged]
        assert (tmp_path / "state").read_bytes().endswith(b"\n"), "no part of a record is left"


def test_a_limit_of_the_file_size_loses_no_event_that_was_logged(tmp_path: Path) -> None:
    with small_files():
        logged = fill(tmp_path / "state")
    assert len(logged) > 500
    assert read(tmp_path / "state") == [NextPass(0), *logged]


HEAD = Head("a")
RECORDS = [StepLeased(0, 1, "b"), StepDone(0, 1)]
EARLIER = ['{"history": "a", "runs": 0, "serves": {}}', '["lease", 0, 1, "b"]', '["done", 0, 1]']
"""The same, as a version without checksums wrote it."""


def write(path: Path) -> bytes:
    data = b"".join(log_records.encode(record) for record in [HEAD, *RECORDS])
    path.write_bytes(data)
    return data


def test_a_torn_last_record_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    file = tmp_path / "state"
    data = write(file)
    last = len(log_records.encode(RECORDS[-1]))
    for size in range(len(data) - last, len(data)):
        file.write_bytes(data[:size])
        assert log_records.read(file) == (HEAD, RECORDS[:-1])


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize(
    ("before", "after"), [(b'"', b"'"), (b'"', b'"x')], ids=["no JSON", "other JSON"]
)
def test_a_damaged_record_is_refused_with_its_line(
    tmp_path: Path, line: int, before: bytes, after: bytes
) -> None:
    file = tmp_path / "state"
    lines = write(file).splitlines(keepends=True)
    lines[line] = lines[line].replace(before, after, 1)
    file.write_bytes(b"".join(lines))
    with pytest.raises(StateError, match=rf"state:{line + 1}: .*damaged.*--fresh"):
        log_records.read(file)


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "state"
    lines = [line + "\n" for line in EARLIER]
    file.write_text("".join(lines) + '["done", 0')
    assert log_records.read(file) == (HEAD, RECORDS)
    file.write_text("".join([*lines[:2], '["lea["done", 0, 2]\n', lines[2]]))
    with pytest.raises(StateError, match=r"state:3: .*damaged"):
        log_records.read(file)


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert log_records.read(tmp_path / "state") is None
    (tmp_path / "state").write_bytes(b"")
    assert log_records.read(tmp_path / "state") is None


def test_a_file_of_a_newer_version_is_refused_whatever_its_records_are(tmp_path: Path) -> None:
    file = tmp_path / "state"
    head = log_records.encode(Head("a", version=log_records.VERSION + 1))
    file.write_bytes(head + b"records of another form\n")
    with pytest.raises(StateError, match=r"state is .*newer gpupipe .*--fresh"):
        log_records.read(file)


def test_a_record_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text("\n".join([EARLIER[0], '["moved", 0, 1]', ""]))
    with pytest.raises(StateError, match=r"state:2: .*damaged"):
        log_records.read(file)
